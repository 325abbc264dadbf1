-- A state file of the release before (e298fe9), which gave waiting jobs leases, as SQLite dumps it: job 1
-- waits under a lease, job 2 is in the middle of its second move.
CREATE TABLE attained (
    job TEXT PRIMARY KEY, gpu_s REAL NOT NULL, seen_s REAL NOT NULL
);
CREATE TABLE decision (
    job TEXT PRIMARY KEY, time_s REAL NOT NULL, placement TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE journal (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, kind TEXT NOT NULL, phase TEXT NOT NULL,
    opened_s REAL NOT NULL, changed_s REAL NOT NULL, details TEXT NOT NULL, outcome TEXT
, steps TEXT NOT NULL DEFAULT '', shown TEXT, effect TEXT, news INTEGER NOT NULL DEFAULT 0);
INSERT INTO "journal" VALUES(1,'1','lease','sent',999970.0,999970.0,'{"fields": {"StartTime": "now+300"}}','done','',NULL,NULL,1);
INSERT INTO "journal" VALUES(2,'2','move','requeued',999988.0,999989.5,'{"fields": {"Features": "v100"}, "gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}, "moves": 2, "leased": false, "was": {"Features": "", "Partition": "gpu"}, "from": {"k1": {"k80": 1}}, "reason": "faster", "copies": 1, "shares": [], "batch": null, "save": "abc", "restarts": 1}',NULL,' requeued@999989.5',NULL,NULL,1);
CREATE TABLE policy (name TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE steering (job TEXT PRIMARY KEY, text TEXT NOT NULL);
INSERT INTO "steering" VALUES('1','[hadarplan;t=999970;lease=1]');
INSERT INTO "steering" VALUES('2','[hadarplan;t=999500;on=k80:1;at=k1/k80:1;moves=1;was.Features=;was.Partition=gpu]');
CREATE TABLE told (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, time_s REAL NOT NULL, placement TEXT NOT NULL,
    reason TEXT NOT NULL, news INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX journal_open ON journal (outcome) WHERE outcome IS NULL;
CREATE INDEX journal_job ON journal (job, changed_s);
CREATE INDEX journal_kind ON journal (kind, opened_s);
CREATE INDEX journal_unseen ON journal (id) WHERE shown IS NULL;
CREATE INDEX journal_no_effect ON journal (id) WHERE kind='move' AND effect IS NULL;
CREATE INDEX journal_news ON journal (id) WHERE news=1;
CREATE INDEX told_job ON told (job, id);
CREATE INDEX told_news ON told (id) WHERE news=1;
PRAGMA user_version = 3;
