"""What a policy sees: plain numbers in arrays, for thousands of jobs at once.

Axes: N nodes, R GPU types, J jobs, C GPU counts. A policy may rely on every array having the
shape that stands beside it, and on ``rate > 0`` meaning "this job may run so": types that the
owner excluded, GPUs with too little memory, counts that the script cannot run with, and types so
slow that the rest of the work would not fit in the time limit, all have rate 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.domain.traits import BatchTrait, CpuTrait, NetworkTrait, Prospects

State = dict[str, object]
"""A policy's own memory between rounds: plain and serialisable as JSON. The caller keeps it."""

PRIORITIES = float(1 << 32)
"""Slurm's priorities are below it."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class NodeArrays:
    """The nodes, and what managed jobs may use of them in this round.

    What unmanaged jobs hold or are about to take is already subtracted; what managed jobs hold is
    not, since the policy may move them.
    """

    names: tuple[str, ...]
    """(N,) the nodes' names in Slurm."""
    gpus: IntArray
    """(N, R) GPUs that managed jobs may use."""
    cpus: IntArray
    """(N,) CPUs that managed jobs may use."""
    mem_mb: IntArray
    """(N,) memory in MB that managed jobs may use."""
    group: IntArray
    """(N,) index of the node's access group: nodes of one group are open to the same jobs."""
    rack: IntArray
    """(N,) index of the node's rack; all 0 where the topology is unknown."""
    whole: "NodeArrays | None" = None
    """The same nodes with all that they have, held or free; None: as here."""


@dataclass(frozen=True)
class JobArrays:
    """The managed jobs, waiting and running."""

    ids: tuple[str, ...]
    """(J,) Slurm's job numbers, as text."""
    arrival_s: FloatArray
    """(J,) submission, s, on the clock of ``View.now``."""
    weight: FloatArray
    """(J,) importance, 1 for an ordinary job."""
    priority: FloatArray
    """(J,) the job's own place in Slurm's order, higher first: PRIORITIES * the tier of its
    partition + its priority, without exchanges of places; the policy may break ties with it."""
    total: FloatArray
    """(J,) samples of the whole job (an estimate where it was not declared)."""
    left: FloatArray
    """(J,) samples still to train."""
    rate: FloatArray
    """(J, R, C) samples/s of the whole job on ``View.counts[c]`` GPUs of type r; 0: cannot."""
    known: BoolArray
    """(J, R, C) whether that rate was measured or came from a table, rather than estimated."""
    running: BoolArray
    """(J,) holds GPUs now, or its start is requested and has not happened yet."""
    movable: BoolArray
    """(J,) may be checkpointed and moved now; a running job that may not keeps what it holds."""
    mixable: BoolArray
    """(J,) can run on several nodes, so that GPU types may be mixed, one type a node."""
    held: IntArray
    """(K, 4) what running jobs hold: rows of (job, node, type, count)."""
    since_s: FloatArray
    """(J,) start of the present placement, s; 0 where not running."""
    restart_s: FloatArray
    """(J,) seconds that a move costs (save, requeue, load), measured or estimated."""
    attained: FloatArray
    """(J,) GPU-seconds received so far."""
    cpus_per_gpu: FloatArray
    """(J,) CPUs that the job asks for per GPU."""
    mem_per_gpu_mb: FloatArray
    """(J,) memory in MB that the job asks for per GPU."""
    groups: BoolArray
    """(J, G) access groups of nodes that the job's owner may use."""
    max_nodes: IntArray
    """(J,) most nodes that the job may spread over; 1 for an ordinary script."""
    end_known: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """(J,) whether both its work and its speed in samples/s are known, so that a time may be given;
    else ``left`` and ``rate`` are assumptions by which to compare. True for all where nothing is
    given."""
    limit_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(J,) seconds until the time limit ends the present run of a running job; inf for one that
    waits or has no limit, and for all jobs where nothing is given. A move begins a new run."""
    copies: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) most copies that the job may be forked into, each on a node of its own; 1 for an
    ordinary script, and for all jobs where nothing is given."""
    tasks: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) equal tasks that a round of the job consists of, which may run one after another on a
    GPU (Hare); 1 for an ordinary script, and for all jobs where nothing is given."""
    owner: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) whose job it is: jobs with the same number belong to one user. Each job stands alone
    where nothing is given."""
    cpu_sensitivity: CpuTrait | None = None
    """How the speed hangs on CPUs and memory; None: not known."""
    batches: BatchTrait | None = None
    """The batches that the jobs may train with; None: theirs only."""
    network: NetworkTrait | None = None
    """What the jobs lose when their GPUs are apart; None: not known."""
    prospects: Prospects | None = None
    """How sure the rates are, restarts so far, from when a job may be moved; None: not known."""

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Job -> its row."""
        return {id_: row for row, id_ in enumerate(self.ids)}

    def __post_init__(self) -> None:
        """Fill in the arrays that have a default where they were left out."""
        if not len(self.end_known):
            object.__setattr__(self, "end_known", np.ones(len(self.ids), dtype=bool))
        if not len(self.limit_s):
            object.__setattr__(self, "limit_s", np.full(len(self.ids), np.inf))
        for name in ("copies", "tasks"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.ones(len(self.ids), dtype=np.int64))
        if not len(self.owner):
            object.__setattr__(self, "owner", np.arange(len(self.ids), dtype=np.int64))


@dataclass(frozen=True)
class View:
    """Everything a policy may know."""

    now: float
    """The time of the decision, s."""
    round_s: float
    """Time until the next decision, s."""
    seed: int
    """For a policy that draws numbers; the same view and state give the same plan."""
    types: tuple[str, ...]
    """(R,) names of the GPU types."""
    counts: tuple[int, ...]
    """(C,) GPU counts of the last axis of ``JobArrays.rate``, rising, e.g. (1, 2, 3, 4, 8)."""
    nodes: NodeArrays
    """The nodes, with what managed jobs may use."""
    jobs: JobArrays
    """The managed jobs."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The policy's own settings from the site's configuration."""
