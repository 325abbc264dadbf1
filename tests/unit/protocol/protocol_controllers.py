"""What a controller does: one tick, each file and each command a step of its own."""

from collections.abc import Iterator
from functools import cache, lru_cache

from protocol_attempts import Step
from protocol_slurm import OK, requeue, update
from protocol_world import (
    ENDED,
    PENDING,
    RUNNING,
    SAME_SECOND,
    SETTLED,
    SETTLING,
    Bounds,
    Controller,
    Journal,
    Move,
    Parts,
    Plan,
    Progress,
    SlurmJob,
    World,
)

from slurm_hadar.controller.actuation.move_steps import MoveDecision, MoveStep, MoveTimes, OpenMove
from slurm_hadar.controller.actuation.repair import MOST_RELEASES, held_after_failed_launch
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.lock import Who, takes_over_from
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange import progress as progress_file
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.slurm.times import at_once

_JOB = "1"
_OPENED_S, _SUBMITTED_S, _OURS_S = 0.0, 500.0, 1000.0
_SINCE_S = {SAME_SECOND: 0.0, SETTLING: 5.0, SETTLED: 500.0}
_TIMES = MoveTimes(ack_wait_s=120.0, after_return_s=40.0)
_ONE_NAME = "login"
_BEFORE_IT_SENDS = ("idle", "beat", "settle", "job", "progress", "follow", "follow job", "decide")
_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "ENDED": JobState.FINISHED,
}


def controller_steps(world: World, bounds: Bounds) -> Iterator[Step]:
    """Every step that a controller can take, its death included."""
    for index, one in enumerate(world.controllers):
        name = f"controller {index}"
        for label, after in _steps(world, bounds, index, one):
            yield f"{name}: {label}", after
        if one.at != "off" and world.left.crashes:
            left = world.left._replace(crashes=world.left.crashes - 1)
            # A controller that is started again remembers as little as one that never ran.
            then = "off" if _apart(bounds) else "idle"
            yield f"{name}: is killed", _off(world._replace(left=left), index, then)
    if world.beat is not None and world.beat[1]:
        yield from _beat_gets_old(world, bounds)


def _steps(world: World, bounds: Bounds, index: int, one: Controller) -> Iterator[Step]:
    host = bounds.hosts[index]
    shared = bounds.hosts.count(host) > 1
    match one.at:
        case "off":
            yield "is started", _at(world, index, "idle")
        case "idle":
            if world.job.state == ENDED:
                return
            if not (shared and bounds.parts.locks):
                if _apart(bounds):
                    yield "begins a tick", _at(world, index, "beat")
                else:
                    yield from _looks_at_job(world, index)
            elif world.lock < 0:
                yield "takes the lock", _at(world._replace(lock=index), index, "beat")
        case "beat":
            if not _apart(bounds):
                yield from _looks_at_job(world, index)
            elif _rival(world, bounds, host):
                yield "sees another controller and only watches", _off(world, index, "idle")
            # Where there is no heartbeat the product waits as well; here it acts at once, which
            # leaves more room for others and far fewer states.
            elif world.beat is not None and takes_over_from(_beat(world), _who(host), _OURS_S):
                yield "sees no controller alive", _at(world, index, "write beat")
            else:
                yield "writes its heartbeat", _at(world._replace(beat=(host, True)), index, "job")
        case "write beat":
            yield "writes its heartbeat", _at(world._replace(beat=(host, True)), index, "settle")
        case "settle":
            others = [other for other in world.controllers if other.at == "write beat"]
            stalls = world.left.stalls and not (bounds.first_stalls and index == 0)
            if others and not stalls:
                # It waits SETTLE_S, longer than another takes to write what it is about to.
                return
            if others:
                world = world._replace(left=world.left._replace(stalls=world.left.stalls - 1))
            if _rival(world, bounds, host):
                yield "sees another controller and only watches", _off(world, index, "idle")
            else:
                yield "is still alone", _at(world, index, "job")
        case "job":
            yield from _looks_at_job(world, index)
        case "progress":
            after = one._replace(at="advance", progress=world.progress)
            yield from _advances(world, bounds, index, after)
        case "follow":
            # The part of a tick that follows moves: progress first, then Slurm.
            if _taken_over(world, bounds, index):
                yield "sees that another controller may act and stops", _off(world, index, "idle")
            else:
                after = one._replace(at="follow job", progress=world.progress)
                yield "reads the progress file again", _put(world, index, after)
        case "follow job":
            after = one._replace(at="advance", job=world.job)
            yield from _advances(world, bounds, index, after)
        case "decide":
            yield from _decides(world, bounds, index, one)
        case _:
            yield from _acts(world, bounds, index, one)


def _looks_at_job(world: World, index: int) -> Iterator[Step]:
    after = world.controllers[index]._replace(at="progress", job=world.job)
    yield f"asks Slurm: {world.job.state}", _put(world, index, after)


def _advances(world: World, bounds: Bounds, index: int, one: Controller) -> Iterator[Step]:
    """Goes on to :func:`_decides` after the look before it, in one step where controllers run on
    one host: what a controller thinks touches nothing that is shared."""
    if _apart(bounds):
        yield "has read all", _put(world, index, one._replace(at="decide"))
    else:
        yield from _decides(world, bounds, index, one)


def _decides(world: World, bounds: Bounds, index: int, one: Controller) -> Iterator[Step]:
    """The next step of the open move, as the product decides it; without one, what is new."""
    move = _journal(world, bounds, index).move
    if _taken_over(world, bounds, index):
        yield "sees that another controller may act and sends nothing", _off(world, index, "idle")
        return
    if move is None or not move.open:
        yield from _decides_anew(world, bounds, index, one)
        return
    for late in (False, True):
        decided = _decided(bounds.parts, move, one.job, one.progress, late)
        then = {
            MoveStep.WAIT: "done",
            MoveStep.REQUEUE: "requeue",
            MoveStep.RELEASE: "send on",
            MoveStep.STAY: "stay",
            MoveStep.END: "end",
        }[decided.step]
        begin = ""
        if decided.step is MoveStep.RELEASE:
            if one.job.held:
                then = "end"
            else:
                begin = at_once(decided.job, _now(one.job))
        after = one._replace(at=then, progress=None, begin=begin)
        label = f"looks at job and progress: {decided.step.value}"
        if late:
            label += " (it waited long)"
        yield label, _put(world, index, after)
        if late or _decided(bounds.parts, move, one.job, one.progress, True) == decided:
            return


def _decides_anew(world: World, bounds: Bounds, index: int, one: Controller) -> Iterator[Step]:
    """What a tick begins anew: a release, a move, a hint; or nothing."""
    job, journal, left = one.job, _journal(world, bounds, index), world.left
    one = one._replace(progress=None)
    if held_after_failed_launch(_job(job)) and journal.releases < MOST_RELEASES:
        yield "decides to release the job", _put(world, index, one._replace(at="release"))
        return
    if one.settling or (left.moves == 0 and left.hints == 0):
        yield "has nothing to do", _off(world, index, "idle")
        return
    said = one.progress
    starting = said is not None and said.restarts != job.restarts
    may_move = left.moves and not (bounds.first_stalls and journal.move is not None)
    if job.state == RUNNING and may_move and not starting:
        yield "decides to move the job", _put(world, index, one._replace(at="ask"))
    if job.state == PENDING and left.hints and not job.held:
        on_its_way = world.sent_on == job.restarts
        if not on_its_way:
            yield "decides what the job prefers", _put(world, index, one._replace(at="hint"))
        if job.features:
            # Of one that was sent on when it does not start for moving.commit_s.
            yield "decides to take its word back", _put(world, index, one._replace(at="take back"))
    yield "has nothing to do", _off(world, index, "idle")


def _acts(world: World, bounds: Bounds, index: int, one: Controller) -> Iterator[Step]:
    """The steps of what was decided."""
    journal, job, left = _journal(world, bounds, index), one.job, world.left
    move = journal.move
    to = "v100" if (job.on or job.features) != "v100" else "k80"
    match one.at:
        case "ask":
            nonce = f"{left.moves}.{index}.r{job.restarts}"
            after = world._replace(left=left._replace(moves=left.moves - 1))
            after = _write(after, bounds, index, journal._replace(
                move=Move(nonce, job.restarts, to)))  # fmt: skip
            yield "writes the move in the journal", _at(after, index, "wish")
        case "wish":
            after = world._replace(plan=Plan(job.restarts, move.to, move.nonce))
            yield "writes the plan with a wish to save", _at(after, index, "done")
        case "requeue":
            after, answer = requeue(world)
            if after is not world:
                after = _requeued_by(after, world, move)
            then = "note" if answer == OK else "end"
            yield f"sends the requeue: {answer}", _at(after, index, then)
        case "note":
            after = _write(world, bounds, index, journal._replace(
                move=move._replace(requeued=True)))  # fmt: skip
            yield "writes in the journal that it is requeued", _at(after, index, "done")
        case "send on":
            after = world._replace(plan=Plan(job.restarts, move.to), sent_on=job.restarts)
            yield "writes the plan of the new place", _at(after, index, "send")
        case "send":
            after, answer = update(world, move.to, _age_of(one.begin, job))
            then = "end" if answer == OK else "done"
            yield f"sends the update: {answer}", _at(after, index, then)
        case "stay":
            after = world._replace(plan=Plan(job.restarts, job.on))
            yield "writes the plan that it stays", _at(after, index, "end")
        case "end":
            after = _write(world, bounds, index, journal._replace(
                move=move._replace(open=False)))  # fmt: skip
            yield "writes in the journal that the move is over", _at(after, index, "done")
        case "hint" | "take back":
            after = world._replace(left=left._replace(hints=left.hints - 1))
            after = _write(after, bounds, index, journal._replace(hint=True))
            yield "writes the hint in the journal", _at(after, index, f"send {one.at}")
        case "send hint" | "send take back":
            wish = to if one.at == "send hint" else ""
            begin = None if bounds.parts.hints_keep_begin else SAME_SECOND
            after, answer = update(world, wish, begin)
            yield f"sends the update: {answer}", _at(after, index, "hint over")
        case "hint over":
            after = _write(world, bounds, index, journal._replace(hint=False))
            yield "writes in the journal that the hint is over", _at(after, index, "done")
        case "release":
            after = world
            if world.job.held:
                after = world._replace(job=world.job._replace(held=False))
            yield "releases the job", _at(after, index, "released")
        case "released":
            after = _write(world, bounds, index, journal._replace(releases=journal.releases + 1))
            yield "writes the release in the journal", _at(after, index, "done")
        case "done":
            if bounds.follows and not one.settling and move is not None and move.open:
                follows = Controller(at="follow", settling=True, stalled=one.stalled)
                yield "follows the move", _put(world, index, follows)
            yield "ends its tick", _off(world, index, "idle")


def _requeued_by(after: World, before: World, move: Move) -> World:
    """A requeue that ends an attempt must be the one that this attempt has saved for."""
    if move.nonce in before.processes[before.job.restarts].answered:
        return after
    return after._replace(broken="an attempt was requeued that did not acknowledge this move")


def _apart(bounds: Bounds) -> bool:
    """Whether controllers have several state folders: else nothing can come of the heartbeat."""
    return len(set(bounds.hosts)) > 1


def _beat_gets_old(world: World, bounds: Bounds) -> Iterator[Step]:
    host, left = world.beat[0], world.left
    index = bounds.hosts.index(host)
    one = world.controllers[index]
    after = world._replace(beat=(host, False))
    if one.at == "off":
        yield f"time passes: the heartbeat of {host} is old", after
    elif (
        left.stalls
        and not (bounds.first_stalls and index)
        and (bounds.stalls_anywhere or one.at in _BEFORE_IT_SENDS)
    ):
        after = after._replace(left=left._replace(stalls=left.stalls - 1))
        after = _put(after, index, one._replace(stalled=one.at != "idle"))
        yield f"controller {index}: is stalled, its heartbeat is old", after


def _rival(world: World, bounds: Bounds, host: str) -> bool:
    return bounds.parts.rival_in(_beat(world), _who(host), _OURS_S) is not None


def _taken_over(world: World, bounds: Bounds, index: int) -> bool:
    who = _who(bounds.hosts[index])
    return bounds.parts.taken_over_from(_beat(world), who, _OURS_S) != ""


def _beat(world: World) -> Heartbeat | None:
    if world.beat is None:
        return None
    host, fresh = world.beat
    return _heartbeat(host, fresh)


@lru_cache
def _heartbeat(host: str, fresh: bool) -> Heartbeat:
    time = _OURS_S if fresh else _OURS_S - 900
    return Heartbeat(_ONE_NAME, 1, "act", time, 30.0, identity=host)


@lru_cache
def _who(host: str) -> Who:
    """All hosts of the model have one name: their identities alone tell them apart."""
    return Who(_ONE_NAME, host)


@cache
def _decided(
    parts: Parts, move: Move, job: SlurmJob, progress: Progress | None, late: bool
) -> MoveDecision:
    """The product's decision, given records that are made of the model's."""
    now = _now(job)
    if job.state == RUNNING:
        now = _OPENED_S + (_TIMES.ack_wait_s + 1 if late else 1.0)
    held = {job.on: 1} if job.on else {}
    known = OpenMove(_entry(move, parts.habit), _job(job, parts.habit), _progress(progress), held)
    return parts.decide_move(known, now, _TIMES)


@cache
def _entry(move: Move, habit: str) -> Entry:
    details = {
        "restarts": move.restarts, "save": move.nonce, "gpus": {move.to: 1}, "habit": habit,
    }  # fmt: skip
    steps = ((REQUEUED, _OURS_S),) if move.requeued else ()
    phase = REQUEUED if move.requeued else "asked"
    return Entry(1, _JOB, "move", phase, _OPENED_S, _OPENED_S, details, None, steps)


@cache
def _job(job: SlurmJob, habit: str = "yes") -> Job:
    return Job(
        id=_JOB,
        raw_id=1,
        uid=1000,
        user="ann",
        name="training",
        state=_STATES[job.state],
        slurm_state=job.state,
        reason="launch failed requeued held" if job.held else "",
        held=job.held,
        submit_s=_submitted_s(job),
        gpus={"n1": {job.on: 1}} if job.on else {},
        features=job.features,
        restarts=job.restarts,
        declaration=Declaration(checkpoint=habit),
    )


@cache
def _progress(progress: Progress | None) -> progress_file.Progress | None:
    if progress is None:
        return None
    source = {
        "job": _JOB, "time": 1.0, "restarts": progress.restarts, "host": "n1", "pid": 1,
        "in_step": False, "started": 1.0, "model": "", "samples": 0, "rate": 0.0,
        "window_s": 0.0, "batch": 1, "gpus": 1, "noise_scale": None, "checkpoint": None,
        "ack": {"save": progress.ack, "time": 1.0, "samples": 0} if progress.ack else None,
        "restart_s": None, "lost": 0, "finished": False,
    }  # fmt: skip
    read = progress_file.parse(source)
    assert read is not None
    return read


def _submitted_s(job: SlurmJob) -> float:
    return _OURS_S if job.by_us else _SUBMITTED_S


def _now(job: SlurmJob) -> float:
    return _submitted_s(job) + _SINCE_S[job.age]


def _age_of(begin: str, job: SlurmJob) -> int:
    """From which age on Slurm starts a job that has got this begin time."""
    if begin == "now":
        return SAME_SECOND
    after_s = float(begin.removeprefix("uts")) - _submitted_s(job)
    return SETTLING if after_s <= _SINCE_S[SETTLING] else SETTLED


def _journal(world: World, bounds: Bounds, index: int) -> Journal:
    return world.journals[sorted(set(bounds.hosts)).index(bounds.hosts[index])]


def _write(world: World, bounds: Bounds, index: int, journal: Journal) -> World:
    place = sorted(set(bounds.hosts)).index(bounds.hosts[index])
    found = world.journals
    return world._replace(journals=(*found[:place], journal, *found[place + 1 :]))


def _put(world: World, index: int, one: Controller) -> World:
    found = world.controllers
    return world._replace(controllers=(*found[:index], one, *found[index + 1 :]))


def _at(world: World, index: int, at: str) -> World:
    return _put(world, index, world.controllers[index]._replace(at=at))


def _off(world: World, index: int, at: str = "off") -> World:
    """Its tick is over: it forgets what it has read, and gives the lock back."""
    if world.lock == index:
        world = world._replace(lock=-1)
    return _put(world, index, Controller(at=at))
