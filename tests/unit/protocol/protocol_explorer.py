"""Every world that the steps reach, and what must hold in each."""

import gc
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from protocol_attempts import attempt_steps
from protocol_controllers import controller_steps
from protocol_slurm import acts_on_old_look, slurm_steps
from protocol_world import ENDED, Bounds, World, first

Steps = Callable[[World], Iterator[tuple[str, World]]]


@dataclass
class Explored:
    """What an exploration found. ``broken``: the first promise that does not hold, empty where all
    hold; ``trace``: the steps that lead there, one of the shortest."""

    states: int
    steps: int
    seconds: float
    broken: str = ""
    trace: list[str] = field(default_factory=list)
    completed: int = 0

    def __str__(self) -> str:
        text = f"{self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s"
        if self.broken:
            text += f"\n{self.broken}:\n" + "\n".join(f"  {step}" for step in self.trace)
        return text


def explore(bounds: Bounds, *, deep: bool = False) -> Explored:
    """Visit every reachable world, or stop at the first that breaks a promise. ``deep``: depth
    first, which finds what is many steps away sooner, by a longer trace."""
    # Nothing here makes a cycle, and the collector would look through every world again and again.
    gc.disable()
    try:
        return _explore(bounds, deep)
    finally:
        gc.enable()


def _explore(bounds: Bounds, deep: bool) -> Explored:
    begin = perf_counter()
    start = first(bounds)
    worlds, number = [start], {start: 0}
    origin: list[tuple[int, str]] = [(-1, "")]
    backward: list[array[int]] = [array("l")]
    steps = 0

    def found(place: int, broken: str) -> Explored:
        trace = []
        while place > 0:
            place, label = origin[place]
            trace.append(label)
        seconds = perf_counter() - begin
        return Explored(len(worlds), steps, seconds, broken, trace[::-1])

    attempts, controllers = _steps_of_attempts(bounds), _steps_of_controllers(bounds)
    waiting = deque([0])
    while waiting:
        place = waiting.pop() if deep else waiting.popleft()
        world = worlds[place]
        broken = world.broken or promise_broken(world, bounds)
        if broken:
            return found(place, broken)
        for label, after, lives in _next(world, bounds, attempts, controllers):
            steps += 1
            at = number.get(after)
            if at is None:
                at = number[after] = len(worlds)
                worlds.append(after)
                origin.append((place, label))
                backward.append(array("l"))
                waiting.append(at)
            if lives:
                backward[at].append(place)
    stuck = _stuck(worlds, backward)
    if stuck is not None:
        return found(stuck, "the job cannot complete without a controller from here")
    completed = sum(world.job.state == ENDED for world in worlds)
    return Explored(len(worlds), steps, perf_counter() - begin, completed=completed)


def promise_broken(world: World, bounds: Bounds) -> str:
    """The promise that a world breaks; empty where it keeps all."""
    job = world.job
    if job.state == ENDED and len(world.newest) < bounds.work:
        return "job lost: it completed and its checkpoint does not hold all work"
    if world.newest[: len(world.previous)] != world.previous:
        return "the previous checkpoint belongs to another lineage"
    return ""


class _Unused:
    """What stands where a step may not look."""

    def _look(self, *_: object) -> Any:
        raise AssertionError("a step looks at a part of the world in which it has no part")

    __getattr__ = __eq__ = __bool__ = __iter__ = __len__ = __getitem__ = __contains__ = _look
    __hash__ = None


_CONTROLLERS = World._fields.index("sent_on")
_ATTEMPTS = World._fields.index("processes")


class _Remembered:
    """Steps that have no part in one range of a world's parts: they are the same in all worlds that
    differ there only."""

    def __init__(self, steps: Steps, begin: int, end: int) -> None:
        self._steps, self._begin, self._end = steps, begin, end
        self._unused = tuple(_Unused() for _ in World._fields[begin:end])
        self._found: dict[tuple[Any, ...], list[tuple[str, tuple[Any, ...], tuple[Any, ...]]]] = {}

    def __call__(self, world: World) -> Iterator[tuple[str, World]]:
        begin, end = self._begin, self._end
        key = world[:begin] + world[end:]
        found = self._found.get(key)
        if found is None:
            unused = self._unused
            found = self._found[key] = []
            for label, after in self._steps(World._make(world[:begin] + unused + world[end:])):
                assert all(x is y for x, y in zip(after[begin:end], unused, strict=True)), label
                found.append((label, after[:begin], after[end:]))
        rest = world[begin:end]
        for label, before, behind in found:
            yield label, tuple.__new__(World, before + rest + behind)


def _steps_of_attempts(bounds: Bounds) -> Steps:
    direct = partial(attempt_steps, bounds=bounds)
    # Without controllers few worlds would share them.
    return _Remembered(direct, _CONTROLLERS, _ATTEMPTS) if bounds.hosts else direct


def _steps_of_controllers(bounds: Bounds) -> Steps:
    direct = partial(controller_steps, bounds=bounds)
    remembered = _Remembered(direct, _ATTEMPTS, len(World._fields))

    def steps(world: World) -> Iterator[tuple[str, World]]:
        # A requeue ends an attempt.
        requeues = any(one.at == "requeue" for one in world.controllers)
        return direct(world) if requeues else remembered(world)

    return steps


def _next(
    world: World, bounds: Bounds, attempts: Steps, controllers: Steps
) -> Iterator[tuple[str, World, bool]]:
    """The steps from a world. The last of each: whether the job may rely on this step to complete.

    It may rely on Slurm and its own processes, never on a controller, with two exceptions: a tick
    that is under way ends (or its controller dies) before time passes, and a hold that Slurm itself
    set after a failed launch needs a controller.
    """
    needed = world.job.held or acts_on_old_look(world)
    for label, after in slurm_steps(world, bounds):
        yield label, after, after.left == world.left
    for label, after in attempts(world):
        yield label, after, True
    for label, after in controllers(world):
        yield label, after, needed and _same_faults(after, world)


def _same_faults(after: World, before: World) -> bool:
    left = before.left
    return after.left._replace(moves=left.moves, hints=left.hints) == left


def _stuck(worlds: list[World], backward: list["array[int]"]) -> int | None:
    """The first world from which the job does not complete, whatever is chosen."""
    reached = bytearray(len(worlds))
    open_ = [place for place, world in enumerate(worlds) if world.job.state == ENDED]
    for place in open_:
        reached[place] = 1
    while open_:
        for before in backward[open_.pop()]:
            if not reached[before]:
                reached[before] = 1
                open_.append(before)
    return next((place for place, done in enumerate(reached) if not done), None)
