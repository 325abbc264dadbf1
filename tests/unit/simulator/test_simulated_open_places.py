"""The simulator moves a running job where the live controller does (``open_places`` of both)."""

from dataclasses import dataclass, field, replace
from typing import Any

from hand_made import CONFIG, node, observation, ordinary, running
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import machines, work

from slurm_hadar.controller.actuation.destinations.open_places import places_lost
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job
from slurm_hadar.domain.placement import Placement
from slurm_hadar.simulator.queue.cluster_state import ClusterState
from slurm_hadar.simulator.queue.open_places import OpenPlaces
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.traces import queue_columns
from slurm_hadar.simulator.traces.csv_rows import rows

TYPES = ("v100", "p100", "k80")
NODES = ("v1", "p1", "k1")
HAS = 16
"""GPUs of each type, on one node."""


@dataclass
class Move:
    job: Job
    placement: Placement
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class Case:
    """``free``: GPUs of each type; a job with ``gpus`` of the type ``old`` is to move to ``new``;
    ``waiting``: types in the order of the list, GPUs, priority."""

    free: list[int]
    old: int
    new: int
    gpus: int
    priority: int
    waiting: list[tuple[list[int], int, int]]

    def live(self) -> bool:
        nodes = [
            node(name, HAS, gpus_used={kind: HAS - free}, partitions=(kind,))
            for name, kind, free in zip(NODES, TYPES, self.free, strict=True)
        ]
        here, there = ({TYPES[kind]: self.gpus} for kind in (self.old, self.new))
        mover = running("10", {NODES[self.old]: here}, priority=self.priority,
                        partitions=(TYPES[self.old],), request=asks(self.gpus))  # fmt: skip
        waiting = [
            ordinary(str(20 + at), priority=priority, request=asks(gpus),
                     partitions=tuple(TYPES[kind] for kind in kinds))
            for at, (kinds, gpus, priority) in enumerate(self.waiting)
        ]  # fmt: skip
        seen = observation([mover, *waiting], nodes, priority_returns=True)
        move = Move(mover, Placement(there, nodes={NODES[self.new]: there}))
        return not places_lost([move], [], seen, CONFIG)

    def simulated(self) -> bool:
        """The first job moves, then come those that wait, and one for what else is not free."""
        others = [
            HAS - free - self.gpus * (kind == self.old) for kind, free in enumerate(self.free)
        ]
        jobs: list[tuple[Any, int, int]] = [
            (range(3), self.gpus, self.priority),
            *self.waiting,
            *((range(3), gpus, 0) for gpus in others),
        ]
        counts = range(1, HAS + 1)
        rate = [[[float(n == gpus) for n in counts]] * 3 for _, gpus, _ in jobs]
        load = work(rate, total=[1.0] + [1000.0] * (len(jobs) - 1), counts=counts, types=TYPES)
        lines = [
            f"j{at},{' '.join(TYPES[kind] for kind in kinds)},{priority}"
            for at, (kinds, _, priority) in enumerate(jobs)
        ]
        text = "\n".join(["job_id,types,priority", *lines])
        queue = queue_columns.queued(list(rows(text, "t.csv", ["job_id"])), TYPES)
        cluster = machines(",".join(f"{kind}={HAS}" for kind in TYPES), str(HAS))
        limits = Drawn(limits=(1.0, 1.0))
        state = ClusterState(SimulationSetting(replace(load, queue=queue), cluster, limits))
        state.arrive(0.0)
        state.lists.update({at: kinds for at, (kinds, _, _) in enumerate(self.waiting, 1)})
        state.start(0, Placement({TYPES[self.old]: self.gpus}), 0.0)
        for kind, gpus in enumerate(others):
            state.start(len(jobs) - 3 + kind, Placement({TYPES[kind]: gpus}), 0.0)
        places = OpenPlaces(state, state.queue(100), [0], 0.0)
        return places.is_open(0, Placement({TYPES[self.new]: self.gpus}))


def asks(gpus: int) -> GpuRequest:
    return GpuRequest(per_node={UNTYPED: gpus})


KINDS = st.permutations(range(3))
WAITING = st.tuples(
    st.tuples(KINDS, st.integers(1, 3)).map(lambda one: one[0][: one[1]]),
    st.integers(1, 6),
    st.integers(1, 9),
)


@st.composite
def cases(draw: Any, most: int) -> Case:
    old, new, _ = draw(KINDS)
    waiting = draw(st.lists(WAITING, max_size=most))
    free = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3))
    return Case(free, old, new, draw(st.integers(1, 3)), draw(st.integers(1, 9)), waiting)


@settings(deadline=None)
@given(cases(most=5))
def test_a_job_moves_only_where_the_live_controller_moves_it(case: Case) -> None:
    assert case.live() or not case.simulated()


@settings(deadline=None)
@given(cases(most=1))
def test_beside_one_that_waits_it_moves_wherever_the_live_controller_moves_it(case: Case) -> None:
    """Beside several the simulator knows who has reserved what, and the controller which nodes."""
    assert case.live() == case.simulated()
