"""A move is no mail, and what its owner asked for is restored."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, as_cluster, config, decide, job, observation, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running import mail_type
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.retire import ordinary
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.slurm import records
from slurm_hadar.slurm.cluster import Update
from slurm_hadar.slurm.traffic import Traffic

ASKED = ("INVALID_DEPEND", "BEGIN", "END", "FAIL", "REQUEUE")
QUIET = "INVALID_DEPEND,END,FAIL"
DETAILS = {"gpus": {"v100": 1}, "was": {}, "save": "abc", "restarts": 0, "fields": {}}
HERE = running("1", {"k1": {"k80": 1}})
SAVED = Progress(
    job="1", time=NOW, restarts=0, host="k1", pid=1, in_step=False, started=NOW - 60, model="m",
    samples=1, rate=1.0, window_s=1.0, batch=64, gpus=1, ack=Ack("abc", NOW, 1),
)  # fmt: skip


class Cluster:
    """A Slurm that takes all; ``asked``: the mails that each job asked for, or an error."""

    def __init__(self, asked):
        self.asked, self.sent, self.traffic = asked, [], Traffic()

    def read_mail_types(self, numbers):
        if isinstance(self.asked, SlurmError):
            raise self.asked
        return {number: types for number, types in self.asked.items() if number in numbers}

    def apply(self, updates):
        self.sent += updates
        return [None for _ in updates]

    def requeue(self, ids):
        self.sent += [f"requeue {id_}" for id_ in ids]
        return [None for _ in ids]


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
    store = Store.open(tmp_path / "state")
    yield ActionContext(None, store, site, clock=lambda: NOW)
    store.close()


def requeued(context, asked):
    """What is sent when the job has saved."""
    context.store.begin("1", "move", "asked", NOW - 5, DETAILS)
    cluster = Cluster(asked)
    advance(replace(context, cluster=cluster), {"1": HERE}, {"1": SAVED}, NOW)
    return cluster.sent


def known(context):
    return decode(context.store.steerings(["1"]).get("1", "")) or Steering()


def test_the_mails_of_a_move_are_off_before_the_requeue_and_kept(context):
    before = Steering(time=NOW, was={"Partition": "gpu"}, wrote={"Partition": "k80,v100"})
    context.store.keep_steering("1", merge("", before))
    sent = requeued(context, {HERE.raw_id: ASKED})
    assert sent == [Update("1", {"MailType": QUIET}), "requeue 1"]
    kept = known(context)
    assert kept.was == {"Partition": "gpu", "MailType": ",".join(ASKED)}
    assert kept.wrote == {"Partition": "k80,v100", "MailType": QUIET}
    # What the move itself writes down does not forget it.
    cluster = Cluster({})
    waits = job("1", restarts=1, submit_s=NOW, eligible_s=NOW)
    advance(replace(context, cluster=cluster), {"1": waits}, {}, NOW + 5)
    assert dict(cluster.sent[0].fields) == {"StartTime": "now"}
    assert known(context).was == {"MailType": ",".join(ASKED)}
    assert known(context).wrote == {"MailType": QUIET}


@pytest.mark.parametrize("now_asked", [QUIET, "END"])
def test_a_job_that_is_held_in_its_move_has_its_owners_mails_again(context, now_asked):
    """Its next start is its owner's, or an admin's. What its owner asked for since stays."""
    requeued(context, {HERE.raw_id: ASKED})
    held = job("1", restarts=1, submit_s=NOW, eligible_s=NOW, held=True)
    cluster = Cluster({held.raw_id: tuple(now_asked.split(","))})
    advance(replace(context, cluster=cluster), {"1": held}, {}, NOW + 5)
    assert cluster.sent == ([Update("1", {"MailType": ",".join(ASKED)})] * (now_asked == QUIET))
    assert ("MailType" in known(context).was) == (now_asked != QUIET)


@pytest.mark.parametrize("asked", [(), ("END", "FAIL"), ("NONE",)])
def test_who_asked_for_no_such_mail_gets_no_update(context, asked):
    assert requeued(context, {HERE.raw_id: asked} if asked else {}) == ["requeue 1"]
    assert known(context) == Steering()


def test_begin_alone_becomes_none(context):
    assert requeued(context, {HERE.raw_id: ("BEGIN",)})[0].fields == {"MailType": "NONE"}


def test_a_slurm_that_does_not_tell_keeps_no_job_from_moving(context):
    assert requeued(context, SlurmError("no answer", retry=True)) == ["requeue 1"]


def test_who_opts_out_gets_mails_and_nice_back_while_the_job_runs_too():
    was = {"MailType": "ALL", "Nice": "0", "Partition": "gpu"}
    for state, fields in ((JobState.RUNNING, {"MailType", "Nice"}), (JobState.PENDING, set(was))):
        update = ordinary(replace(HERE, state=state), Steering(time=NOW, was=was), NOW, CONFIG)
        assert set(update.fields) == {"Comment", *fields}


OURS = Steering(time=NOW, was={"MailType": "ALL"}, wrote={"MailType": QUIET})


@pytest.mark.parametrize(
    ("shown", "restored"),
    [(QUIET, True), ("END", False), ("INVALID_DEPEND,END,FAIL,BEGIN", False), ("", False)],
)
def test_a_mail_type_that_the_owner_changed_during_a_move_stays(context, shown, restored):
    cluster = Cluster({HERE.raw_id: tuple(shown.split(","))} if shown else {})
    (action,) = hints_of(HERE, OURS)
    assert action.fields == {"MailType": "ALL"}
    context.keep(HERE, OURS)
    working = replace(context, cluster=cluster)
    sent, later = mail_type.still_ours(working, [action], {"1": OURS})
    # Where nothing is sent the controller forgets what was there before at once.
    assert (sent, later) == (([action], frozenset()) if restored else ([], {"1"}))
    assert known(context).was == (OURS.was if restored else {})
    more = replace(action, fields={"Nice": "0", **action.fields})
    (other,), _ = mail_type.still_ours(working, [more], {"1": OURS})
    assert set(other.fields) == {"Nice", *(["MailType"] if restored else [])}
    update = ordinary(HERE, OURS, NOW, CONFIG)
    (left,) = mail_type.without_others(as_cluster(cluster), [HERE], [update], {"1": OURS})
    assert ("MailType" in left.fields) == restored and "Comment" in left.fields


def test_mails_are_restored_later_where_slurm_does_not_tell(context):
    silent = replace(context, cluster=Cluster(SlurmError("no answer", retry=True)))
    assert mail_type.still_ours(silent, hints_of(HERE, OURS), {"1": OURS}) == ([], {"1"})
    assert mail_type.still_ours(silent, [], {}) == ([], frozenset())


def hints_of(one, steered):
    return decide(observation([one], steering={"1": steered}), {}).of(Kind.HINT)


def test_mail_types_of_a_shown_job():
    lines = [
        "scontrol: show job 11",
        "JobId=11 JobName=a MailType=NONE UserId=ada(1) Power= MailUser=ada MailType=BEGIN,END ",
        "JobId=12 ArrayJobId=8 ArrayTaskId=3 JobName=b Power=",
        "JobId=13 JobName=c",
        # The rest of a name.
        "JobId=11 MailType=FAIL ",
        "scontrol: scontrol: JobId=14 JobName=d MailUser=bob MailType=ARRAY_TASKS,TIME_LIMIT_80",
    ]
    assert records.mail_types("\n".join(lines)) == {14: ("ARRAY_TASKS", "TIME_LIMIT_80")}
    assert records.mail_types("\n".join(lines[:4])) == {11: ("BEGIN", "END")}
    assert records.mail_types("") == {}
    # The last task has the array's number, and so all tasks are shown, some of them again.
    tasks = [f"JobId={n} ArrayJobId=20 ArrayTaskId={n - 20} MailType=BEGIN" for n in (20, 21, 21)]
    assert records.mail_types("\n".join(tasks)) == {20: ("BEGIN",), 21: ("BEGIN",)}
