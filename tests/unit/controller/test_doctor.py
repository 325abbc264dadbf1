"""The report of one job: from what is known, with what is wrong and its cure."""

import json
import os
from dataclasses import asdict, replace
from typing import Any

import pytest
from hand_made import (
    CONFIG,
    NOW,
    as_cluster,
    config,
    job,
    look,
    nodes,
    observation,
    ordinary,
    running,
)
from missing import needs_root

from slurm_hadar.controller.actuation import action_outcomes
from slurm_hadar.controller.actuation.move_steps import FAILED
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import job_explanation, job_report
from slurm_hadar.controller.presentation.diagnostics import problems
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.snapshot.at_risk import why_unknown
from slurm_hadar.controller.snapshot.eligibility import schedulable_jobs
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import UnknownJobError, UsageError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import Progress, Saved
from slurm_hadar.reports import text
from slurm_hadar.reports.job_report import JobReport, format_report
from slurm_hadar.runtime.watch import STABLE_S

ALIVE = Heartbeat("here", 1, "act", NOW - 20, 60.0)
HERE = {"k1": {"k80": 1}}
ME = os.getuid()


@pytest.fixture
def site(tmp_path):
    (tmp_path / "exchange").mkdir()
    return config(f'[site]\nmode = "act"\nexchange_dir = "{tmp_path}/exchange"\n')


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state")
    yield opened
    opened.close()


def report(**more):
    usual = {"job": "1", "time": NOW - 5, "restarts": 0, "host": "k1", "pid": 1, "in_step": True}
    usual |= {"started": NOW - 900, "model": "m", "samples": 5000, "rate": 10.0, "window_s": 5.0}
    usual |= {"batch": 8, "gpus": 1, "checkpoint": Saved(4000, NOW - 60, 1.0)}
    return Progress(**{**usual, **more})


def known(site, *jobs, beat=ALIVE, progress=None, found=None, **more):
    shown = observation(list(jobs), found, progress={"1": progress} if progress else {})
    return JobContext("1", shown, site, ME, beat, **more)


def wrong(*arguments, **more):
    return list(problems(known(*arguments, **more)))


def lines(found):
    return [one.what for one in found]


def printed(tale, width=200, everything=False):
    console = text.console(width=width)
    with console.capture() as kept:
        console.print(format_report(tale, everything))
    return kept.get()


def test_a_very_long_name_takes_one_line(site):
    facts = dict(job_report._facts(known(site, job("1", name="sweep-" * 170))))
    assert facts["Name"].startswith("sweep-sweep-") and facts["Name"].endswith("… (ann)")
    assert len(facts["Name"]) < 60


CHECKED = Declaration(types=("any",), checkpoint="yes")


@pytest.mark.parametrize(("there", "ago_s", "says"), [(2, 45, True), (1, 45, False), (2, 5, False)])
def test_a_moved_job_whose_place_others_took_is_a_problem(site, store, there, ago_s, says):
    details = {"gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}, "restarts": 0}
    store.end(store.begin("1", "move", "asked", NOW - 60, details), "moved", NOW - ago_s)
    others = running("2", {"v1": {"v100": there}})
    waits = job("1", restarts=1, reason="Resources")
    found = wrong(site, waits, others, found=nodes(v1=there), entries=tuple(store.history("1")))
    assert bool(found) is says
    if says:
        assert "1 x v100 on v1" in found[0].what and "waited for 45 s" in found[0].what


def test_a_job_that_runs_without_a_gpu_is_a_problem_with_its_cure(site):
    shown = replace(running("1", HERE), gpus={})
    context = known(site, shown, progress=report())
    write_plan(context.config.site.exchange_dir, JobPlan("1", gpus={"v100": 1}))
    (found,) = problems(context)
    assert "Slurm shows no GPU of it" in found.what
    assert "scontrol requeue 1" in found.cures[-1]
    assert job_report._report_of(context).now[0].startswith("RUNNING on k1 for")


def test_a_dependency_that_can_never_be_met_is_no_wait_for_another_job():
    failed = {"dependency": "afterok:7(failed)", "reason": "DependencyNeverSatisfied"}
    jobs = [job("1", dependency="afterok:7", reason="Dependency"), job("2", **failed)]
    _, excluded = schedulable_jobs(observation(jobs), CONFIG, {})
    assert excluded == {
        "1": "it waits for another job",
        "2": "its dependency can never be met: the job that it depends on has ended otherwise; "
        "cancel it, or change the dependency: scontrol update JobId=2 Dependency=afterany:OTHER",
    }


def test_a_dependency_that_can_never_be_met_is_one_problem(site):
    failed = job("1", dependency="afterok:7(failed)", reason="DependencyNeverSatisfied")
    _, excluded = schedulable_jobs(observation([failed]), CONFIG, {})
    (found,) = wrong(site, failed, last=Decision("1", NOW - 5, "not steered", excluded["1"]))
    assert found.what.startswith("its dependency can never be met")


def test_of_a_healthy_job_nothing_is_wrong(site):
    assert wrong(site, running("1", HERE), progress=report()) == []
    assert wrong(site, job("1")) == []


@pytest.mark.parametrize(
    ("shown", "says", "cure"),
    [
        (job("1", declaration=None), "did not opt in", "#HADAR types=any"),
        (job("1", declaration=None, declaration_error="odd"), "cannot be read: odd", "Comment="),
        (job("1", het=True), "heterogeneous", ""),
        (job("1", held=True, reason="JobHeldUser"), "held (JobHeldUser)", "scontrol release 1"),
        (job("1", dependency="afterok:7"), "waits for another job", "JobId=1 Dependency="),
        (
            job("1", dependency="afterok:7(failed)", reason="DependencyNeverSatisfied"),
            "its dependency can never be met: the job that it depends on has ended otherwise",
            "scancel 1 scontrol update JobId=1 Dependency=afterany:OTHER",
        ),
        (job("1", reason="QOSMaxJobsPerUserLimit"), "at a limit", "sacctmgr show assoc where user"),
        (job("1", reason="PartitionDown"), "Slurm keeps it waiting", "scontrol show job 1"),
        (job("1", declaration=replace(CHECKED, types=("h100",))), "no node has", "types=any"),
        (job("1", declaration=replace(CHECKED, checkpoint="")), "not declare check", "=yes"),
        (job("1", requeue=False), "--no-requeue", "Requeue=1"),
        (
            job("1", admin_comment=merge("", Steering(time=NOW, moves=50))),
            "max_moves_per_job",
            "max_moves_per_job",
        ),
        (running("1", HERE), "no report since it started 16 min 40 s ago", "slurm_hadar.runtime"),
    ],
)
def test_each_trouble_has_its_cure(site, shown, says, cure):
    (found,) = wrong(site, shown)
    assert says in found.what and cure in " ".join(found.cures)


@pytest.mark.parametrize(
    ("state", "code", "more", "says", "cure"),
    [
        ("TIMEOUT", 0, {}, "its time limit at 5,000 of 9,000 samples", "max_requeues=N"),
        ("TIMEOUT", 0, {"max_requeues": 5}, "its time limit at 5,000", "resumes from"),
        ("TIMEOUT", 0, {"checkpoint": ""}, "its time limit", "a longer --time"),
        ("OUT_OF_MEMORY", 0, {}, "more memory", "--mem"),
        ("FAILED", 77, {}, "exit code 77: a later attempt", "StdOut"),
        ("FAILED", 74, {}, "exit code 74: the end of the training", "resumes from"),
        ("FAILED", 3, {}, "exit code 3", "StdOut"),
        ("FAILED", 140, {}, "140: USR2 ended a program in it", "has no handler for USR2: add one"),
        ("FAILED", 138, {"checkpoint": ""}, "138: USR1 ended", "submit it without --signal"),
        ("FAILED", 139, {}, "139: SEGV ended a program in it", "StdOut"),
        ("FAILED", 255, {}, "exit code 255", "StdOut"),
        ("FAILED", 0, {}, "", ""),
        ("COMPLETED", 0, {}, "", ""),
        ("CANCELLED by 0", 0, {}, "", ""),
        ("", 0, {}, "", ""),
    ],
)
def test_a_bad_end_is_a_problem(site, state, code, more, says, cure):
    declared = replace(CHECKED, samples=9000, **more)
    ended = running("1", HERE, declaration=declared, exit_code=code)
    ended = replace(ended, state=JobState.FINISHED, slurm_state=state)
    found = wrong(site, ended, progress=report())
    assert len(found) == bool(says)
    for one in found:
        assert says in one.what and cure in " ".join(one.cures)


def test_a_loss_that_was_not_finite_is_named_as_the_end(site):
    ended = replace(running("1", HERE, exit_code=1), state=JobState.FINISHED, slurm_state="FAILED")
    (found,) = wrong(site, ended, progress=report(nonfinite=True))
    assert "exit code 1: its loss or a parameter was not finite" in found.what


@pytest.mark.parametrize(
    ("said", "says", "cure"),
    [
        (report(time=NOW - 4000), "no progress since 1 h 06 min", "grep StdOut"),
        (report(checkpoint=Saved(1, NOW - 9000, 1.0)), "last checkpoint is 2 h 30 min old", "USR2"),
        (report(restarts=5), "no report since it started", "ls -l"),
        (report(nonfinite=True), "its loss or a parameter is not finite", "scancel 1"),
    ],
)
def test_a_silent_training_is_reported(site, said, says, cure):
    (found,) = wrong(site, running("1", HERE), progress=said)
    assert says in found.what and cure in " ".join(found.cures)


def test_the_cure_reaches_a_training_that_is_no_step(site, store):
    """A signal without --batch goes to steps only."""
    late = running("1", HERE, start_s=NOW - 5000)
    in_batch = report(checkpoint=None, in_step=False)
    (found,) = wrong(site, late, progress=in_batch)
    assert found.cures[0] == "scancel --batch --signal=USR2 1" and "trap" in found.cures[1]
    entry = store.begin("1", "move", "asked", NOW - 500, {"gpus": {"v100": 1}, "restarts": 0})
    store.end(entry, "the job did not save within 120 s and stays where it is", NOW - 380)
    *_, asked = wrong(site, late, progress=in_batch, entries=tuple(store.history("1")))
    assert "scancel --batch --signal=USR2 1" in asked.cures[0] and "trap" in asked.cures[1]


def test_a_job_that_never_saved_is_reported(site):
    late = running("1", HERE, start_s=NOW - 5000)
    (found,) = wrong(site, late, progress=report(checkpoint=None))
    assert "saved nothing" in found.what and found.cures == ("scancel --signal=USR2 1",)


@pytest.mark.parametrize(
    ("beat", "says", "cure"),
    [
        (None, "there is no heartbeat", "hadar tick"),
        (replace(ALIVE, time=NOW - 1000), "16 min 40 s old", "systemctl start slurm-hadar"),
    ],
)
def test_a_controller_that_is_gone_or_only_watches_is_reported(site, beat, says, cure):
    (found,) = wrong(site, job("1"), beat=beat)
    assert says in found.what and cure in " ".join(found.cures)


def test_only_a_stop_file_that_is_seen_is_to_be_removed(site, tmp_path, monkeypatch):
    stop = tmp_path / "stop"
    site = site.model_copy(update={"guards": site.guards.model_copy(update={"stop_file": stop})})
    watches = replace(ALIVE, mode="observe")

    def cures():
        (found,) = wrong(site, job("1"), beat=watches)
        assert found.what.startswith("the controller is in observe mode: it changes nothing")
        return found.cures

    assert cures() == ("its log says why: journalctl -u slurm-hadar",)
    stop.touch()
    assert cures() == (f"rm {stop}",)

    look = type(stop).stat

    def closed(path, **more):
        if path == stop:
            raise PermissionError(13, "Permission denied")
        return look(path, **more)

    # Root enters every folder.
    monkeypatch.setattr(type(stop), "stat", closed)
    assert cures() == (f"as root, since you may not look for it: ls -l {stop}",)
    watches_only = site.model_copy(
        update={"site": site.site.model_copy(update={"mode": "observe"})}
    )
    (found,) = wrong(watches_only, job("1"), beat=watches)
    assert found.cures == ('set mode = "act" in [site] of the configuration',)


def test_nodes_that_are_all_out_of_use_are_reported(site):
    down = [replace(n, state="DOWN", usable=False) if "k80" in n.gpus else n for n in nodes()]
    (found,) = wrong(site, job("1", declaration=replace(CHECKED, types=("k80",))), found=down)
    assert "out of use" in found.what and found.cures[0] == "sinfo -R"


def test_of_no_other_type_is_said_that_it_would_help(site):
    found = [replace(one, usable=False, state="DOWN") for one in nodes()]
    said = "all nodes with what it accepts (k80, p100, v100) are out of use"
    for types in (("any",), ("k80", "p100", "v100")):
        (problem,) = wrong(site, job("1", declaration=replace(CHECKED, types=types)), found=found)
        assert problem.what == said and problem.cures == ("sinfo -R",)


def test_files_that_cannot_be_believed_are_named(site):
    folder = site.site.exchange_dir
    (folder / "plan.1.json").write_text("{")
    (folder / "progress.1.abc.json").write_text("{")
    plan, said = wrong(site, job("1", uid=ME))
    assert "plan file is damaged" in plan.what and "plan.1.json is a file of" in plan.what
    assert f": rm {folder}/plan.1.json" in plan.cures[0]
    assert "progress.1.abc.json is a file of" in said.what and ", 1 byte" in said.what
    assert said.cures[1:] == (f"head -c 1000 {folder}/progress.1.abc.json | cat -v",)


def test_what_others_put_in_place_of_a_file_is_named_with_a_cure_that_does_no_harm(site):
    needs_root("it makes files of other users")
    folder = site.site.exchange_dir
    folder.chmod(0o1777)
    os.chown(folder, 65533, -1)
    (folder / "plan.1.json").mkdir()
    os.chown(folder / "plan.1.json", 65534, -1)
    os.mkfifo(folder / "progress.1.0.json")
    plan, said = wrong(site, job("1", uid=ME))
    assert "plan.1.json is a folder of nobody" in plan.what
    assert plan.cures[0] == f"as nobody, UID 65533 or root: rm -r {folder}/plan.1.json"
    assert "progress.1.0.json is a named pipe of root" in said.what
    assert said.cures == (f"ls -ld {folder}/progress.1.0.json",)


def test_a_move_that_failed_or_did_not_pay_is_reported(site, store):
    here = running("1", HERE)
    late = store.begin("1", "move", "asked", NOW - 500, {"gpus": {"v100": 1}, "restarts": 0})
    store.end(late, "the job did not save within 120 s and stays where it is", NOW - 380)
    (found,) = wrong(site, here, progress=report(), entries=tuple(store.history("1")))
    assert "did not answer" in found.what and "hadar pin 1" in found.cures[1]
    hung = "the job saved after 8 s, but was not requeued within 121 s and stays where it is"
    (found,) = wrong(
        site, here, progress=report(), entries=(replace(store.history("1")[0], outcome=hung),)
    )
    assert "too late" in found.what and "did not answer" not in found.what
    slow = replace(store.history("1")[0], outcome="moved")
    slow = replace(slow, effect={"rate_before": 50.0, "rate_after": 20.0})
    (found,) = wrong(site, here, progress=report(), entries=(slow,))
    assert "made it slower: 50 -> 20 samples/s" in found.what
    for after in (49.9, 47.6):
        noise = replace(slow, effect={"rate_before": 50.0, "rate_after": after})
        assert wrong(site, here, progress=report(), entries=(noise,)) == []
    slower = replace(slow, effect={"rate_before": 50.0, "rate_after": 47.4})
    assert len(wrong(site, here, progress=report(), entries=(slower,))) == 1
    elsewhere = replace(slow, shown="runs on 1 x k80 on k1, which was not meant")
    assert wrong(site, here, progress=report(), entries=(elsewhere,)) == []
    # Where it runs after a stop is no move of ours.
    stop = replace(slow, outcome="stopped", details={"gpus": {}, "restarts": 0})
    assert wrong(site, here, progress=report(), entries=(stop,)) == []


def test_a_job_that_gave_surplus_gpus_back_is_not_advised_to_stay(site, store):
    reason = "gives 1 of its GPUs back, which are more than it asked for: job 9 waits for them"
    details = {"gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}, "restarts": 0, "reason": reason}
    store.end(store.begin("1", "move", "asked", NOW - 90, details), "moved", NOW - 80)
    slower = replace(
        store.history("1")[0],
        shown="runs on 1 x v100 on v1",
        effect={"rate_before": 50.0, "rate_after": 20.0},
    )
    shown = running("1", {"v1": {"v100": 1}}, restarts=1, start_s=NOW - 78)
    context = known(site, shown, progress=report(restarts=1), entries=(slower,))
    tale = job_report._report_of(context)
    said = "it had grown beyond its request and gave 1 GPU back, which job 9 waited for"
    assert said in tale.now
    assert any(said in event.detail for event in tale.events)
    assert tale.problems == ()
    assert said in job_explanation.move_row(slower).outcome


LISTED = {"fields": {"Partition": "k80,v100"}, "gpus": {}}


def moved(store):
    """A hint, five ticks of the same mind, a move with its effect."""
    entry = store.begin("1", "hint", "sent", NOW - 900, LISTED)
    store.end(entry, "done", NOW - 900)
    for number in range(5):
        why = f"ends in {20 - number} min; no free placement is worth a restart of 8 s"
        store.decisions.record([Decision("1", NOW - 840 + 60 * number, "1 x k80 on k1", why)])
    details = {"gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}, "restarts": 0, "rate_before": 5.0}
    store.decisions.record([Decision("1", NOW - 500, "1 x v100 on v1", "saves 5 min")])
    entry = store.begin("1", "move", "asked", NOW - 500, details)
    store.advance(entry, "requeued", NOW - 495)
    store.end(entry, "moved", NOW - 492)
    here = running("1", {"v1": {"v100": 1}}, restarts=1, start_s=NOW - 490, submit_s=NOW - 495)
    for _ in range(2):
        after = report(restarts=1, rate=10.0, restart_s=8.0)
        action_outcomes.reconcile(store, observation([here], progress={"1": after}), 120.0)
    return here, after


class Reader:
    """What the story takes of a controller."""

    def __init__(self, site, store, *jobs, progress=None):
        self.config, self.store = site, store
        self._seen = observation(list(jobs), progress={"1": progress} if progress else {})

    def observe(self):
        return self._seen

    def snapshot(self, shown):
        return look(shown, self.config)


def diagnosed(reader: Any, id_: str) -> JobReport:
    return job_report.of_controller(reader, id_)


def test_an_idle_type_that_the_list_of_partitions_omits_is_a_problem_of_a_waiting_job(tmp_path):
    (tmp_path / "exchange").mkdir()
    grouped = config(
        f'[site]\nmode = "act"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
    )
    declared = replace(CHECKED, model="ResNet-50", batch=(64, 64), partitions=("gpu",))
    waits = job("1", declaration=declared, partitions=("v100", "p100"), time_limit_s=1e9)
    store = Store.open(tmp_path / "state")
    found = lines(diagnosed(Reader(grouped, store, waits), "1").problems)
    (said,) = [line for line in found if "k80" in line]
    assert said.startswith("k80 is idle, and its list of partitions omits it, as it is 7 times")
    assert said.endswith("a submit with types=k80,p100,v100 accepts it")
    named = replace(declared, types=("k80", "p100", "v100"))
    wanted = Reader(grouped, store, replace(waits, declaration=named))
    assert not [line for line in lines(diagnosed(wanted, "1").problems)
                if "omits" in line]  # fmt: skip
    store.close()


def test_each_kind_of_failed_move_counts_for_when_the_next_one_may_come(site, store):
    for number, outcome in enumerate(FAILED):
        entry = store.begin("1", "move", "asked", NOW - 30 + number, {})
        store.end(entry, f"{outcome}: as ever", NOW - 20 + number)
    runs = running("1", HERE, declaration=CHECKED)
    tale = diagnosed(Reader(site, store, runs), "1")
    assert "and 3 failed moves" in tale.next[-1]


def test_a_partition_of_a_group_that_is_gone_is_named_as_the_end_of_a_job(tmp_path):
    (tmp_path / "exchange").mkdir()
    grouped = config(
        f'[site]\nmode = "act"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "gone"]\n'
    )
    ended = {"state": JobState.FINISHED, "slurm_state": "NODE_FAIL"}
    (found,) = wrong(grouped, job("1", partitions=("v100",), **ended))
    assert (
        "there is no partition gone any more" in found.what and "State=INACTIVE" in found.cures[0]
    )
    whole = config(
        f'[site]\nmode = "act"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "k80"]\n'
    )
    assert wrong(whole, job("1", partitions=("v100",), **ended)) == []
    # A list of another group names nothing that is gone.
    assert wrong(grouped, job("1", partitions=("p100",), **ended)) == []


def test_the_story_has_each_step_with_its_cost_and_gain_and_is_plain_data(site, store):
    here, after = moved(store)
    tale = diagnosed(Reader(site, store, here, progress=after), "1")
    happened = [event.what for event in tale.events]
    # The present job's submit time is that of its requeue, before the move was through.
    assert happened == [
        "request changed: Partition=k80,v100",
        "decided: 1 x k80 on k1",
        "decided: 1 x v100 on v1",
        "move: 1 x v100 on v1",
        "requeued",
        "started",
        "checkpoint",
        "last report",
    ]
    move = tale.events[3].detail
    assert move.startswith("requeued after 5 s; moved after 8 s; runs on 1 x v100 on v1; 8 s with")
    assert "5 -> 10 samples/s" in move and "paid back after 8 s" in move
    # Five decisions that differ in their figures only are one, with the time that it stood.
    assert tale.events[1].until_s - tale.events[1].time_s == 340
    assert any("optout 1" in line for line in tale.undo)
    assert json.loads(json.dumps(asdict(tale)))["state"] == "RUNNING"
    shown = printed(tale)
    assert "What happened" in shown and "(for 5 min 40 s)" in shown and "runs on 1 x v100" in shown


def restless(store, moves):
    """A job whose list was turned to and fro between its moves; refused once each time."""
    at = NOW - 80_000
    for number in range(moves):
        for step in range(6):
            at += 60
            store.decisions.record([Decision("1", at, f"1 x k80 on k{step % 2}", "by the test")])
            hint = store.begin("1", "hint", "sent", at, LISTED)
            store.end(hint, "done", at)
        refused = store.begin("1", "hint", "sent", at + 2, LISTED)
        store.end(refused, f"refused: odd {number}", at + 2)
        move = store.begin("1", "move", "asked", at + 3, {"gpus": {}, "restarts": number})
        store.end(move, "stopped", at + 5)


def test_the_story_leaves_nothing_out_and_stays_readable(site, store):
    restless(store, 40)
    tale = diagnosed(Reader(site, store, job("1")), "1")
    happened = [event.what.partition(":")[0] for event in tale.events]
    counts = {what: happened.count(what) for what in happened}
    # 240 decisions were kept up to the state file's own limit, which is reported.
    assert counts.pop("submitted", 1) == 1
    assert counts == {"request changed": 280, "stop for other jobs": 40, "decided": 200}
    (kept,) = tale.missing_history
    assert "are not kept: the state file holds the last 200" in kept
    assert json.loads(json.dumps(asdict(tale)))["events"][0]["number"] == 1

    whole, short = printed(tale, everything=True), printed(tale)
    assert all(whole.count(what) == number for what, number in counts.items())
    lines = short.splitlines()
    assert len(lines) < 180 and "Each of them: hadar doctor 1 --all" in short
    assert "--all" not in whole and "refused: odd 39" in short and "refused: odd 0" in short
    assert all(f" x {what}" in short for what in counts)


def test_small_steps_in_a_row_are_one_line_and_a_move_never_is(site, store):
    restless(store, 3)
    tale = diagnosed(Reader(site, store, job("1")), "1")
    assert tale.missing_history == ()
    short = printed(tale)
    assert short.count("stop for other jobs") == 3 and short.count("refused: odd") == 3
    # Of 12 in a row five stay.
    (line, *others) = [line for line in short.splitlines() if "... 7 more" in line]
    assert len(others) == 2 and "4 x decided, 3 x request changed" in line
    quiet = printed(replace(tale, events=tale.events[:6]))
    assert "more" not in quiet and "--all" not in quiet


def test_a_job_that_slurm_forgot_is_reported_from_the_journal_alone(site, store):
    moved(store)
    tale = diagnosed(Reader(site, store), "1")
    assert "not shown by Slurm" in tale.state and len(tale.events) == 4 and tale.problems == ()
    assert "sacct" in tale.now[0] and "No problems detected" in printed(tale)


def test_an_unknown_job_is_an_error_and_an_array_is_wrong_usage(site, store):
    with pytest.raises(UnknownJobError, match="the journal knows none"):
        diagnosed(Reader(site, store), "1")
    assert UnknownJobError.exit_code == 1
    tasks = [job(f"7_{task}", array_job_id=7) for task in (10, 9, 8, 1, 2, 3)]
    says = r"is an array; ask for one of its tasks: 7_1, 7_2, 7_3, 7_8, 7_9 and 1 more\. hadar st"
    with pytest.raises(UsageError, match=says):
        diagnosed(Reader(site, store, *tasks), "7")


def test_what_comes_next_is_reported_with_its_time(site, store):
    waits = diagnosed(Reader(site, store, job("1")), "1")
    assert waits.next == ()
    due = diagnosed(Reader(site, store, job("1", start_s=NOW + 90)), "1")
    assert due.next[-1].startswith("Slurm expects to start it at ")
    record = merge("", Steering({"k80": 1}, {"k1": {"k80": 1}}, time=NOW - 5))
    on_its_way = job("1", restarts=1, admin_comment=record)
    (next_,) = diagnosed(Reader(site, store, on_its_way), "1").next[-1:]
    assert next_.startswith("Slurm starts it on 1 x k80 on k1 when that is free; ")
    assert "within 120 s it may start anywhere" in next_
    back = diagnosed(Reader(site, store, job("1", not_before_s=NOW + 30)), "1")
    assert back.next == (), "no move of ours waits for that"
    later = diagnosed(Reader(site, store, job("1", eligible_s=NOW + 90)), "1")
    assert later.next[-1].startswith("Slurm delays it until ")
    entry = store.begin("1", "move", "asked", NOW - 5, {"gpus": {"v100": 1}, "restarts": 0})
    here = running("1", HERE)
    asked = diagnosed(Reader(site, store, here, progress=report()), "1")
    assert any("does not within 120 s it stays" in line for line in asked.next)
    store.advance(entry, "requeued", NOW - 2)
    sent = diagnosed(Reader(site, store, job("1", restarts=1)), "1")
    assert any("without a tick Slurm starts it" in line for line in sent.next)
    late = diagnosed(Reader(site, store, job("1", not_before_s=NOW + 30)), "1")
    assert any("(moving.after_return_s)" in line for line in late.next)
    assert not any("after_return_s" in line for line in (*waits.next, *sent.next))
    over = job("1", JobState.FINISHED, slurm_state="COMPLETED")
    assert diagnosed(Reader(site, store, over), "1").next == ()


def test_how_to_undo_it_by_hand_is_reported_with_the_shell_in_mind(site, store):
    ours = merge("", Steering({"k80": 1}, time=NOW, was={"Features": "a|b; rm x"}))
    waits = diagnosed(Reader(site, store, job("1", admin_comment=ours)), "1")
    # A begin time would clear the age of a job that waits.
    assert waits.undo[-1] == "By hand: scontrol update JobId=1 'Features=a|b; rm x'"
    runs = diagnosed(
        Reader(site, store, running("1", HERE, admin_comment=ours), progress=report()), "1"
    )
    assert "scontrol requeue 1, which ends this attempt; " in runs.undo[-1]
    assert runs.undo[-1].endswith("'Features=a|b; rm x' StartTime=now")


def test_what_was_changed_is_reported_with_what_was_asked_for(site, store):
    ours = merge("", Steering(time=NOW, was={"Partition": "gpu"}))
    listed = job("1", admin_comment=ours, partitions=("v100", "k80"))
    tale = diagnosed(Reader(site, store, listed), "1")
    assert ("Changed", "Partition: v100,k80 (asked for: gpu)") in tale.facts
    assert "Partition: v100,k80 (asked for: gpu)" in printed(tale)
    own = diagnosed(Reader(site, store, job("1")), "1")
    assert "Changed" not in dict(own.facts)


def test_an_owner_learns_of_own_jobs_and_of_no_other(site):
    class Cluster:
        slurm_version = (24, 11, 5)

        def __init__(self, *jobs):
            self._seen = observation(list(jobs))

        def read_jobs(self, *_):
            return list(self._seen.jobs.values())

        def read_nodes(self):
            return list(self._seen.nodes.values())

        def read_partitions(self):
            return list(self._seen.partitions.values())

        def read_reservations(self):
            return []

    # Without site.controller_user the owner of the state folder is the controller's user.
    folder = site.site.exchange_dir.parent / "state"
    folder.mkdir(mode=0o700)
    site = site.model_copy(update={"site": site.site.model_copy(update={"state_dir": folder})})
    write_plan(site.site.exchange_dir, JobPlan("1", gpus={"k80": 1}, reason="waits for a k80"))
    mine = job_report.of_owner(site, as_cluster(Cluster(job("1", uid=ME))), "1", NOW)
    assert mine.now[-1] == "the controller said: waits for a k80"
    assert dict(mine.facts)["Source"].startswith("Slurm and the job's own files")
    assert job_report.of_owner(site, as_cluster(Cluster(job("1", uid=ME + 1))), "1", NOW) is None
    assert job_report.of_owner(site, as_cluster(Cluster(ordinary("9"))), "1", NOW) is None


def test_a_hostile_name_stays_one_line_of_text(site, store):
    evil = job("1", uid=ME, name="x\n[red]PROBLEM\x1b[2J\u202e$(id)", slurm_state="PENDING")
    tale = diagnosed(Reader(site, store, evil), "1")
    shown = printed(tale)
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "x [red]PROBLEM" in shown and not any(
        line.startswith("[red]") for line in shown.splitlines()
    )


def signalled(store, outcome=None, **details):
    said = {"gpus": {"v100": 1}, "restarts": 0, "habit": "signal", "grace_s": 60.0, **details}
    entry = store.begin("1", "move", "asked", NOW - 400, said)
    if outcome is not None:
        store.end(entry, outcome, NOW - 330)


def entries_of(store):
    return tuple(reversed(store.history("1")))


SAVES = Declaration(types=("any",), checkpoint="signal", signal="B:USR1@60")
GAVE_UP = "the job did not save and leave within 61 s of its signal and stays where it is"


def test_a_job_that_requeued_itself_late_is_reported(site, store):
    """Its shell ran the trap when the training in front of it had ended."""
    signalled(store, GAVE_UP)
    again = job("1", declaration=SAVES, restarts=1, submit_s=NOW - 100)
    waits = wrong(site, again, entries=tuple(store.history("1")))
    assert "requeued itself late, 300 s after its signal (USR1)" in waits[0].what
    assert "allows 60 s" in waits[0].what and "with & and wait" in waits[0].cures[0]
    assert action_outcomes.reconcile(store, observation([again]), 120.0) == ["1"]
    assert action_outcomes.reconcile(store, observation([again]), 120.0) == []
    here = running("1", HERE, declaration=SAVES, restarts=1, submit_s=NOW - 100)
    assert lines(wrong(site, here, entries=tuple(store.history("1")))) == lines(waits)
    # Another restart since is not of this signal.
    later = replace(here, restarts=2)
    (entry,) = store.history("1")
    others = lines(wrong(site, later, entries=(replace(entry, shown=""),)))
    assert not any("late" in one for one in others)


@pytest.mark.parametrize(
    ("outcome", "after_s", "late"),
    [
        (None, 0, False),
        (None, 60, False),
        (None, 61, True),
        ("the job has ended (CANCELLED by 1)", 9, False),
        ("the job has ended (CANCELLED by 1)", 70, True),
    ],
)
def test_a_job_is_late_only_after_what_its_signal_allows(site, store, outcome, after_s, late):
    """A move is under way until the tick after its job requeued itself, or was cancelled then."""
    signalled(store, outcome)
    again = job("1", declaration=SAVES, restarts=1, submit_s=NOW - 400 + after_s)
    if outcome is not None:
        again = replace(again, state=JobState.FINISHED, slurm_state="CANCELLED by 1")
    found = lines(wrong(site, again, entries=entries_of(store)))
    assert [one for one in found if "late" in one] == (found if late else [])


def test_what_a_later_move_did_is_not_taken_for_a_late_requeue(site, store):
    signalled(store, GAVE_UP)
    signalled(store, "moved")
    again = job("1", declaration=SAVES, restarts=1, submit_s=NOW - 100)
    assert action_outcomes.reconcile(store, observation([again]), 120.0) == []
    assert not any("late" in one for one in lines(wrong(site, again, entries=entries_of(store))))


@pytest.mark.parametrize("outcome", ["the signal was refused: no", "the plan cannot be written"])
def test_a_signal_that_was_not_sent_ended_nothing(site, store, outcome):
    signalled(store, outcome)
    ended = running("1", HERE, declaration=SAVES, end_s=NOW - 398)
    ended = replace(ended, state=JobState.FINISHED, slurm_state="FAILED")
    assert wrong(site, ended, entries=entries_of(store)) == []


@pytest.mark.parametrize(
    ("state", "code", "after", "expected"),
    [
        ("FAILED", 0, 2, True),
        ("FAILED", 1, 61, True),
        ("COMPLETED", 0, 2, True),
        ("COMPLETED", 0, 300, False),
        ("TIMEOUT", 0, 2, False),
        ("CANCELLED", 0, 2, False),
        ("FAILED", 85, 2, False),
    ],
)
def test_a_signal_that_ended_the_job_is_reported(site, store, state, code, after, expected):
    signalled(store, f"the job has ended ({state})")
    declared = replace(SAVES, checkpoint_exit_code=85)
    ended = running("1", HERE, declaration=declared, end_s=NOW - 400 + after, exit_code=code)
    ended = replace(ended, state=JobState.FINISHED, slurm_state=state)
    found = wrong(site, ended, entries=tuple(store.history("1")))
    assert any("signal may have ended it" in one.what for one in found) == expected
    if expected:
        assert len(found) == 1 and f"({state})" in found[0].what
        assert "scontrol requeue" in found[0].cures[0]
    if code == 85:
        (one,) = found
        assert "it saved when it was asked to move" in one.what and "requeues it" in one.cures[0]


@pytest.mark.parametrize(
    ("said", "ran_s", "says", "cure"),
    [
        (None, 90, "no report of a watcher was found", "python -m slurm_hadar.runtime.watch &"),
        (
            report(checkpoint=None),
            90,
            "no whole checkpoint at /x/1/ck-*.pt: no file matched",
            "ls -l /x/1/ck-*.pt",
        ),
        (report(), 90, "", ""),
        (report(checkpoint=None, restarts=5), 90, "", ""),
        (None, 50, "", ""),
    ],
)
def test_an_ended_job_whose_checkpoints_were_never_seen_is_reported(site, said, ran_s, says, cure):
    declared = Declaration(("m"), checkpoint="watch:/x/%j/ck-*.pt")
    times = {"start_s": NOW - 100, "end_s": NOW - 100 + ran_s}
    ended = job("1", JobState.FINISHED, slurm_state="COMPLETED", declaration=declared, **times)
    found = wrong(site, ended, progress=said)
    assert [says in one.what for one in found] == ([True] if says else [])
    assert cure in "".join(cure for one in found for cure in one.cures)


@pytest.mark.parametrize(
    ("said", "says", "cure"),
    [
        (None, "no report of a watcher", "python -m slurm_hadar.runtime.watch &"),
        (report(restarts=5), "no report of a watcher", "slurm_hadar.runtime.watch"),
        (report(time=NOW - 90), "has not reported for 1 min 30 s", "slurm_hadar.runtime.watch"),
        (report(checkpoint=None), "no whole checkpoint at /x/1/ck-*.pt", "ls -l /x/1/ck-*.pt"),
        (report(checkpoint=None, whole_s=NOW - 400), "no whole checkpoint", "ls -l"),
        (report(checkpoint=None, whole_s=NOW - 8), "", ""),
        (report(checkpoint=Saved(0, NOW - 9000, 1.0)), "2 h 30 min old", "ls -l"),
        (report(), "", ""),
    ],
)
def test_a_watcher_that_is_missing_or_sees_nothing_is_reported(site, said, says, cure):
    declared = Declaration(("m"), checkpoint="watch:/x/%j/ck-*.pt")
    here = running("1", HERE, start_s=NOW - 400, declaration=declared)
    found = wrong(site, here, progress=said)
    assert bool(found) == bool(says)
    if says:
        assert says in found[0].what and cure in " ".join(found[0].cures)
    assert wrong(site, replace(here, start_s=NOW - 30), progress=None) == []


def test_a_job_that_saves_all_the_time_is_told_to_save_less_often(site):
    declared = Declaration(("m"), checkpoint="watch:/x/%j/ck-*.pt")
    here = running("1", HERE, start_s=NOW - 400, declaration=declared)
    (found,) = wrong(site, here, progress=report(checkpoint=None))
    reason = why_unknown(here, report(checkpoint=None), NOW)
    for shown in (" ".join(found.cures), reason):
        assert f"changed for {STABLE_S:.0f} s" in shown and "save less often" in shown


def test_of_a_checkpoint_that_changes_it_is_not_said_that_there_is_none():
    """A watcher counts one that was just renamed into its place as whole 3 s later."""
    declared = Declaration(("m"), checkpoint="watch:/x/ck-*.pt")
    here = running("1", HERE, start_s=NOW - 400, declaration=declared)
    reason = why_unknown(here, report(checkpoint=None, whole_s=NOW - 4), NOW)
    assert "changed since its watcher saw it whole, 4 s ago" in reason
    assert f"nothing has changed for {STABLE_S:.0f} s" in reason and "none" not in reason


def test_the_time_that_the_owner_declared_is_said(site, store):
    signalled(store)
    here = running("1", HERE, declaration=SAVES)
    tale = diagnosed(Reader(site, store, here), "1")
    assert "does not within 60 s" in printed(tale) and "may take 60 s" in printed(tale)


def test_a_signal_that_ended_a_job_that_slurm_forgot_is_reported(site, store):
    signalled(store, "the job has ended (FAILED)")
    (found,) = problems(known(site, entries=entries_of(store)))
    assert "may have ended it" in found.what and "70 s after its signal" in found.what
    ended = replace(entries_of(store)[0], outcome="the job has ended (CANCELLED)")
    assert list(problems(known(site, entries=(ended,)))) == []


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_a_job_that_its_owner_opted_out_has_no_problem(site, store, state):
    one = job("1", declaration=Declaration(off=True), held=state is JobState.PENDING)
    if state is JobState.RUNNING:
        one = running("1", HERE, declaration=Declaration(off=True))
    tale = diagnosed(Reader(site, store, one), "1")
    assert tale.problems == () and tale.next == ()
    assert tale.now[1].startswith("its owner opted it out") and "off=no" in tale.now[1]


def test_the_cure_of_an_opt_out_names_what_is_declared_anew(site, store):
    """``hadar optout`` keeps nothing else of a declaration, ``hadar set JOB off=yes`` all of it."""

    def cure(declared):
        tale = diagnosed(Reader(site, store, job("1", declaration=declared)), "1")
        return tale.now[1].partition("to opt in: ")[2]

    assert cure(CHECKED.left_alone()).startswith("hadar set 1 off=no KEY=VALUE ... with all")
    assert cure(replace(CHECKED, off=True)) == "hadar set 1 off=no"


def test_what_its_owner_wished_is_a_fact_and_no_problem(site, store):
    pinned = running("1", HERE, declaration=replace(CHECKED, pin=True))
    tale = diagnosed(Reader(site, store, pinned, progress=report()), "1")
    assert not any("pin" in one.what for one in tale.problems)
    assert tale.now[-1].endswith("pinned it to its place; to let it move: hadar set 1 pin=no")
    later = job("1", eligible_s=NOW + 90)
    _, excluded = schedulable_jobs(observation([later]), CONFIG, {})
    decided = Decision("1", NOW - 5, "not steered", excluded["1"])
    assert "begin time" in excluded["1"] and wrong(site, later, last=decided) == []
