"""Each guard on a real Slurm: what the controller would do is kept from it, and comes through when
the guard allows it."""

import json
import time

import pytest
import typed
from dictated import Dictated
from slurms import need

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.presentation import tick_text
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

SPEEDS = {"v100": 160.0, "p100": 80.0, "k80": 40.0}
CHANGES = ("update", "requeue", "release")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need(None)
    folder = tmp_path_factory.mktemp("guards")
    table = folder / "speeds.json"
    rows = [["quick", kind, 1, 8, speed, None] for kind, speed in SPEEDS.items()]
    table.write_text(json.dumps({"version": 1, "source": "test", "rows": rows}))
    guards = {
        "min_between_moves_s": 0.0,
        "max_moves_per_tick": 20,
        "slow_answer_s": 2.5,
        # Long enough for what is looked at before the next tick is due.
        "longest_interval_s": 180.0,
    }
    found = Dictated(
        folder,
        {
            "guards": guards,
            "controller": {"interval_s": 60.0},
            "profiles": {"tables": (str(table),)},
        },
    )
    yield found
    found.close()


@pytest.fixture(scope="module")
def two(site):
    """Two trainings that run on k80."""
    # Short enough for what a job may take here: nobody is sent where his work does not fit.
    return tuple(site.running("k80", declared="model=quick") for _ in range(2))


@pytest.fixture(autouse=True)
def _nothing_fails(site, two):
    yield
    site.faulty.mend()
    # What a test that failed left.
    jobs = site.slurm.read_jobs()
    if left := [j.id for j in jobs if j.id not in two and j.state is not JobState.FINISHED]:
        site.ended(*left)
    site.config.guards.stop_file.unlink(missing_ok=True)


def guarded(site, **guards):
    return site.another(site.with_settings(guards=guards))


def elsewhere(site, two, *ids):
    """Dictate another type than the one that each of these is on; the rest of the two stays."""
    site.want = {}
    for id_ in two:
        (kind,) = site.where(id_)
        if id_ in ids:
            kind = "v100" if kind != "v100" else "p100"
        site.want[id_] = {kind: 1}


def moves_of(report):
    return [action.job.id for action in report.diff.of(Kind.MOVE)]


def changed(site, since):
    """What was sent to Slurm that changes something, after the first ``since`` commands."""
    calls = site.faulty.calls()[since:]
    # Updates and requeues go through scontrol's standard input or stand in its words.
    return [
        line
        for line in calls
        if line.strip() == "scontrol"
        or line.startswith("scancel")
        or any(word in line for word in CHANGES)
    ]


def test_a_move_must_gain_more_than_it_costs(site, two):
    """The real policy; what a restart costs is what the trainings measured."""
    reports = {
        factor: site.another(
            site.with_settings(guards={"gain_over_cost": factor}), dictate=False
        ).plan()
        for factor in (1.0, 1e7)
    }
    assert moves_of(reports[1.0]), tick_text.format_plan(reports[1.0])
    assert not moves_of(reports[1e7])
    assert "worth a move" in reports[1e7].plan.placements[two[0]].reason


def test_the_least_time_between_moves(site, two):
    elsewhere(site, two, two[0])
    before = len(site.faulty.calls())
    report = guarded(site, min_between_moves_s=3600.0).tick()
    assert report.diff.deferred[two[0]].startswith("it cannot be moved now")
    assert not changed(site, before)
    site.moves(two[0], *site.want[two[0]])
    assert site.unharmed(two[0]).restarts == 1


def test_the_most_moves_of_one_job(site, two):
    # It has been moved once by the test above.
    moved = site.unharmed(two[0]).restarts
    elsewhere(site, two, two[0])
    report = guarded(site, max_moves_per_job=moved).tick()
    assert report.diff.deferred[two[0]].startswith("it cannot be moved now")
    assert not moves_of(report)
    report = guarded(site, max_moves_per_job=moved + 1).plan()
    assert moves_of(report) == [two[0]]


def test_the_most_moves_of_one_tick_and_of_one_hour(site, two):
    elsewhere(site, two, *two)
    done = sum(site.controller.store.counts_since(Kind.MOVE.value, 0).values())
    report = guarded(site, max_moves_per_hour=done).tick()
    assert set(report.diff.deferred) == set(two) and not moves_of(report)
    assert len(moves_of(guarded(site, max_moves_per_hour=done + 1).plan())) == 1
    one = guarded(site, max_moves_per_tick=1)
    report = one.tick()
    assert len(moves_of(report)) == 1
    (left,) = set(two) - set(moves_of(report))
    assert report.diff.deferred[left] == "the limit on moves per tick or hour is reached"
    assert sum(site.controller.store.counts_since(Kind.MOVE.value, 0).values()) == done + 1
    site.until(lambda: not one.store.open_entries() or one.tick() is None)
    for id_ in two:
        site.moves(id_, *site.want[id_])
        site.unharmed(id_)


def test_under_the_stop_file_a_move_that_is_under_way_goes_no_further(site, two):
    asking = site.another(site.with_settings(moving={"settle_s": 0.0}))
    elsewhere(site, two, two[0])
    restarts = site.job(two[0]).restarts
    asking.tick()
    site.until(lambda: site.controller.observe().progress[two[0]].ack is not None)
    site.config.guards.stop_file.touch()
    before = len(site.faulty.calls())
    report = site.controller.tick()
    assert not report.acted and "exists: nothing is changed" in report.messages[0]
    assert not changed(site, before) and site.job(two[0]).restarts == restarts
    site.config.guards.stop_file.unlink()
    site.moves(two[0], *site.want[two[0]])


def test_in_observe_mode_it_only_reads(site, two):
    elsewhere(site, two, *two)
    before = len(site.faulty.calls())
    watching, reports = site.another(site.with_settings(site={"mode": "observe"})), []

    def both_are_meant():
        reports.append(watching.tick())
        return len(moves_of(reports[-1])) == 2

    # On a busy machine one of them may have begun a moment ago.
    site.until(both_are_meant)
    assert not any(report.acted for report in reports)
    assert not changed(site, before) and len(site.faulty.calls()) > before


def test_no_move_to_what_a_job_on_several_nodes_could_use_with_what_the_moves_leave(site, two):
    for id_ in two:
        site.moves(id_, "k80")
    fill = site.full()
    others = [one for one in fill if site.where(one) != {"v100"}]
    site.ended(*(one for one in fill if one not in others))
    ahead = site.plain("-N2", "--exclusive", "--gres=gpu:2")
    site.until(lambda: site.job(ahead).reason == "Resources")
    site.want = {id_: {"v100": 1} for id_ in two}
    # Before backfill expects its start, and after.
    for expected in (False, True):
        site.until(lambda e=expected: not e or site.job(ahead).start_s > time.time())
        report = site.controller.tick()
        assert not moves_of(report) and set(report.diff.deferred) == set(two)
    assert site.job(ahead).state is JobState.PENDING
    site.ended(ahead)
    for id_ in two:
        site.moves(id_, "v100")
        site.unharmed(id_)
    site.ended(*others)


def test_jobs_take_each_others_places_with_preempt_only(site, two):
    first, second = two
    site.moves(first, "v100"), site.moves(second, "k80")
    fill = site.full()
    site.want = {first: {"k80": 1}, second: {"v100": 1}}
    report = guarded(site).tick()
    assert not moves_of(report)
    assert set(report.diff.deferred.values()) == {"these GPUs are not free yet"}
    assert set(moves_of(guarded(site, preempt=True).plan())) == set(two)
    # Only together: where one of them has to stay the other one stays too.
    assert not moves_of(guarded(site, preempt=True, max_moves_per_tick=1).plan())
    # Whoever waits is served first of what they leave.
    waits = site.plain("-p", "k80")
    report = guarded(site, preempt=True).plan()
    assert not moves_of(report) and report.diff.deferred.keys() == set(two)
    site.ended(waits, *fill)


def test_a_job_that_squeue_does_not_show_is_unknown_and_not_finished(site, two):
    asking = site.another(site.with_settings(moving={"settle_s": 0.0}))
    elsewhere(site, two, two[0])
    asking.tick()
    (entry,) = asking.store.open_entries()
    site.faulty.set("squeue", "dropped", "--json")
    before = len(site.faulty.calls())
    report = asking.tick()
    assert two[0] not in report.observation.jobs and not changed(site, before)
    assert [e.id for e in asking.store.open_entries()] == [entry.id]
    site.faulty.mend()
    site.until(lambda: asking.tick() and site.where(two[0]) == set(site.want[two[0]]))
    outcomes = {e.id: e.outcome for e in asking.store.history(two[0])}
    assert outcomes[entry.id] == "moved"
    site.unharmed(two[0])


def hadar(site, *words):
    return typed.hadar(site.env, *words)


def test_slow_answers_make_the_ticks_rarer_until_they_are_quick_again(site):
    interval = site.config.controller.interval_s
    site.faulty.set("squeue", "slow", "--json")
    ticking = site.another()
    seen = []
    for _ in range(2):
        ticking.tick()
        seen.append(ticking.backoff.interval_s)
    assert seen == [2 * interval, 180.0], "it doubles up to guards.longest_interval_s"
    assert ticking.backoff.pause_s(interval) == 180.0
    assert "jobs took" in ticking.backoff.message(interval)
    beat = json.loads((site.config.site.exchange_dir / "heartbeat.json").read_text())
    assert beat["interval_s"] == 2 * interval, "others must not take it for dead"
    before = len(site.faulty.calls())
    done = hadar(site, "tick")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done
    assert "Slurm answers slowly" in done.stdout and "no tick for another" in done.stdout
    asjson = json.loads(hadar(site, "tick", "--json").stdout)
    assert "no tick for another" in asjson["result"]["skipped"]
    assert len(site.faulty.calls()) == before, "nothing was asked"
    site.faulty.mend()
    # On a busy machine Slurm itself may be slow once.
    site.until(lambda: ticking.tick() and ticking.backoff.interval_s == interval)
    assert not ticking.backoff.message(interval)
    assert " sent; read" in hadar(site, "tick").stdout


@pytest.mark.parametrize("fault", ["limited", "fails"])
def test_a_slurm_that_has_too_much_to_do_is_asked_less_often(site, fault):
    site.faulty.set("scontrol", fault, "show node")
    ticking = site.another()
    with pytest.raises(SlurmError, match=r"Rate limit|timed out"):
        ticking.tick()
    assert ticking.backoff.interval_s > site.config.controller.interval_s
    assert "is overloaded" in site.another().backoff.why_not_now()
    site.faulty.mend()
    site.until(lambda: ticking.tick() and ticking.backoff.why_not_now() == "")


def test_after_a_request_without_an_answer_the_tick_sends_no_more(site, two):
    fill = site.full()
    waiting = [site.submit() for _ in range(6)]
    for id_ in waiting:
        # With a blank in it such an update needs a scontrol of its own.
        site.box.run("scontrol", "update", f"JobId={id_}", "AdminComment=a b")
        site.want[id_] = {"k80": 1}
    patient = site.another(site.with_settings(slurm={"timeout_s": 4.0}, site={"rights": "sandbox"}))
    site.faulty.set("scontrol", "silence", "update")
    before = len(site.faulty.calls())
    report = patient.tick()
    tried = [line for line in site.faulty.calls()[before:] if "update" in line]
    assert 1 <= len(tried) <= 4, "those that were sent side by side"
    assert any("no answer within" in line for line in report.messages)
    site.faulty.mend()

    for id_ in waiting:
        assert site.unharmed(id_).state is JobState.PENDING
    site.ended(*fill)
    site.until(lambda: sum(site.job(i).state is JobState.RUNNING for i in waiting) == len(fill))
    site.patient_tick()
    for id_ in waiting:
        site.unharmed(id_)
    site.ended(*waiting)


def test_never_more_requests_in_a_minute_than_allowed(site, two):
    """In the loop that follows a move, over ticks, and over processes."""
    site.ended(*two)
    site.want = {}
    slow = site.running("k80", linger=5.0)
    ticking = site.another(
        site.with_settings(
            guards={"max_queries_per_minute": 20, "slow_answer_s": 60.0}, moving={"settle_s": 6.0}
        )
    )
    # What the tests before sent in this minute was no part of it.
    ticking.cluster.traffic._sent.clear()
    site.want = {slow: {"v100": 1}}
    before = len(site.faulty.calls())
    asked = 0
    while not ticking.backoff.why_not_now():
        ticking.tick()
        asked += 1
    # Few as they are, they were enough to release it.
    assert site.history(slow)[0].outcome == "moved", site.faulty.calls()[before:]
    with pytest.raises(SlurmError, match="max_queries_per_minute"):
        for _ in range(8):
            ticking.tick()
    sent = len(site.faulty.calls()) - before
    assert asked >= 1 and sent <= 20, site.faulty.calls()[before:]
    again = site.another(site.with_settings(guards={"max_queries_per_minute": 20}))
    assert "no tick for another" in again.backoff.why_not_now()
    assert ticking.backoff.pause_s(5.0) > 5.0
    site.until(lambda: site.controller.tick() and site.where(slow) == {"v100"})
    site.unharmed(slow)
