"""Moves of jobs that checkpoint themselves: what the next step is, from what is seen."""

from dataclasses import replace

import pytest
from hand_made import NOW, as_cluster, config, decide, job, look, observation, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, ask_to_save
from slurm_hadar.controller.actuation.move_steps import (
    NOT_SAVED,
    MoveStep,
    MoveTimes,
    OpenMove,
    decide_move,
)
from slurm_hadar.controller.actuation.repair import resume_saved
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.waiting_on_others import dependents
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.movability import explained
from slurm_hadar.domain.declaration import parse
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.progress import Progress, Saved
from slurm_hadar.slurm.records import Preemption
from slurm_hadar.slurm.traffic import Traffic

TIMES = MoveTimes(ack_wait_s=120.0, after_return_s=40.0)
K80 = {"k1": {"k80": 1}}


def declared(*words):
    return parse(("types=any", *words), "here")


def runs(*words, started=NOW - 1000, **more):
    return running("1", K80, declaration=declared(*words), start_s=started, **more)


def report(saved=None, restarts=0, written=NOW):
    checkpoint = None if saved is None else Saved(0, saved, 0.0)
    return Progress(
        "1", written, restarts, "k1", 1, False, NOW, "", 0, 0.0, 0.0, 0, 0, checkpoint=checkpoint
    )


def asked(habit, at=NOW - 10, **details):
    said = {"gpus": {"v100": 1}, "restarts": 0, "save": "abc", "habit": habit, **details}
    return Entry(1, "1", "move", "asked", at, at, said, None)


def step(entry, shown, progress=None, now=NOW):
    return decide_move(OpenMove(entry, shown, progress, {"k80": 1}), now, TIMES)


def test_a_job_that_may_be_restarted_is_while_little_is_lost():
    young = runs("checkpoint=restart", "lose=600", started=NOW - 500)
    found = step(asked("restart"), young)
    assert found.step is MoveStep.REQUEUE and found.until == NOW + 100
    old = replace(young, start_s=NOW - 601)
    found = step(asked("restart"), old)
    assert found.step is MoveStep.STAY and "would cost 601 s" in found.outcome


def test_a_watched_job_is_requeued_right_after_a_checkpoint_only():
    shown = runs("checkpoint=watch:/x", "lose=60")
    assert step(asked("watch"), shown, report(NOW - 20)).step is MoveStep.REQUEUE
    for progress in (
        None,
        report(),
        report(NOW - 61),
        report(NOW - 20, restarts=1),
        report(NOW - 20, written=NOW - 61),
    ):
        assert step(asked("watch"), shown, progress).step is MoveStep.STAY


def test_a_job_that_is_signalled_is_never_requeued_by_the_controller():
    shown = runs("checkpoint=signal")
    assert step(asked("signal"), shown).step is MoveStep.WAIT
    late = step(asked("signal", at=NOW - 121), shown)
    assert late.step is MoveStep.STAY and late.outcome.startswith(NOT_SAVED)
    # As long as it takes, by its owner's word.
    assert step(asked("signal", at=NOW - 121, grace_s=300.0), shown).step is MoveStep.WAIT
    assert step(asked("signal", at=NOW - 61, grace_s=60.0), shown).step is MoveStep.STAY
    # It requeued itself: it is sent on as any other.
    waits = job("1", declaration=shown.declaration, restarts=1, submit_s=NOW - 5)
    assert step(asked("signal"), waits).step is MoveStep.WAIT
    assert step(asked("signal"), replace(waits, submit_s=NOW - 41)).step is MoveStep.RELEASE


def test_a_job_that_has_finished_stays_finished():
    for words in ("checkpoint=signal", "checkpoint=restart", "checkpoint=watch:/x"):
        done = runs(words, "lose=1e6")
        done = replace(done, state=JobState.FINISHED, slurm_state="COMPLETED")
        found = step(asked(words.partition("=")[2].partition(":")[0]), done, report(NOW))
        assert found.step is MoveStep.END


def test_what_the_owner_declares_meanwhile_counts():
    for habit in ("signal", "restart", "watch", "yes"):
        shown = runs("checkpoint=no")
        if habit != "yes":
            assert step(asked(habit), shown).step is MoveStep.STAY
    shown = runs("checkpoint=restart", "lose=1e6")
    assert step(asked("yes"), shown).step is MoveStep.STAY


@given(
    habit=st.sampled_from(["restart", "watch"]),
    started=st.floats(0, 2 * NOW),
    saved=st.none() | st.floats(0, 2 * NOW),
    lose=st.floats(0, 1e6),
)
def test_no_more_than_declared_is_ever_lost(habit, started, saved, lose):
    word = "checkpoint=restart" if habit == "restart" else "checkpoint=watch:/x"
    shown = runs(word, f"lose={lose!r}", started=started)
    found = step(asked(habit), shown, report(saved))
    since = started if habit == "restart" or saved is None else max(started, saved)
    if found.step is MoveStep.REQUEUE:
        assert habit == "restart" or saved is not None
        assert (NOW - since <= lose and found.until - since <= lose + 1e-6) or since > NOW


@pytest.mark.parametrize(
    ("words", "progress", "movable"),
    [
        (("checkpoint=no",), None, False),
        (("checkpoint=restart",), None, False),
        (("checkpoint=restart", "lose=900"), None, False),
        (("checkpoint=restart", "lose=1100"), None, True),
        (("checkpoint=restart", "lose=1100", "pin=yes"), None, False),
        (("checkpoint=signal",), None, True),
        (("checkpoint=signal", "restart_cost=1001"), None, False),
        (("checkpoint=watch:/x",), None, False),
        (("checkpoint=watch:/x",), report(NOW - 100), True),
        (("checkpoint=watch:/x",), report(NOW - 130), False),
        (("checkpoint=watch:/x", "lose=200"), report(NOW - 130), True),
    ],
)
def test_what_a_policy_may_move(words, progress, movable):
    shown = runs(*words)
    view = look(observation([shown], progress={"1": progress} if progress else {})).view
    assert view.jobs.movable.tolist() == [movable]


def test_a_move_costs_the_work_that_is_done_again():
    cost = {
        word: look(observation([runs(word, "lose=1e6", "restart_cost=7")], progress=progress)).view
        for word, progress in {
            "checkpoint=restart": {},
            "checkpoint=watch:/x": {"1": report(NOW - 50)},
            "checkpoint=signal": {},
        }.items()
    }
    assert [view.jobs.restart_s[0] for view in cost.values()] == [1007.0, 57.0, 7.0]


def test_a_job_to_be_restarted_need_not_have_run_long():
    site = config().model_copy(
        update={"guards": config().guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    shown = runs("checkpoint=restart", "lose=500", started=NOW - 100)
    assert look(observation([shown]), site).view.jobs.movable.tolist() == [True]
    moved = ControllerHistory(last_moves={"1": NOW - 100})
    assert look(observation([shown]), site, moved).view.jobs.movable.tolist() == [False]


class Slurm:
    """Takes signals and requeues, and shows one job."""

    def __init__(self, shown=None):
        self.signals, self.requeued, self.shown = [], [], shown
        self.traffic = Traffic(lambda: 100.0)

    def signal(self, *words):
        self.signals.append(words)

    def read_jobs(self, ids):
        return [self.shown]

    def requeue_ended(self, id_, stays_held=False):
        self.requeued.append(f"{id_} held" if stays_held else id_)


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nexchange_dir = "{tmp_path}/exchange"\n')
    store = Store.open(tmp_path / "state")
    yield ActionContext(as_cluster(Slurm()), store, site, clock=lambda: NOW)
    store.close()


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (("checkpoint=signal", "signal=B:USR1@60"), [("1", "USR1", "batch")]),
        (("checkpoint=signal", "signal=F:USR1"), [("1", "USR1", "full")]),
        (("checkpoint=signal", "signal=USR1"), [("1", "USR1", "steps")]),
        (("checkpoint=restart", "lose=9"), []),
        (("checkpoint=watch:/x",), []),
        (("checkpoint=yes",), []),
    ],
)
def test_who_gets_which_signal(context, words, sent):
    action = Action(Kind.MOVE, runs(*words), {}, Steering(gpus={"v100": 1}), "faster")
    # Of a training that is no step, where the runtime polls its plan.
    assert ask_to_save(context, action, False, NOW).messages == ()
    assert context.cluster.signals == sent
    (entry,) = context.store.open_entries()
    assert entry.details["habit"] == action.job.declaration.habit
    assert entry.details.get("grace_s") == (60.0 if "signal=B:USR1@60" in words else None)
    assert entry.details.get("exit_code") == (0 if "checkpoint=signal" in words else None)


ENDED = runs("checkpoint=signal", "checkpoint_exit_code=85")
ENDED = replace(ENDED, state=JobState.FINISHED, slurm_state="FAILED", exit_code=85, end_s=NOW)


def test_a_job_that_said_that_it_saved_is_started_again_once(context):
    context.cluster.shown = ENDED
    assert step(asked("signal"), ENDED).step is MoveStep.WAIT
    context.store.begin("1", "move", "asked", NOW - 10, asked("signal").details)
    assert "requeued" in resume_saved(context, observation([ENDED]))[0]
    assert context.cluster.requeued == ["1"]
    assert resume_saved(context, observation([ENDED])) == [] and context.cluster.requeued == ["1"]


@pytest.mark.parametrize(
    ("code", "waited_s", "requeued"), [(85, 10, True), (85, 300, False), (84, 10, False)]
)
def test_one_that_its_owner_opted_out_after_the_signal_is_started_again(
    context, code, waited_s, requeued
):
    """``hadar optout`` leaves off=yes alone of the declaration: the job would be lost."""
    shown = replace(ENDED, declaration=declared("off=yes"), exit_code=code)
    context.cluster.shown = shown
    details = {**asked("signal").details, "exit_code": 85, "grace_s": 60.0}
    context.store.begin("1", "move", "asked", NOW - waited_s, details)
    assert bool(resume_saved(context, observation([shown]))) is requeued
    assert context.cluster.requeued == (["1"] if requeued else [])


@pytest.mark.parametrize(
    ("shown_as", "requeued"),
    [("JobHeldUser", "1 held"), (None, "1 held"), ("JobHeldAdmin", "1"), ("released", "1")],
)
def test_one_that_was_held_while_it_saved_stays_its_owners_to_release(context, shown_as, requeued):
    """Slurm forgets at the end of a job who held it: a plain requeue makes any hold an admin's."""
    entry = context.store.begin("1", "move", "asked", NOW - 10, asked("signal").details)
    here = runs("checkpoint=signal", "checkpoint_exit_code=85")
    for reason in ("JobHeldAdmin", shown_as) if shown_as == "JobHeldUser" else (shown_as,):
        if reason is not None:
            priority = 100 if reason == "released" else 0
            advance(context, {"1": replace(here, priority=priority, reason=reason)}, {}, NOW)
    if shown_as == "JobHeldAdmin":
        # It is known also of a move that has been given up.
        context.store.end(entry, "the job did not save", NOW)
    ended = replace(ENDED, priority=100 if shown_as == "released" else 0, reason="NonZeroExitCode")
    context.cluster.shown = ended
    assert "requeued" in resume_saved(context, observation([ended]))[0]
    assert context.cluster.requeued == [requeued]


@pytest.mark.parametrize(("used", "requeued"), [(49, True), (50, False)])
def test_it_does_not_wait_for_half_of_the_minutes_requests(context, used, requeued):
    """Slurm forgets a job that has ended, and other moves may use that half for long."""
    context.cluster.shown, context.cluster.traffic.limit = ENDED, 60
    context.cluster.traffic.remember([99.0] * used)
    context.store.begin("1", "move", "asked", NOW - 10, asked("signal").details)
    assert bool(resume_saved(context, observation([ENDED]))) is requeued


@pytest.mark.parametrize(
    "shown",
    [
        replace(ENDED, slurm_state="COMPLETED", exit_code=0),
        replace(ENDED, exit_code=1),
        replace(ENDED, slurm_state="CANCELLED"),
        replace(ENDED, slurm_state="TIMEOUT"),
        replace(ENDED, restarts=1),
        replace(ENDED, end_s=NOW - 60),
        replace(ENDED, declaration=declared("checkpoint=signal")),
        replace(ENDED, declaration=declared("off=yes", "checkpoint_exit_code=85")),
        replace(ENDED, requeue=False),
    ],
)
def test_no_other_end_is_undone(context, shown):
    context.cluster.shown = shown
    context.store.begin("1", "move", "asked", NOW - 10, asked("signal").details)
    resume_saved(context, observation([shown]))
    assert context.cluster.requeued == []


def test_a_job_that_nobody_asked_keeps_its_end(context):
    context.cluster.shown = ENDED
    assert resume_saved(context, observation([ENDED])) == []
    context.store.begin("1", "move", "asked", NOW - 10, asked("yes").details)
    assert resume_saved(context, observation([ENDED])) == []


def test_what_slurm_shows_at_the_last_look_counts(context):
    context.cluster.shown = replace(ENDED, slurm_state="COMPLETED", exit_code=0, restarts=1)
    context.store.begin("1", "move", "asked", NOW - 10, asked("signal").details)
    assert "not carried out" in resume_saved(context, observation([ENDED]))[0]
    assert context.cluster.requeued == []


CRASHED = replace(runs("checkpoint=yes"), state=JobState.FINISHED, end_s=NOW)
CRASHED = replace(CRASHED, slurm_state="FAILED", exit_code=143)


def begun(context, phase="requeued", outcome=None):
    entry = context.store.begin("1", "move", "asked", NOW - 10, asked("yes").details)
    if phase != "asked":
        context.store.advance(entry, phase, NOW - 5)
    if outcome is not None:
        context.store.end(entry, outcome, NOW - 1)


@pytest.mark.parametrize("outcome", [None, "the job has ended (FAILED)", "moved"])
@pytest.mark.parametrize("code", [143, 0])
def test_a_requeue_that_slurmctld_forgot_in_a_crash_is_sent_again_once(context, code, outcome):
    """It ended the job at once, and died before it had saved that the job waits again."""
    context.cluster.shown = shown = replace(CRASHED, exit_code=code)
    begun(context, outcome=outcome)
    assert "requeued" in resume_saved(context, observation([shown]))[0]
    assert resume_saved(context, observation([shown])) == [] and context.cluster.requeued == ["1"]


@pytest.mark.parametrize(
    ("more", "phase", "outcome"),
    [
        ({"exit_code": 1}, "requeued", None),
        ({"slurm_state": "COMPLETED", "exit_code": 0}, "requeued", None),
        ({"slurm_state": "CANCELLED"}, "requeued", None),
        ({"slurm_state": "TIMEOUT", "exit_code": 0}, "requeued", None),
        ({"restarts": 1}, "requeued", None),
        ({"requeue": False}, "requeued", None),
        ({"declaration": declared("off=yes")}, "requeued", None),
        ({}, "asked", None),
        ({}, "requeued", "it stays where it is: these GPUs are not free yet"),
    ],
)
def test_an_end_that_no_requeue_of_ours_explains_is_left(context, more, phase, outcome):
    context.cluster.shown = shown = replace(CRASHED, **more)
    begun(context, phase, outcome)
    assert resume_saved(context, observation([shown])) == [] and context.cluster.requeued == []


@pytest.mark.parametrize(
    ("words", "more", "why"),
    [
        (("checkpoint=no",), {}, "it declares no checkpoint"),
        (("checkpoint=signal", "pin=yes"), {}, "it is pinned"),
        (("checkpoint=signal",), {"requeue": False}, "--no-requeue"),
        (("checkpoint=signal", "restart_cost=1001"), {}, "started less than 1001 s ago"),
        (("checkpoint=restart", "lose=900"), {}, "more work than the 900 s"),
        # Where Slurm might start it later, for a shorter time or not at all.
        (("checkpoint=signal",), {"priority": 0}, "it is held"),
        (("checkpoint=signal",), {"deadline_s": NOW + 9000}, "it has a --deadline"),
        (("checkpoint=signal",), {"least_limit_s": 1200.0}, "it has a --time-min"),
    ],
)
def test_a_job_that_cannot_be_moved_now_says_why(words, more, why):
    shown = runs(*words, **more)
    means = decide(observation([shown]), {"1": {"v100": 1}})
    assert means.deferred["1"].startswith("it cannot be moved now: ") and why in means.deferred["1"]


@pytest.mark.parametrize(
    ("preempts", "partition", "stays"),
    [
        ("all", {"preempt_mode": "OFF"}, True),
        ("none", {"preempt_mode": "REQUEUE"}, False),
        ("partitions", {"preempt_mode": "REQUEUE"}, True),
        ("partitions", {"preempt_mode": "OFF"}, False),
        ("partitions", {"preempt_mode": "REQUEUE", "priority_tier": 2}, False),
    ],
)
def test_a_job_stays_that_would_be_preempted_sooner_after_a_move(preempts, partition, stays):
    there = [
        Partition("gpu", ("v1",), **partition),
        Partition("high", ("v1", "v2"), priority_tier=2),
    ]
    seen = observation([runs("checkpoint=signal")], partitions=there)
    for rule, why in (
        (Preemption(preempts, youngest_first=True), "preempt_youngest_first"),
        (Preemption(preempts, exempts=True), "PreemptExemptTime"),
        (Preemption(preempts), ""),
    ):
        found = decide(replace(seen, preemption=rule), {"1": {"v100": 1}}).deferred.get("1", "")
        assert (bool(why) and why in found) is (bool(why) and stays)


@pytest.mark.parametrize(
    ("preempts", "partition", "stays"),
    [
        ("partitions", {"preempt_mode": "CANCEL"}, True),
        ("partitions", {"preempt_mode": "REQUEUE"}, False),
        ("partitions", {"preempt_mode": "CANCEL", "priority_tier": 2}, False),
        ("none", {"preempt_mode": "CANCEL"}, False),
        # Nor does the PreemptMode of partitions count where QOS preempt.
        ("all", {"preempt_mode": "CANCEL"}, False),
    ],
)
def test_a_job_that_would_be_cancelled_for_a_job_of_a_higher_tier_stays(preempts, partition, stays):
    """A stranger's job was moved to a v100, which a job of a higher tier wanted next."""
    there = [
        Partition("gpu", ("v1",), **partition),
        Partition("high", ("v1", "v2"), priority_tier=2),
    ]
    seen = observation([runs("checkpoint=signal")], partitions=there)
    rule = Preemption(preempts)
    found = decide(replace(seen, preemption=rule), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("PreemptMode=CANCEL" in found) is stays


@pytest.mark.parametrize(("nodes", "stays"), [(("v1",), True), (("c1",), False), ((), False)])
def test_a_higher_tier_on_other_nodes_preempts_no_job_here(nodes, stays):
    low = Partition("gpu", ("v1", "v2"), preempt_mode="CANCEL")
    seen = observation(
        [runs("checkpoint=signal")], partitions=[low, Partition("cpu", nodes, priority_tier=9)]
    )
    rule = Preemption("partitions")
    found = decide(replace(seen, preemption=rule), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("PreemptMode=CANCEL" in found) is stays


@pytest.mark.parametrize(("above", "stays"), [("v1", True), ("c1", False)])
@pytest.mark.parametrize("known_from", ["declared", "listed", "changed"])
def test_a_higher_tier_over_another_type_of_its_group_keeps_it_too(above, stays, known_from):
    """A job on a k80, which no higher tier had, was moved to a v100, and cancelled there."""
    there = [
        Partition("gpu", ("v1", "v2", "k1"), preempt_mode="CANCEL"),
        Partition("v100", ("v1", "v2"), preempt_mode="CANCEL"),
        Partition("k80", ("k1",), preempt_mode="CANCEL"),
        Partition("high", (above,), priority_tier=2),
    ]
    shown = runs("checkpoint=signal", partitions=("k80",))
    if known_from == "declared":
        shown = replace(shown, declaration=replace(shown.declaration, partitions=("gpu",)))
    steered = {
        "declared": Steering(),
        "listed": Steering(listed=("k80", "v100")),
        "changed": Steering(was={"Partition": "k80,v100"}),
    }[known_from]
    seen = observation([shown], partitions=there)
    seen = replace(seen, preemption=Preemption("partitions"), steering={"1": steered})
    found = decide(seen, {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("PreemptMode=CANCEL" in found) is stays


@pytest.mark.parametrize(
    ("preempts", "of_all", "of_qos", "stays"),
    [
        ("all", False, frozenset({"normal"}), True),
        ("all", True, frozenset({"other"}), False),
        ("all", True, None, True),
        ("all", False, None, False),
        ("partitions", True, None, False),
        ("none", True, None, False),
    ],
)
def test_a_job_that_would_be_cancelled_for_a_job_of_another_qos_stays(
    preempts, of_all, of_qos, stays
):
    """One on a k80 was moved to a v100, which a job of another QOS wanted next."""
    rule = Preemption(preempts, cancels=of_all, cancels_qos=of_qos)
    seen = replace(observation([runs("checkpoint=signal", qos="normal")]), preemption=rule)
    found = decide(seen, {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("PreemptMode=CANCEL" in found) is stays


@pytest.mark.parametrize(
    ("of_all", "of_qos", "stays"),
    [
        (False, {"normal": True}, True),
        (False, {"other": True}, False),
        (True, {"normal": False}, False),
        (True, {"other": False}, True),
    ],
)
def test_the_preempt_exempt_time_of_a_qos_counts_before_that_of_all(of_all, of_qos, stays):
    rule = Preemption("all", exempts=of_all, exempts_qos=of_qos)
    seen = replace(observation([runs("checkpoint=signal", qos="normal")]), preemption=rule)
    found = decide(seen, {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("PreemptExemptTime" in found) is stays


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max_time_s": 3599.0}, "MaxTime of partition gpu"),
        ({"min_nodes": 2}, "MinNodes or MaxNodes of partition gpu"),
        ({"max_nodes": 0}, "MinNodes or MaxNodes of partition gpu"),
        ({"max_time_s": 3600.0, "min_nodes": 1, "max_nodes": 1}, ""),
        ({"allow_qos": ("special",)}, "partition gpu excludes its QOS normal"),
        ({"deny_qos": ("normal",)}, "partition gpu excludes its QOS normal"),
        # Slurm looks at the one that denies only without the one that allows.
        ({"allow_qos": ("normal",), "deny_qos": ("normal",)}, ""),
        ({"deny_accounts": ("phys",)}, "partition gpu excludes its account phys"),
        ({"deny_accounts": ("phys",), "allow_accounts": ("phys",)}, ""),
        ({"allow_accounts": ("science",)}, "partition gpu excludes its account phys"),
        ({"allow_accounts": ("science", "phys")}, ""),
        ({"allow_groups": ("no such group",)}, "takes only jobs of the groups no such group"),
        ({"reservation_required": True}, "ReqResv"),
        ({"root_only": True}, "RootOnly"),
        ({"max_cpus_per_node": 3}, "MaxCPUsPerNode of partition gpu"),
        ({"max_mem_per_node_mb": 8191.0}, "MaxMemPerNode of partition gpu"),
        ({"max_mem_per_cpu_mb": 2047.0}, "MaxMemPerCPU of partition gpu"),
        (
            {
                "max_cpus_per_node": 4,
                "max_mem_per_node_mb": 8192.0,
                "max_mem_per_cpu_mb": 2048.0,
            },
            "",
        ),
    ],
)
def test_a_job_stays_whose_partition_became_too_narrow_for_it(limits, why):
    """Slurm lets it run on, and would not start it again."""
    for memory in ({"mem_per_cpu_mb": 2048}, {"mem_per_node_mb": 8192}):
        said = {"time_limit_s": 3600.0, "qos": "normal", "account": "phys", "cpus": 4, **memory}
        shown = observation([runs("checkpoint=signal", **said)])
        tight = replace(shown.partitions["gpu"], **limits)
        shown = replace(shown, partitions={**shown.partitions, "gpu": tight})
        deferred = decide(shown, {"1": {"v100": 1}}).deferred.get("1", "")
        assert why in deferred and bool(deferred) == bool(why)


@pytest.mark.parametrize("reason", ["JobArrayTaskLimit", "Resources"])
def test_a_task_stays_while_others_of_its_array_wait_for_its_place(reason):
    shown = runs("checkpoint=signal", array_job_id=7)
    other = job("9", array_job_id=7, reason=reason, declaration=None)
    deferred = decide(observation([shown, other]), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("another task of its array" in deferred) == (reason == "JobArrayTaskLimit")


def test_the_reason_of_a_policy_says_why_a_job_stays():
    said = Plan({"1": Placement({"k80": 1}, reason="stays; it cannot be moved now")}, {})
    found = explained(said, {"1": "it is pinned"})
    assert found.placements["1"].reason == "stays; it cannot be moved now: it is pinned"
    site = config().model_copy(
        update={"guards": config().guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    shown, past = runs("checkpoint=signal", started=NOW - 100), ControllerHistory()
    assert "min_between_moves_s" in look(observation([shown]), site, past).staying["1"]


@pytest.mark.parametrize(
    ("dependency", "ends", "counts"),
    [
        ("afterok:1(unfulfilled)", True, False),
        ("afterany:5(unfulfilled):1(unfulfilled)", True, False),
        ("after:5+2(unfulfilled),afternotok:1(failed)", True, False),
        ("afterok:5(unfulfilled)?aftercorr:1(unfulfilled)", True, False),
        ("singleton(unfulfilled)", True, False),
        # As PySlurm has a singleton.
        ("", True, False),
        ("after:1+2(unfulfilled)", False, True),
        ("after:5(unfulfilled):1+2(unfulfilled)", False, True),
        ("after:1(unfulfilled)", False, False),
        ("afterok:11(unfulfilled)", False, False),
        ("afterok:1_1(unfulfilled)", False, False),
    ],
)
def test_no_move_misleads_a_job_that_depends_on_the_moved_one(dependency, ends, counts):
    """With checkpoint_exit_code Slurm shows a moving job as ended; after:JOB+N counts anew."""
    other = job("9", dependency=dependency, reason="Dependency", declaration=None)
    code = ("checkpoint=signal", "checkpoint_exit_code=85")
    for words, why in ((code, ends), (("checkpoint=signal",), False)):
        said = decide(observation([runs(*words), other]), {"1": {"v100": 1}}).deferred.get("1", "")
        assert ("job 9 depends on its end" in said) is why, said
        assert ("job 9 counts minutes from its start" in said) is counts
    elsewhere = replace(other, uid=4321)
    said = decide(observation([runs(*code), elsewhere]), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("depends on its end" in said) is (ends and "after" in dependency)


def test_a_dependency_on_an_array_is_one_on_each_of_its_tasks():
    task = runs("checkpoint=signal", "checkpoint_exit_code=85", array_job_id=84)
    task = replace(task, id="84_2", raw_id=86)
    for named in ("84_*", "84", "84_2", "86"):
        waits = job("9", dependency=f"afterok:{named}(unfulfilled)", reason="Dependency")
        assert dependents([waits, task]).on_end(task) == "9"
    waits = job("9", dependency="afterok:84_1(unfulfilled)", reason="Dependency")
    assert not dependents([waits, task]).on_end(task)


@pytest.mark.parametrize(
    ("reason", "other", "stays"),
    [
        ("QOSMaxGRESPerUser", {}, True),
        ("QOSMaxGRESPerUser", {"uid": 4321}, False),
        ("QOSMaxGRESPerUser", {"qos": "gold"}, False),
        ("QOSGrpGRES", {"uid": 4321}, True),
        ("QOSGrpGRES", {"uid": 4321, "qos": "gold"}, False),
        ("QOSMaxJobsPerAccount", {"uid": 4321}, True),
        ("QOSMaxGRESPerJob", {}, False),
        ("AssocGrpGRES", {"uid": 4321}, True),
        ("AssocGrpGRES", {"uid": 4321, "account": "chem"}, False),
        ("AssocMaxJobsLimit", {}, True),
        ("AssocGrpCPUMinutesLimit", {}, False),
        ("Resources", {}, False),
    ],
)
def test_no_job_leaves_its_share_of_a_limit_to_one_that_waits_for_it(reason, other, stays):
    """The other starts as soon as this one is requeued, and this one waits for the limit then."""
    whose = {"qos": "normal", "account": "phys"}
    mine = runs("checkpoint=signal", **whose)
    waits = job("9", reason=reason, declaration=None, **whose)
    waits = replace(waits, uid=mine.uid)
    waits = replace(waits, **other)
    said = decide(observation([mine, waits]), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("job 9 waits for a limit" in said) is stays, said


@pytest.mark.parametrize(
    ("words", "others", "stays"),
    [
        (("checkpoint=signal",), 1, True),
        (("checkpoint=signal",), 0, False),
        (("checkpoint=signal", "checkpoint_exit_code=85"), 1, False),
        (("checkpoint=restart", "lose=90000"), 1, False),
    ],
)
def test_no_task_is_asked_that_would_requeue_its_array(words, others, stays):
    """SLURM_JOB_ID of the last task is the array's: scontrol requeue of it ends all tasks."""
    last = replace(runs(*words, array_job_id=1), id="1")
    tasks = [running(f"1{n}", {"k2": {"k80": 1}}, array_job_id=1) for n in range(others)]
    said = decide(observation([last, *tasks]), {"1": {"v100": 1}}).deferred.get("1", "")
    assert ("would requeue all tasks" in said) is stays, said
