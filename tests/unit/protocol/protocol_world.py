"""The state of the model: what Slurm, the files, the controllers and the processes hold.

One job, which is a training of ``Bounds.work`` units. A world is immutable and hashable. Every time
is one of a few classes, see :class:`SlurmJob`; clocks that differ are not modelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from slurm_hadar.controller.actuation.move_steps import MoveDecision, decide_move
from slurm_hadar.controller.lock import rival_in, taken_over_from
from slurm_hadar.exchange.plan_file import save_wish
from slurm_hadar.runtime.attempts import AttemptId, later, next_attempt

PENDING, RUNNING, COMPLETING, ENDED = "PENDING", "RUNNING", "COMPLETING", "ENDED"
SAME_SECOND, SETTLING, SETTLED = 0, 1, 2
"""Time since the requeue: the same second; within KillWait; after cred_expire."""

Lineage = tuple[int, ...]
"""Which attempt (its restart count) trained each unit of the parameters."""


class SlurmJob(NamedTuple):
    """The job in slurmctld. ``features``: GPU type it asks for, empty: as its owner wrote it;
    ``on``: type it runs on. ``age``: time since the requeue; ``begin``: the age from which Slurm
    starts it; ``by_us``: a controller requeued it."""

    state: str = PENDING
    restarts: int = 0
    features: str = ""
    on: str = ""
    age: int = SETTLED
    begin: int = SAME_SECOND
    by_us: bool = False
    held: bool = False
    end: str = ""


class Plan(NamedTuple):
    """The plan file. ``save``: nonce of a wish to save."""

    restarts: int
    on: str
    save: str = ""


class Progress(NamedTuple):
    """The newest progress file. ``ack``: the nonce that is answered."""

    restarts: int
    ack: str = ""


class Move(NamedTuple):
    """The last move in a journal."""

    nonce: str
    restarts: int
    to: str
    requeued: bool = False
    open: bool = True


class Journal(NamedTuple):
    """One state folder: the last move, whether a hint is open, how many releases were made."""

    move: Move | None = None
    hint: bool = False
    releases: int = 0


class Process(NamedTuple):
    """One attempt of the job. Its place in ``World.processes`` is its restart count.

    ``at``: its program counter. ``listed``: the attempts that it saw. ``stamp``: newest and
    previous checkpoint as it loaded them. ``saved``: units in its last save. ``why``: what a save
    is for. ``kept``: its copy of the newest checkpoint. ``term``: Slurm has sent TERM.
    """

    at: str = "load"
    identity: AttemptId | None = None
    listed: frozenset[AttemptId] = frozenset()
    stamp: tuple[Lineage, Lineage] = ((), ())
    lineage: Lineage = ()
    saved: int = 0
    why: str = ""
    kept: Lineage = ()
    ack: str = ""
    answered: frozenset[str] = frozenset()
    term: bool = False


class Controller(NamedTuple):
    """One controller. ``at``: its program counter; ``job``, ``progress``: what it has read;
    ``settling``: in the part of a tick that follows open moves; ``stalled``: for longer than a
    heartbeat lasts since this tick began."""

    at: str = "idle"
    job: SlurmJob | None = None
    progress: Progress | None = None
    settling: bool = False
    begin: str = ""
    stalled: bool = False


class Left(NamedTuple):
    """How many faults and decisions may still come. Counts down."""

    crashes: int = 0
    """Controllers killed."""
    silent: int = 0
    """Nodes that go silent: Slurm requeues the job, its process runs on."""
    requeues: int = 0
    """Requeues by the owner or by preemption."""
    launches: int = 0
    """Launches that fail; Slurm then holds the job."""
    moves: int = 0
    hints: int = 0
    stalls: int = 0
    """Controllers that stop for longer than a heartbeat lasts, and go on."""


class World(NamedTuple):
    """Everything: what attempts and controllers share, then what is the controllers', from
    ``sent_on`` on, then what is the attempts', from ``processes`` on.

    Empty tuples of ``newest`` and ``previous``: no such checkpoint. ``beat``: host of the heartbeat
    and whether it is fresh. ``sent_on``: restart count with which the job was last sent on.
    ``owner``: the last attempt that completed its take-over. ``broken``: the promise that the last
    step broke."""

    job: SlurmJob
    plan: Plan | None
    progress: Progress | None
    sent_on: int
    journals: tuple[Journal, ...]
    controllers: tuple[Controller, ...]
    beat: tuple[str, bool] | None
    lock: int
    left: Left
    processes: tuple[Process, ...]
    newest: Lineage
    previous: Lineage
    folders: frozenset[AttemptId]
    owner: int = -1
    broken: str = ""


def _replaces_fast(kind: Any) -> None:
    """An exploration spends a third of its time in ``_replace``, and that of the standard library
    asks for each field whether it is replaced."""
    places = {name: place for place, name in enumerate(kind._fields)}
    made = tuple.__new__

    def _replace(self: Any, **fields: Any) -> Any:
        values = list(self)
        for name, value in fields.items():
            values[places[name]] = value
        return made(kind, values)

    kind._replace = _replace


for _kind in (SlurmJob, Process, Controller, Left, World):
    _replaces_fast(_kind)


@dataclass(frozen=True)
class Parts:
    """The pure functions of the product that the model calls, and the rules that it follows.

    A planted fault replaces one of them.
    """

    next_attempt: Callable[..., AttemptId] = next_attempt
    later: Callable[..., AttemptId | None] = later
    save_wish: Callable[..., str] = save_wish
    decide_move: Callable[..., MoveDecision] = decide_move
    rival_in: Callable[..., str | None] = rival_in
    taken_over_from: Callable[..., str] = taken_over_from
    supersedes: Callable[[AttemptId], Callable[[AttemptId], bool]] = lambda mine: mine.supersedes
    """Which attempts an attempt removes."""
    removes_earlier: bool = True
    """A take-over removes the folders of earlier attempts."""
    renames_from_folder: bool = True
    """What is published is renamed out of the attempt's folder."""
    reloads: bool = True
    """A take-over loads the checkpoint again where it has changed."""
    locks: bool = True
    """Controllers with one state folder take its lock."""
    habit: str = "yes"
    """How the job saves: ``yes`` by the runtime; ``signal``: it saves and requeues itself."""
    hints_keep_begin: bool = True
    """A hint leaves the begin time of a waiting job as it is."""


PRODUCT = Parts()


@dataclass(frozen=True)
class Bounds:
    """What one exploration covers.

    ``hosts``: of each controller. ``whole_saves``: a take-over is one step, and so is a save; else
    each change of a file is one. ``stalls_anywhere``: a controller may also be stalled between its
    last look for another one and what it then sends. ``follows``: a tick follows the moves that it
    began. ``first_stalls``: only the first controller stalls, as nothing but the names tells
    controllers on two hosts apart, and each begins one move at most.
    """

    name: str
    left: Left
    hosts: tuple[str, ...] = ()
    work: int = 2
    whole_saves: bool = False
    stalls_anywhere: bool = False
    follows: bool = True
    first_stalls: bool = False
    parts: Parts = PRODUCT


def first(bounds: Bounds) -> World:
    """The job is submitted, and nothing runs."""
    return World(
        job=SlurmJob(),
        processes=(),
        newest=(),
        previous=(),
        folders=frozenset(),
        plan=None,
        progress=None,
        sent_on=-1,
        journals=tuple(Journal() for _ in sorted(set(bounds.hosts))),
        controllers=tuple(Controller() for _ in bounds.hosts),
        beat=None,
        lock=-1,
        left=bounds.left,
    )
