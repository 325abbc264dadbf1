"""Moves, taken from what is seen, where no word to Slurm is needed; and the telling of files."""

import json
import os
from dataclasses import asdict, replace

import pytest
from hand_made import NOW, config, job, node, observation, running

from slurm_hadar.controller.actuation import repair
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, ask_to_save
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.move_steps import MOVED, NOT_SAVED
from slurm_hadar.controller.actuation.running.moves import advance, destinations, follow_open_moves
from slurm_hadar.controller.actuation.running.poll_schedule import longest_s
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.exchange.plan_file import JobPlan, read_plan
from slurm_hadar.exchange.progress import Ack, Progress, places
from slurm_hadar.slurm.traffic import Paused, Traffic

TO_V100 = {
    "gpus": {"v100": 1},
    "nodes": {"v1": {"v100": 1}},
    "moves": 2,
    "was": {"Features": ""},
    "save": "abc",
    "restarts": 0,
    "fields": {"Features": "v100"},
}


@pytest.fixture
def context(tmp_path):
    """ActionContext that hold no cluster: whatever speaks to Slurm fails."""
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nexchange_dir = "{tmp_path}/exchange"\n[moving]\nack_wait_s = 120.0\n')
    store = Store.open(tmp_path / "state")
    yield ActionContext(None, store, site)
    store.close()


def advanced(context, *jobs, now=NOW):
    return advance(context, {j.id: j for j in jobs}, {}, now)


def begun(context, at=NOW - 10):
    return context.store.begin("1", "move", "asked", at, TO_V100)


def outcome(context):
    return context.store.history("1")[0].outcome


HERE = running("1", {"k1": {"k80": 1}})


def test_a_job_that_has_not_answered_yet_is_waited_for(context):
    begun(context)
    assert advanced(context, HERE).messages == () and outcome(context) is None
    assert destinations(context.store.open_entries()) == {"1": {"v1": {"v100": 1}}}


def test_a_job_that_does_not_answer_stays_and_is_reported(context):
    begun(context, at=NOW - 121)
    assert "stays where it is" in advanced(context, HERE).messages[0]
    plan = read_plan(context.config.site.exchange_dir, "1", (os.getuid(),))
    assert plan.save == "" and plan.gpus == {"k80": 1}


def report(written=NOW - 1, ack=None, restarts=0):
    return Progress("1", written, restarts, "k1", 1, False, NOW, "m", 1, 1.0, 60.0, 64, 1, ack=ack)


@pytest.mark.parametrize(
    ("shown", "says", "unanswered"),
    [
        # slurmctld hung for longer than the job trains on without an answer.
        (report(ack=Ack("abc", NOW - 113, 1)), "saved after 8 s, but was not requeued", False),
        (report(ack=Ack("abc", NOW + 3, 1)), "did not save within 120 s, but after 124 s", True),
        (report(), "did not save within 121 s", True),
        (report(ack=Ack("of another move", NOW, 1)), "did not save within 121 s", True),
        (None, "as far as its files show", True),
        (report(restarts=1, ack=Ack("abc", NOW, 1)), "as far as its files show", True),
        (report(written=NOW - 200), "as far as its files show", True),
    ],
)
def test_a_move_that_took_too_long_says_what_is_known(context, shown, says, unanswered):
    begun(context, at=NOW - 121)
    advance(context, {"1": HERE}, {"1": shown} if shown else {}, NOW)
    assert says in outcome(context) and outcome(context).endswith("stays where it is")
    assert context.store.counts_after("move", NOT_SAVED, MOVED) == ({"1": 1} if unanswered else {})


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (replace(HERE, state=JobState.FINISHED, slurm_state="COMPLETED"), "COMPLETED"),
        (replace(HERE, declaration=Declaration(off=True)), "no longer managed"),
        (job("1", restarts=1, declaration=None), "no longer managed"),
        (job("1", restarts=1, held=True, priority=0), "held while it moved"),
        (running("1", {"v1": {"v100": 1}}, restarts=1), "moved"),
        (running("1", {"k1": {"k80": 1}}, restarts=1), "started by itself"),
    ],
)
def test_a_move_ends_with_what_is_seen(context, shown, says):
    begun(context)
    assert says in advanced(context, shown).messages[0] and says in outcome(context)
    assert context.store.open_entries() == []


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.UNKNOWN, JobState.SUSPENDED])
def test_a_job_between_two_states_is_waited_for(context, state):
    begun(context)
    assert advanced(context, replace(HERE, state=state)).messages == ()
    assert advanced(context, replace(HERE, state=state, restarts=1)).messages == ()
    assert outcome(context) is None


def test_a_job_out_of_sight_is_unknown_for_long_and_then_given_up(context):
    begun(context)
    assert advanced(context).messages == () and outcome(context) is None
    assert "does not show the job" in advanced(context, now=NOW + 4000).messages[0]


def test_what_was_planned_is_read_back_from_the_journal(context):
    begun(context)
    (entry,) = context.store.open_entries()
    ours = steering_of(entry.details, NOW)
    assert ours == Steering({"v100": 1}, {"v1": {"v100": 1}}, NOW, moves=2, was={"Features": ""})
    assert steering_of("nonsense", NOW) == Steering(time=NOW)


# -- saying it ---------------------------------------------------------------------------------


def test_a_sandbox_writes_into_the_job_beside_others(context):
    site = context.config.site.model_copy(update={"rights": "sandbox"})
    context = replace(context, config=context.config.model_copy(update={"site": site}))
    ours = Steering({"k80": 1}, time=NOW)
    update = context.update(job(admin_comment="seen by bob"), {"Features": "k80"}, ours)
    assert update.fields["AdminComment"].startswith("seen by bob [hadarplan")
    assert decode(update.fields["AdminComment"]) == ours


@pytest.mark.parametrize("rights", ["user", "operator"])
def test_who_may_not_write_there_keeps_it_in_his_own_file(context, rights):
    site = context.config.site.model_copy(update={"rights": rights})
    own = replace(context, config=context.config.model_copy(update={"site": site}))
    ours = Steering({"k80": 1}, time=NOW, was={"Features": "a b"})
    assert own.update(job(), {"Features": "k80"}, ours).fields == {"Features": "k80"}
    assert decode(own.store.steerings(["1"])["1"]) == ours


def test_a_plan_file_that_cannot_be_written_is_a_complaint_and_no_more(context):
    assert context.write_plan(job(), JobPlan("1", gpus={"k80": 1})) is None
    folder = context.config.site.exchange_dir
    assert json.loads((folder / "plan.1.json").read_text())["gpus"] == {"k80": 1}
    (folder / "plan.1.json").unlink()
    (folder / "plan.1.json").mkdir()
    # A folder in its place is put away.
    assert context.write_plan(job(), JobPlan("1", gpus={"k80": 1})) is None
    assert (folder / "plan.1.json").is_file()
    away = folder.rename(folder.with_name("away"))
    assert "plan file cannot be written" in context.write_plan(job(), JobPlan("1", gpus={"k80": 1}))
    # Nothing half written is left beside what was there.
    assert sum(path.is_file() for path in away.iterdir()) == 1


# -- after an interruption ---------------------------------------------------------------------


def test_what_a_dead_controller_left_open_is_closed_by_what_is_seen(context):
    listed = {"Partition": "v100,k80"}
    earlier = Steering(time=NOW - 900, was={"Features": "a"}, wrote={"Features": "b"})
    sent = {"gpus": {}, "fields": listed, "before": merge("", earlier)}
    for id_ in ("1", "2", "3"):
        context.store.begin(id_, "hint", "sent", NOW - 60, sent)
    move = begun(context)
    # What we kept of the job before the request was sent says nothing of the request.
    ours = Steering(time=NOW - 60, was={"Partition": "gpu"}, wrote=listed)
    jobs = [job("1", partitions=("v100", "k80")), job("2")]
    by_id = {one.id: one for one in jobs}
    known = repair.with_unsent({"1": ours, "2": ours}, by_id, context.store.open_entries())
    assert known == {"1": ours, "2": earlier}
    repair.close_interrupted(context, observation(jobs, steering=known))
    assert [entry.id for entry in context.store.open_entries()] == [move]
    says = [context.store.history(id_)[-1].outcome for id_ in ("1", "2", "3")]
    assert [text.startswith("carried out") for text in says] == [True, False, False]
    # Of what was not sent nothing is ours, and what was before still has to be given back.
    kept = context.store.steerings(["1", "2", "3"])
    assert kept.keys() == {"2"} and decode(kept["2"]) == earlier


def test_a_nice_that_was_sent_is_known_of_a_job_that_has_begun_since(context):
    """It shows the one partition in which it runs, of the list that was sent with the Nice."""
    listed = {"Partition": "v100,k80", "Nice": "-200"}
    sent = {"gpus": {}, "fields": listed, "before": merge("", Steering())}
    context.store.begin("1", "hint", "sent", NOW - 60, sent)
    ours = Steering(time=NOW - 60, was={"Partition": "gpu", "Nice": "0"}, wrote=listed)
    begun_since = running("1", {"v1": {"v100": 1}}, partitions=("v100",), nice=-200)
    entries = context.store.open_entries()
    assert repair.with_unsent({"1": ours}, {"1": begun_since}, entries) == {"1": ours}
    other = replace(begun_since, nice=0)
    assert repair.with_unsent({"1": ours}, {"1": other}, entries) == {"1": Steering()}
    repair.close_interrupted(context, observation([begun_since], steering={"1": ours}))
    assert context.store.history("1")[-1].outcome.startswith("carried out")


def test_nothing_is_released_that_somebody_wants_held(context):
    ours = merge("", Steering({"k80": 1}, time=NOW, was={"Features": ""}))
    jobs = [
        job("1", held=True, reason="JobHeldUser", features="k80", admin_comment=ours),
        job("2", held=True, reason="JobHeldAdmin", features="k80", admin_comment=ours),
        # Slurm cannot run what the owner wrote himself.
        job("3", held=True, reason="BadConstraints", features="nosuch"),
        job("4", held=True, reason="launch failed requeued held", declaration=None),
    ]
    shown = observation(jobs)
    assert repair.release_failed_launches(context, shown) == []
    assert repair.undo_impossible_placements(context, shown) == []


def test_a_job_that_fails_again_and_again_is_left_to_an_admin(context):
    for _ in range(3):
        entry = context.store.begin("1", "release", "sent", NOW, {})
        context.store.end(entry, "released after a failed launch", NOW)
    stuck = job(held=True, reason="launch_failed_requeued_held")
    assert repair.release_failed_launches(context, observation([stuck])) == []


class Held:
    """A cluster of one job that Slurm holds; releases fail with ``errors`` one after another."""

    def __init__(self, *errors, limit=100.0):
        self.traffic = Traffic(lambda: 0.0)
        self.traffic.limit = limit
        self.errors, self.updates, self.released = list(errors), [], []
        self.shown = job(held=True, reason="BadConstraints")

    def read_jobs(self, ids):
        return [self.shown] if ids == [self.shown.id] else []

    def apply(self, updates):
        self.updates += updates
        return [None for _ in updates]

    def release(self, id_):
        with self.traffic.request("release"):
            if self.errors:
                raise self.errors.pop(0)
            self.released.append(id_)


def test_a_release_that_was_never_sent_does_not_count(context):
    """Three ticks in which Slurm was silent must not leave a job held for good."""
    cluster = Held(*[Paused("not sent") for _ in range(5)])
    stuck = observation([job(held=True, reason="launch_failed_requeued_held")])
    said = [
        repair.release_failed_launches(replace(context, cluster=cluster), stuck) for _ in range(9)
    ]
    assert [len(words) for words in said] == [1] * 8 + [0] and cluster.released == ["1"] * 3


def test_a_cure_that_slurm_refuses_is_not_tried_at_every_tick(context):
    cluster = Held(*[SlurmError("scontrol release: Access denied") for _ in range(9)])
    stuck = observation([job(held=True, reason="launch_failed_requeued_held")])
    for after_s in (0, 60, 120, 599, 601):
        later = replace(stuck, now=NOW + after_s)
        repair.release_failed_launches(replace(context, cluster=cluster), later)
    assert len(cluster.errors) == 7


def test_a_rack_that_failed_leaves_requests_for_the_rest_of_a_tick(context):
    cluster = Held(limit=10)
    rack = observation(
        [job(str(n), held=True, reason="launch failed requeued held") for n in range(50)]
    )
    repair.release_failed_launches(replace(context, cluster=cluster), rack)
    assert len(cluster.released) == 5 and context.store.history("20") == []


def test_an_undo_that_was_cut_off_between_its_two_requests_goes_on(context):
    """The owner's fields are back already, and the job is still held."""
    steered = {"1": Steering({"k80": 1}, time=NOW, was={"Features": "v100"})}
    placed = observation(
        [job(held=True, reason="BadConstraints", features="k80")], steering=steered
    )
    cluster = Held(Paused("not sent"))
    working = replace(context, cluster=cluster)
    assert "not carried out" in repair.undo_impossible_placements(working, placed)[0]
    # A begin time would clear the age of a job that waits already.
    assert dict(cluster.updates[0].fields) == {"Features": "v100"}
    back = observation([job(held=True, reason="BadConstraints", features="v100")], steering=steered)
    assert "its owner's request" in repair.undo_impossible_placements(working, back)[0]
    assert cluster.released == ["1"]
    # What its owner wrote cannot be carried out either: that is for him to see.
    assert repair.undo_impossible_placements(working, back) == []


def test_an_undo_releases_no_job_that_its_update_let_go(context):
    """An operator's release of a job that is not held sets its Nice to 0 (seen on 22.05.8)."""
    steered = {"1": Steering({"k80": 1}, time=NOW, was={"Features": "v100"})}
    placed = observation(
        [job(held=True, reason="BadConstraints", features="k80")], steering=steered
    )
    cluster = Held()
    cluster.shown = job(features="v100", nice=77)
    said = repair.undo_impossible_placements(replace(context, cluster=cluster), placed)
    assert "its owner's request" in said[0] and len(cluster.updates) == 1
    assert cluster.released == []


def test_the_list_of_hbatch_that_cannot_be_carried_out_is_undone_once(context):
    """No tick has steered the job: only the declaration tells what its owner typed."""
    site = config('[partitions.groups]\ngpu = ["v100", "k80"]\n')
    declared = Declaration(types=("any",), partitions=("gpu",))
    held = job(held=True, reason="BadConstraints", partitions=("v100", "k80"), declaration=declared)
    cluster = Held()
    working = replace(context, cluster=cluster, config=site)
    assert (
        "its owner's request" in repair.undo_impossible_placements(working, observation([held]))[0]
    )
    (update,) = cluster.updates
    assert update.fields["Partition"] == "gpu" and cluster.released == ["1"]
    ours = decode(update.fields["AdminComment"]) if "AdminComment" in update.fields else None
    ours = ours or decode(context.store.steerings(["1"])["1"])
    assert ours.foreign == ("Partition",)


class Asked:
    """A cluster that is asked for jobs, and shows some or does not answer. It takes no update."""

    def __init__(self, limit=100.0, error=None, jobs=()):
        self.traffic = Traffic(lambda: 0.0)
        self.traffic.limit = limit
        self.error = error
        self.jobs = jobs

    def read_jobs(self, ids):
        with self.traffic.request("jobs"):
            if self.error:
                raise self.error
            return list(self.jobs)


def settled(context, cluster, clock, known=None):
    number = context.store.begin("1", "move", "asked", NOW, TO_V100)
    context.store.advance(number, "requeued", NOW)
    slept: list[float] = []
    said = follow_open_moves(
        replace(context, cluster=cluster, clock=clock), known or {}, slept.append
    )
    return said, slept, cluster.traffic.queries["jobs"]


def test_under_the_stop_file_moves_are_not_followed_any_further(context):
    cluster = Asked(jobs=[HERE])
    begun(context)
    said = follow_open_moves(
        replace(context, cluster=cluster, clock=lambda: NOW),
        {},
        lambda _: None,
        lambda: "stop exists",
    )
    assert said == ["moves in progress wait: stop exists"] and not cluster.traffic.queries


def test_moves_are_followed_for_a_bounded_time_though_the_clock_goes_back(context):
    times = iter(NOW - number for number in range(10_000))
    said, slept, _ = settled(context, Asked(), lambda: next(times))
    assert not said and sum(slept) <= longest_s(context.config) == 60.0


def test_a_job_that_ended_when_it_was_asked_is_looked_at_once(context):
    """The next tick requeues it: looks at it would only use up the minute's requests."""
    declared = Declaration(checkpoint="signal", checkpoint_exit_code=85)
    ended = job(state=JobState.FINISHED, slurm_state="FAILED", exit_code=85, declaration=declared)
    details = {**TO_V100, "habit": "signal", "restarts": 0}
    context.store.begin("1", "move", "asked", NOW, details)
    cluster = Asked(jobs=[ended])
    follow_open_moves(replace(context, cluster=cluster, clock=lambda: NOW), {}, lambda _: None)
    assert cluster.traffic.queries["jobs"] == 1


def test_what_releases_need_is_left_by_all_looks_at_requeued_jobs(context):
    said, _, asked = settled(context, Asked(limit=20), lambda: NOW)
    assert not said and asked == 16


def test_a_move_waits_until_the_last_attempt_has_left_a_node_that_went_down(context):
    shown = job("1", restarts=1, submit_s=NOW)
    known = {"1": replace(shown, not_before_s=NOW + 30)}
    said, _, asked = settled(context, Asked(jobs=[shown]), lambda: NOW + 5, known)
    # When it may be released is known, so it is not asked for meanwhile.
    assert not said and asked == 1 and context.store.open_entries()
    with pytest.raises(AttributeError, match="apply"):
        settled(context, Asked(jobs=[shown]), lambda: NOW + 5)


def test_a_job_that_was_requeued_before_our_request_came_is_somebody_elses(context):
    """To a request that changes nothing any more Slurm answers as to any other."""
    shown = job("1", restarts=1, submit_s=NOW - 3)
    said, _, asked = settled(context, Asked(jobs=[shown]), lambda: NOW + 5)
    assert not said and asked == 1 and context.store.open_entries()
    with pytest.raises(AttributeError, match="apply"):
        settled(context, Asked(jobs=[shown]), lambda: NOW + 38)


class Leaving:
    """A Slurm with a clock, at ``used`` of 60 requests in this minute. Job 1 uses the runtime: it
    acknowledges its move ``ack_s`` after it was asked and takes ``exit_s`` to leave when it is
    requeued. Job 2, if any, is asked by a signal and goes on for long."""

    def __init__(self, context, used=0, ack_s=0.0, exit_s=1.0):
        self.now, self.ack_s, self.exit_s = NOW, ack_s, exit_s
        self.traffic = Traffic(lambda: self.now)
        self.traffic.limit = 60
        self.traffic.remember([NOW] * used)
        self.requeued_s = self.released_s = None
        # A context of which the clock goes on.
        self.context = replace(context, cluster=self, clock=lambda: self.now)
        self.folder = context.config.site.exchange_dir

    def asks(self, id_="1", habit="yes"):
        details = {**TO_V100, "habit": habit, "grace_s": 100.0}
        self.context.store.begin(id_, "move", "asked", self.now, details)
        return self

    def sleep(self, seconds):
        self.now += seconds
        if self.now >= NOW + self.ack_s:
            ours = replace(report(written=self.now, ack=Ack("abc", NOW, 1)), pid=os.getpid())
            places(self.folder, "1")[0].write_text(json.dumps({"version": 1, **asdict(ours)}))

    def follow(self):
        self.sleep(0.0)
        known = {id_: self.shown(id_) for id_ in ("1", "2")}
        return follow_open_moves(self.context, known, self.sleep)

    def shown(self, id_):
        if id_ == "1" and self.requeued_s is not None:
            gone = self.now >= self.requeued_s + self.exit_s
            state = JobState.PENDING if gone else JobState.COMPLETING
            at = {"submit_s": float(int(self.requeued_s)), "uid": os.getuid()}
            return job("1", restarts=1, state=state, **at)
        declared = Declaration(checkpoint="signal" if id_ == "2" else "yes")
        return running(id_, {"k1": {"k80": 1}}, declaration=declared, uid=os.getuid())

    def read_jobs(self, ids):
        with self.traffic.request("jobs"):
            return [self.shown(id_) for id_ in ids]

    def read_mail_types(self, numbers):
        return {}

    def requeue(self, ids):
        with self.traffic.request("requeue"):
            assert list(ids) == ["1"]
            self.requeued_s = self.now
            return [None]

    def apply(self, updates):
        with self.traffic.rate_limited(), self.traffic.request("update"):
            self.released_s = self.now
            return [None for _ in updates]


def test_a_requeued_job_is_released_at_once_beside_one_that_takes_long_to_leave(context):
    slurm = Leaving(context, used=20, ack_s=12.0, exit_s=3.0).asks().asks("2", "signal")
    slurm.follow()
    assert slurm.requeued_s == NOW + 12.0 and slurm.released_s == NOW + 15.0


def test_a_job_that_was_only_asked_is_looked_at_less_and_less_often(context):
    slurm = Leaving(context, ack_s=1000.0).asks("2", "signal")
    slurm.follow()
    assert slurm.now == NOW + 20.0 and slurm.traffic.queries["jobs"] == 8


def test_following_jobs_that_were_asked_uses_up_half_of_the_requests_at_most(context):
    slurm = Leaving(context, used=28, ack_s=1000.0).asks("2", "signal")
    slurm.follow()
    assert slurm.traffic.queries["jobs"] == 2


@pytest.mark.parametrize(("used", "exit_s"), [(0, 28.0), (20, 22.0)])
def test_a_job_that_takes_long_to_leave_after_its_requeue_is_followed_until_it_has(
    context, used, exit_s
):
    slurm = Leaving(context, used, ack_s=10.0, exit_s=exit_s).asks()
    slurm.follow()
    assert slurm.requeued_s == NOW + 10.0 and slurm.released_s is not None
    assert slurm.released_s - slurm.requeued_s <= exit_s + 2.0


def test_no_job_is_followed_longer_than_until_the_next_tick(context):
    slurm = Leaving(context, exit_s=1000.0).asks()
    slurm.follow()
    assert slurm.now == NOW + 60.0 and slurm.traffic.queries["jobs"] < 45


@pytest.mark.parametrize(("used", "ack_s"), [(45, 0.0), (0, 21.0)])
def test_no_job_is_requeued_that_could_not_be_seen_through(context, used, ack_s):
    """With too few requests left, or after the time to follow moves is over."""
    slurm = Leaving(context, used, ack_s).asks()
    slurm.context.store.advance(
        slurm.context.store.begin("3", "move", "asked", NOW, TO_V100), "requeued", NOW
    )
    slurm.follow()
    assert slurm.requeued_s is None
    assert {one.job: one.phase for one in slurm.context.store.open_entries()}["1"] == "asked"


class Refuses:
    """A cluster that refuses every update with these words."""

    def __init__(self, words):
        self.words = words

    def apply(self, updates):
        return [SlurmError(f"scontrol update: {self.words}") for _ in updates]


def sent(context):
    """Requeued by us, and waiting to be sent on."""
    context.store.advance(begun(context), "requeued", NOW - 10.5)
    return job("1", restarts=1, submit_s=NOW - 10)


class Takes:
    """A cluster that takes every update. ``shown``: its jobs afterwards."""

    def __init__(self, shown=()):
        self.sent, self.shown = [], shown

    def read_jobs(self, ids):
        return [job for job in self.shown if job.id in ids]

    def apply(self, updates):
        self.sent += [dict(update.fields) for update in updates]
        return [None for _ in updates]


@pytest.mark.parametrize(
    ("gpus", "fields", "sent_on"),
    [
        ({"v100": 1}, {"Features": "v100"}, {"Features": "v100", "StartTime": "now"}),
        # A stop: the begin time that Slurm gave it stands, so others get what it left.
        ({}, {"Features": ""}, {"Features": ""}),
        ({}, {}, {"StartTime": f"uts{NOW + 111:.0f}"}),
    ],
)
def test_a_moved_job_may_start_at_once_and_a_stopped_one_makes_way(context, gpus, fields, sent_on):
    details = {**TO_V100, "gpus": gpus, "nodes": {}, "fields": fields}
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = job("1", restarts=1, submit_s=NOW - 10, eligible_s=NOW + 111, features="k80")
    cluster = Takes()
    said = advanced(replace(context, cluster=cluster), requeued).messages
    assert cluster.sent == [sent_on]
    assert outcome(context) == ("moved" if gpus else "stopped") and len(said) == 1


@pytest.mark.parametrize(
    ("details", "shown", "sent_on"),
    [
        ({}, {}, [{"StartTime": "now"}]),
        # As its owner or an admin has it: held, with a begin time, or requeued by another user.
        ({}, {"held": True}, []),
        ({}, {"eligible_s": NOW + 3600}, []),
        ({}, {"submit_s": NOW - 40}, []),
        ({}, {"state": JobState.RUNNING}, []),
        # A stop: others get what it left.
        ({"gpus": {}, "nodes": {}}, {}, []),
    ],
)
def test_a_job_that_opts_out_after_our_requeue_waits_for_no_begin_time(
    context, details, shown, sent_on
):
    entry = context.store.begin("1", "move", "asked", NOW - 12, {**TO_V100, **details})
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = {"restarts": 1, "submit_s": NOW - 10, "eligible_s": NOW + 111}
    off = job("1", declaration=Declaration(off=True), **{**requeued, **shown})
    cluster = Takes()
    advanced(replace(context, cluster=cluster, requeue_delay_s=121.0), off)
    assert cluster.sent == sent_on
    assert outcome(context) == "it is no longer managed"


@pytest.mark.parametrize(
    ("ages", "before", "after", "nice"),
    [(True, 44_341, 11_008, "-33333"), (True, 900, 900, None), (False, 44_341, 11_008, None)],
)
def test_a_requeue_takes_the_age_away_and_nice_gives_it_back(context, ages, before, after, nice):
    details = {**TO_V100, "priority": before}
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    context.store.advance(entry, "requeued", NOW - 10.5)
    # Slurm shows the priority of before until the update.
    requeued = job("1", restarts=1, submit_s=NOW - 10, priority=before)
    cluster = Takes([replace(requeued, priority=after)])
    advanced(replace(context, cluster=cluster, ages=ages), requeued)
    assert "Nice" not in cluster.sent[0]
    assert cluster.sent[1:] == ([{"Nice": nice}] if nice else [])
    if nice is not None:
        kept = decode(context.store.steerings(["1"])["1"])
        assert kept.was["Nice"] == "0" and kept.wrote["Nice"] == nice


@pytest.mark.parametrize(("shown", "nice", "more"), [(11_008, "-33331", []), (1, "-44341", ["-2"])])
def test_a_moved_job_has_its_priority_before_it_may_start(context, shown, nice, more):
    """While Slurm's begin time after a requeue is ahead an update that changes nothing shows it."""
    entry = context.store.begin("1", "move", "asked", NOW - 12, {**TO_V100, "priority": 44_341})
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = job("1", restarts=1, submit_s=NOW - 10, eligible_s=NOW + 111, priority=5, nice=2)
    after = iter([shown, 88_680, 44_341])

    class Slurm(Takes):
        def read_jobs(self, ids):
            nice = int(self.sent[-1].get("Nice", 2))
            return [replace(requeued, nice=nice, priority=next(after))]

    cluster = Slurm()
    advanced(replace(context, cluster=cluster, ages=True), requeued)
    begin = {"StartTime": f"uts{NOW + 111:.0f}"}
    sent = {"Features": "v100", "StartTime": "now", "Nice": nice}
    assert cluster.sent == [begin, sent, *({"Nice": value} for value in more)]
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was == {"Features": "", "Nice": "2"}
    assert kept.wrote["Nice"] == (more or [nice])[-1]


def test_a_move_that_is_sent_on_again_knows_its_owners_nice_still(context):
    """The controller died between the update and the end of the entry."""
    known = Steering(was={"Nice": "3"}, wrote={"Nice": "-900"})
    context.store.keep_steering("1", merge("", known))
    entry = context.store.begin("1", "move", "asked", NOW - 12, {**TO_V100, "priority": 900})
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = job("1", restarts=1, submit_s=NOW - 10, nice=-900, priority=905)
    cluster = Takes([requeued])
    advanced(replace(context, cluster=cluster, ages=True), requeued)
    assert cluster.sent == [{"Features": "v100", "StartTime": "now"}, {"Nice": "-895"}]
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was["Nice"] == "3" and kept.wrote["Nice"] == "-895"


@pytest.mark.parametrize("ahead_s", [0.0, 111.0])
@pytest.mark.parametrize("seen_nice", [0, 77])
@pytest.mark.parametrize("moved_before", [False, True])
def test_a_nice_that_its_owner_set_during_a_move_is_restored(
    context, ahead_s, seen_nice, moved_before
):
    """Whether it was set before or after the tick looked, and whether that of an earlier
    move stood there before."""
    details = {**TO_V100, "priority": 1000}
    if moved_before:
        was, wrote = {"Features": "", "Nice": "0"}, {"Features": "k80", "Nice": "-50"}
        context.store.keep_steering("1", merge("", Steering(was=was, wrote=wrote)))
        details |= {"was": was, "wrote": {**wrote, "Nice": str(seen_nice)}}
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = job(
        "1", restarts=1, submit_s=NOW - 10, eligible_s=NOW + ahead_s, priority=1000, nice=seen_nice
    )

    class Slurm(Takes):
        def read_jobs(self, ids):
            nice = int(([77] + [one["Nice"] for one in self.sent if "Nice" in one])[-1])
            return [replace(requeued, nice=nice, priority=600 + 77 - nice)]

    cluster = Slurm()
    advanced(replace(context, cluster=cluster, ages=True), requeued)
    assert [one["Nice"] for one in cluster.sent if "Nice" in one] == ["-323"]
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was["Nice"] == "77" and kept.wrote["Nice"] == "-323"


@pytest.mark.parametrize(("owners", "first", "second"), [(0, "-900", None), (500, "-900", "-400")])
def test_a_job_with_the_least_priority_that_slurm_shows_gets_neither_less_nor_more(
    context, owners, first, second
):
    """It may have less than 1 in truth, as with a Nice of its owner's."""
    entry = context.store.begin("1", "move", "asked", NOW - 12, {**TO_V100, "priority": 900})
    context.store.advance(entry, "requeued", NOW - 10.5)
    requeued = job("1", restarts=1, submit_s=NOW - 10, priority=900, nice=owners)

    class Slurm(Takes):
        def read_jobs(self, ids):
            nice = int(self.sent[-1].get("Nice", owners))
            return [replace(requeued, nice=nice, priority=max(1, owners - nice))]

    cluster = Slurm()
    advanced(replace(context, cluster=cluster, ages=True), requeued)
    wanted = [{"Nice": first}, {"Nice": second}] if second else [{"Nice": first}]
    assert cluster.sent[1:] == wanted
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was["Nice"] == str(owners) and kept.wrote["Nice"] == wanted[-1]["Nice"]


@pytest.mark.parametrize(("restarts", "priority"), [(1, 1150), (2, 1000)])
def test_a_second_move_does_not_take_what_the_first_one_gave_back(context, restarts, priority):
    """A job that was requeued by somebody else since has lost it as any other would have."""
    store = context.store
    entry = store.begin("1", "move", "asked", NOW - 90, {"restarts": 0, "priority": 1150})
    store.end(entry, "moved", NOW - 80)
    before = merge("", Steering(was={"Nice": "100"}, wrote={"Nice": "-50"}))
    own = store.begin("1", "hint", "sent", NOW - 70, {"fields": {"Nice": "100"}, "before": before})
    store.end(own, "done", NOW - 70)
    ended = store.begin("1", "move", "asked", NOW - 60, {"restarts": restarts})
    store.end(ended, "the job did not save", NOW - 50)
    here = running("1", {"k1": {"k80": 1}}, restarts=restarts)
    for was, expected in (({}, priority), ({"Nice": "100"}, 1000)):
        action = Action(Kind.MOVE, here, {}, Steering(gpus={"v100": 1}, was=was), "why")
        ask_to_save(context, action, False, NOW)
        assert store.history("1", 1)[0].details["priority"] == expected


def test_a_job_that_somebody_else_requeued_before_we_did_is_not_sent_on_at_once(context):
    """A node may have done it by going down, and what ran there may still be leaving."""
    begun(context)
    late = context.config.moving.after_return_s
    refusing = replace(context, cluster=Refuses("any"))
    requeued = job("1", restarts=1, submit_s=NOW - 10)
    assert advanced(refusing, requeued, now=NOW - 11 + late).messages == ()
    assert "refused" in advanced(refusing, requeued, now=NOW - 10 + late).messages[0]


def test_a_job_that_began_as_it_was_sent_on_is_looked_at_again(context):
    requeued = sent(context)
    busy = replace(context, cluster=Refuses("Job is no longer pending execution for job 1"))
    assert advanced(busy, requeued).messages == () and outcome(context) is None
    there = running("1", {"v1": {"v100": 1}}, restarts=1)
    assert "moved" in advanced(busy, there).messages[0] and outcome(context) == "moved"


def test_untyped_gpus_have_the_type_of_their_node(context):
    """Slurm shows no type where it is a feature of the node."""
    requeued = sent(context)
    known = replace(context, nodes={"v1": node("v1")})
    there = running(requeued.id, {"v1": {"": 1}}, restarts=1)
    assert "moved" in advanced(known, there).messages[0] and outcome(context) == "moved"


def test_a_job_that_slurm_started_elsewhere_has_a_plan_for_what_it_got(context):
    requeued = sent(context)
    busy = replace(context, cluster=Refuses("Job is no longer pending execution for job 1"))
    advanced(busy, requeued)
    folder = context.config.site.exchange_dir
    assert read_plan(folder, "1", {os.getuid()}).gpus == {"v100": 1}
    elsewhere = running("1", {"k1": {"k80": 1}}, restarts=1)
    assert "started by itself" in advanced(busy, elsewhere).messages[0]
    assert read_plan(folder, "1", {os.getuid()}).gpus == {"k80": 1}


def test_a_placement_that_slurm_refuses_ends_the_move(context):
    requeued = sent(context)
    refusing = replace(context, cluster=Refuses("Requested node configuration is not available"))
    said = advanced(refusing, requeued).messages
    assert "placement was refused" in said[0] and context.store.open_entries() == []


def test_where_slurm_falls_silent_the_next_tick_goes_on(context):
    silent = Asked(error=SlurmError("squeue gave no answer within 30 s", retry=True))
    said, slept, asked = settled(context, silent, lambda: NOW)
    assert len(said) == 1 and "continue at the next tick: squeue gave no answer" in said[0]
    assert not slept and asked == 1 and context.store.open_entries()


def test_a_clock_that_was_set_back_ends_the_waiting_for_an_answer(context):
    begun(context, at=NOW + 3600)
    assert "stays where it is" in advanced(context, HERE).messages[0]


def test_a_move_whose_placement_is_refused_leaves_no_plan_of_it(context):
    """Slurm starts the job as it was, and it would have gone by GPUs that it never got."""

    sent: list[dict[str, str]] = []

    class Refusing:
        def apply(self, updates):
            sent.extend(dict(update.fields) for update in updates)
            return [SlurmError("Requested node configuration is not available") for _ in updates]

    begun(context)
    waiting = replace(HERE, state=JobState.PENDING, nodes=(), gpus={}, restarts=1)
    advanced(replace(context, cluster=Refusing()), waiting)
    assert "the placement was refused" in outcome(context)
    assert read_plan(context.config.site.exchange_dir, "1", {os.getuid()}) is None
    # It need not wait for the begin time that Slurm gave it with the requeue.
    assert set(sent[-1]) == {"StartTime"} and sent[-1]["StartTime"] == sent[0]["StartTime"]
    # And its next move waits, as after a request that it did not answer.
    assert context.store.counts_after("move", "the placement was refused", "moved") == {"1": 1}


def test_a_late_requeue_of_its_own_counts_as_a_move(context):
    shown = job("1", restarts=1, uid=os.getuid())
    repair.count_late_moves(context, observation([shown]), ["1", "gone"])
    assert decode(context.store.steerings(["1"])["1"]).moves == 1
