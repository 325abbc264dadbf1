"""What each policy would have given: the last jobs of a history run again in Slurm's order.

Jobs that opted in may be stopped and started again, and run on other GPU types at their model's
speed where the configuration names the model, else at the speed that data sheets let expect
(``profiles/specs.py``). What they held they keep in number, and they spread over no more nodes than
they had. The cluster is empty at the beginning.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, State, View
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.specs import lookup, relative_speed
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Decide
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import sacct
from slurm_hadar.simulator.traces.sacct import ModelNames
from slurm_hadar.simulator.workload import Queued, Workload, doable
from slurm_hadar.tuning.requested_types import OPEN
from slurm_hadar.tuning.sacct_history import History, texts
from slurm_hadar.tuning.site import SlurmSite

OWN = "own types"
ANY = "any type"
POLICIES = ("timetable", "srtf", "tiresias", "gavel_las")
"""Asked by default, beside the two runs that tell what freedom of type alone is worth."""
_ANY_NODES = 1_000_000
SHARES = (0.1, 0.3)
"""Of the jobs that opt in, beside all of them."""


@dataclass(frozen=True)
class ReplayWorkload:
    """The jobs of a replay. ``own``: as they were, each on the types that it could have had;
    ``free``: on any type. ``rows``: of the history. ``left_out``: how many fit nowhere today;
    ``models``: how many have a model of the throughput tables, ``sheets``: how many go by data
    sheets, ``stuck``: how many know no other type's speed."""

    own: Workload
    free: Workload
    cluster: VirtualCluster
    rows: tuple[int, ...]
    accounts: tuple[str, ...]
    run_s: FloatArray
    """(J,) seconds that each ran."""
    left_out: int
    models: int
    sheets: int
    stuck: int


def work_of(
    history: History, site: SlurmSite, rates: Rates, names: ModelNames, most: int
) -> ReplayWorkload | None:
    """The last ``most`` jobs that ran and ended, by arrival; None where there is none."""
    rows = history.ended[-most:]
    if not len(rows):
        return None
    cluster = cluster_of(site)
    work = sacct.read(texts(history, rows.tolist()), history.name, cluster.types, rates, names)
    # Whole seconds and the order of traces.sacct are those of the history: one row, one job.
    at = {id_: row for row, id_ in zip(rows.tolist(), [history.ids[r] for r in rows], strict=True)}
    rows = np.array([at[id_] for id_ in work.ids], dtype=np.int64)
    nodes = history.max_nodes[rows]
    work = replace(work, max_nodes=np.where(nodes > 0, nodes, _ANY_NODES), lines=())
    work, sheets, stuck = _by_sheets(work, history, rows)
    own = replace(work, rate=np.where(_own(history, rows)[:, :, None], work.rate, 0.0))
    keep = np.flatnonzero(doable(own, cluster).any(axis=(1, 2)))
    if not len(keep):
        return None
    rows = rows[keep]
    return ReplayWorkload(
        own=own.take(keep),
        free=work.take(keep),
        cluster=cluster,
        rows=tuple(rows.tolist()),
        accounts=tuple(history.accounts[row] for row in rows),
        run_s=history.run_s[rows],
        left_out=len(work.ids) - len(keep),
        models=int(sum(bool(model) for model in work.models)),
        sheets=sheets,
        stuck=stuck,
    )


def cluster_of(site: SlurmSite) -> VirtualCluster:
    """The site's GPU nodes as a pretend cluster of one rack."""
    table = np.array(
        [[node.gpus.get(kind, 0) for kind in site.types] for node in site.gpu_nodes], dtype=np.int64
    ).reshape(len(site.gpu_nodes), len(site.types))
    names = tuple(node.name for node in site.gpu_nodes)
    return VirtualCluster(site.types, names, table, np.zeros(len(names), np.int64))


def _own(history: History, rows: IntArray) -> BoolArray:
    """(J, R) whether a job could have had a type as things were: what it asked for; all where it
    left that open, and always what it had."""
    asked = history.asked[rows]
    own: BoolArray = history.held[rows] > 0
    own |= (asked == OPEN)[:, None]
    typed = np.flatnonzero(asked != OPEN)
    own[typed, asked[typed]] = True
    return own


def _by_sheets(work: Workload, history: History, rows: IntArray) -> tuple[Workload, int, int]:
    """Speeds of the jobs without a model by data sheets; how many these are, and how many of them
    stay where they were since the speed of no other type is known."""
    kinds = history.types
    relative = np.eye(len(kinds))
    for at, one in enumerate(kinds):
        for other, two in enumerate(kinds):
            mine, theirs = lookup(one), lookup(two)
            if mine and theirs:
                relative[at, other] = relative_speed(theirs.tflops, mine.tflops)
    rate, total = work.rate.copy(), work.total.copy()
    sheets = stuck = 0
    seconds = history.run_s[rows]
    for job, model in enumerate(work.models):
        held = history.held[rows[job]]
        if model and (held > 0).sum() == 1 and rate[job].any():
            continue
        # A gang over several types runs at the slowest one's speed.
        slowest = min(np.flatnonzero(held).tolist(), key=lambda k: (relative[0, k], k))
        column = work.counts.index(int(held.sum()))
        rate[job] = 0.0
        rate[job, :, column] = relative[slowest]
        total[job] = seconds[job]
        sheets += 1
        stuck += bool((relative[slowest] > 0).sum() == 1 and len(kinds) > 1)
    return replace(work, rate=rate, total=total), sheets, stuck


@dataclass(frozen=True)
class PolicyReplay:
    """One policy's outcome, or why there is none. ``share``: of the jobs that opted in."""

    policy: str
    outcome: Outcome | None
    why: str = ""
    share: float = 1.0


class _LateError(Exception):
    pass


@dataclass(frozen=True)
class _Replay:
    """How all are run. ``until``: when the time is up, s (monotonic)."""

    work: ReplayWorkload
    restart_s: float
    until: float
    options: Mapping[str, object]

    def own(self, factor: FloatArray | None = None) -> PolicyReplay:
        """As they were typed, under Slurm alone; at their speed times ``factor`` (J,)."""
        load = self.work.own
        if factor is not None:
            load = replace(load, rate=load.rate * factor[:, None, None])
        return self._run(OWN, load, None, Drawn(unmanaged=1.0))

    def any(self) -> PolicyReplay:
        """All of them with a free choice of type, and nothing else."""
        return self._run(ANY, self.work.free, _nothing, Drawn(), moves=False)

    def policy(self, name: str, share: float) -> PolicyReplay:
        """Under a policy, where so many opted in; the others are as they were."""
        managed = requests(self.work.free, self.work.cluster, Drawn(1.0 - share)).managed
        own, free = ((load.rate > 0).any(axis=2) for load in (self.work.own, self.work.free))
        jobs = len(managed)
        queue = Queued(
            managed=managed.astype(np.int64),
            types=np.where(managed[:, None], free, own),
            limit_s=np.full(jobs, np.nan),
            priority=np.zeros(jobs),
            users=("",) * jobs,
            accounts=self.work.accounts,
        )
        load = replace(self.work.free, queue=queue)
        words = name if share >= 1.0 else f"{name}, {share:.0%} opt in"
        return replace(self._run(words, load, policies.get(name), Drawn()), share=share)

    def _run(
        self, name: str, load: Workload, decide: Decide | None, drawn: Drawn, moves: bool = True
    ) -> PolicyReplay:
        def bounded(view: View, state: State) -> tuple[Plan, State]:
            if time.monotonic() > self.until:
                raise _LateError
            assert decide is not None
            return decide(view, state)

        setting = SimulationSetting(
            load,
            self.work.cluster,
            drawn,
            costs=Costs(restart_s=self.restart_s),
            steering=SteeringSetting(moves=moves),
            options=self.options,
        )
        try:
            if time.monotonic() > self.until:
                raise _LateError
            outcome = simulate(setting, bounded if decide else None, name)
        except _LateError:
            return PolicyReplay(
                name, None, "out of time; take fewer jobs (--jobs) or more time (--limit)"
            )
        except HadarError as error:
            return PolicyReplay(name, None, str(error))
        return PolicyReplay(name, outcome)


def _nothing(view: View, state: State) -> tuple[Plan, State]:
    return Plan(), state


def rerun(
    work: ReplayWorkload, factor: FloatArray, restart_s: float, limit_s: float = 60.0
) -> Outcome | None:
    """``own types`` again with each job's speed times ``factor`` (J,); None where it takes too
    long."""
    return _Replay(work, restart_s, time.monotonic() + limit_s, {}).own(factor).outcome


def run_all(
    work: ReplayWorkload,
    names: Sequence[str],
    restart_s: float,
    limit_s: float,
    options: Mapping[str, object] | None = None,
) -> list[PolicyReplay]:
    """``own types``, ``any type``, then the policies, and the first of them where only some opt in.
    ``limit_s``: clock seconds for all together, a safety net: a policy that does not end within
    what is left is listed without figures."""
    replay = _Replay(work, restart_s, time.monotonic() + limit_s, options or {})
    return [
        replay.own(),
        replay.any(),
        *(replay.policy(name, 1.0) for name in names),
        *(replay.policy(name, share) for name in names[:1] for share in SHARES),
    ]
