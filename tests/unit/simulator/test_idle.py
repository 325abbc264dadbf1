"""Replay of idle fragments: figures that can be worked out by hand, and invariants."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies.bftrainer.records import Trainer
from slurm_hadar.simulator.idle.fragments import Fragments, generate, statistics
from slurm_hadar.simulator.idle.replay import IdleTerms, policy_names, replay
from slurm_hadar.simulator.idle.trainers import TrainerWork, TrainerWorkload, curve

Row = tuple[int, float, float]


def fragments(rows: list[Row]) -> Fragments:
    node, start, end = (np.array(column) for column in zip(*rows, strict=True))
    count = int(node.max()) + 1
    return Fragments(
        tuple(f"n{i}" for i in range(count)),
        node.astype(np.int64),
        start.astype(float),
        end.astype(float),
        np.zeros(len(node), bool),
    )


def workload(
    copies: int = 1, samples: float = 1e9, at_once: int = 10, most: int = 4, arrival: float = 0.0
) -> TrainerWorkload:
    rate = curve([0, most], [0, 100.0 * most], 1, most)
    one = TrainerWork(Trainer("t", rate[None, :], 18.0, 12.0), samples, arrival)
    return TrainerWorkload((one,) * copies, at_once)


def test_one_node_one_trainer_paper() -> None:
    out = replay(fragments([(0, 100.0, 1100.0)]), workload(), "bftrainer")
    # The start is free, the leave costs 12 s at 100 samples/s.
    assert out.optimum == pytest.approx(1000 * 100)
    assert out.work == pytest.approx(1000 * 100 - 1200)
    assert (out.rescales, out.preemptions, out.lost) == (1, 1, pytest.approx(1200))


def test_one_node_one_trainer_strict() -> None:
    out = replay(
        fragments([(0, 100.0, 1100.0)]), workload(), "bftrainer", IdleTerms(charge="strict")
    )
    assert out.work == pytest.approx(1000 * 100 - 1200 - 1800)
    assert out.efficiency == pytest.approx(0.97)
    figures = out.summary()
    assert figures["lost_work_share"] == pytest.approx(0.012)
    assert figures["rescale_share"] == pytest.approx(0.018)
    assert figures["unused_share"] == pytest.approx(0.0, abs=1e-12)


def test_a_leave_costs_a_trainer_once() -> None:
    rows = [(n, 0.0, 1000.0) for n in range(3)] + [(3, 0.0, 2000.0)]
    out = replay(fragments(rows), workload(), "bftrainer")
    # 400 samples/s before the first leave, 100 before the last.
    assert out.preemptions == 2
    assert out.lost == pytest.approx(12 * 400 + 12 * 100)


def test_growing_costs_by_the_charge() -> None:
    rows = [(0, 0.0, 5000.0), (1, 1000.0, 5000.0)]
    paper = replay(fragments(rows), workload(), "bftrainer", IdleTerms(forward_s=600.0))
    strict = replay(
        fragments(rows), workload(), "bftrainer", IdleTerms(forward_s=600.0, charge="strict")
    )
    assert paper.rescaling == pytest.approx(18 * 100)
    assert strict.rescaling == pytest.approx(18 * 100 + 18 * 200)


def test_a_trainer_that_ends_hands_its_nodes_on_and_the_replay_ends_with_the_work() -> None:
    work = workload(copies=3, samples=10_000.0, at_once=1)
    out = replay(fragments([(0, 0.0, 100_000.0)]), work, "bftrainer")
    assert out.finished == 3
    assert out.end_s == pytest.approx(300.0)
    assert out.work == pytest.approx(30_000.0)
    assert out.efficiency == pytest.approx(1.0)
    assert out.preemptions == 0


def test_a_trainer_that_comes_later_gets_nodes_then() -> None:
    out = replay(fragments([(0, 0.0, 1000.0)]), workload(arrival=400.0), "bftrainer")
    assert out.optimum == pytest.approx(600 * 100)


def test_without_any_work_nothing_is_divided_by_nothing() -> None:
    out = replay(fragments([(0, 0.0, 1000.0)]), workload(arrival=5000.0), "bftrainer")
    assert out.efficiency == 0.0
    assert out.summary()["unused_share"] == 0.0


def test_the_cap_of_the_cluster_bounds_the_optimum_too() -> None:
    rows = [(n, 0.0, 1000.0) for n in range(4)]
    out = replay(fragments(rows), workload(), "bftrainer", IdleTerms(most_nodes=2))
    assert out.optimum == pytest.approx(1000 * 200)
    assert out.work == pytest.approx(1000 * 200 - 12 * 200)


def test_trainers_of_unlike_curves_are_distinguished() -> None:
    """The optimum is cached by the trainers that are active."""
    slow = TrainerWork(Trainer("s", np.array([[0.0, 10.0]]), 0.0, 0.0), 5000.0, 0.0)
    fast = TrainerWork(Trainer("f", np.array([[0.0, 70.0]]), 0.0, 0.0), 1e9, 0.0)
    work = TrainerWorkload((slow, fast), 1)
    out = replay(fragments([(0, 0.0, 1000.0)]), work, "bftrainer")
    assert out.optimum == pytest.approx(500 * 10 + 500 * 70)
    assert out.efficiency == pytest.approx(1.0)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(policy_names()), st.sampled_from(("paper", "strict"))
)
def test_shares_add_up_and_nothing_beats_the_optimum(seed: int, policy: str, charge: str) -> None:
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for node in range(int(random.integers(1, 12))):
        at = 0.0
        for _ in range(int(random.integers(1, 5))):
            at += float(random.integers(0, 9)) * 100
            stay = float(random.integers(1, 20)) * 60
            rows.append((node, at, at + stay))
            at += stay
    work = workload(copies=6, samples=float(random.integers(5_000, 500_000)), at_once=3)
    out = replay(fragments(rows), work, policy, IdleTerms(charge=charge))
    figures = out.summary()
    unused = figures["unused_share"]
    assert out.efficiency <= 1.0 + 1e-9
    assert isinstance(unused, float) and -1e-9 <= unused <= 1.0
    assert out.lost >= 0 and out.rescaling >= 0
    assert out.finished <= 6
    again = replay(fragments(rows), work, policy, IdleTerms(charge=charge))
    assert (again.work, again.rescales, again.preemptions) == (
        out.work,
        out.rescales,
        out.preemptions,
    )


@pytest.fixture(scope="module")
def small_week() -> Fragments:
    return generate(nodes=800, days=2.0, seed=5)


def _efficiency(seen: Fragments, policy: str, charge: str = "strict") -> float:
    return replay(seen, workload(200, 2e7, 10, 64), policy, IdleTerms(charge=charge)).efficiency


def test_bftrainer_beats_equal_shares_on_a_generated_trace(small_week: Fragments) -> None:
    ours = _efficiency(small_week, "bftrainer")
    assert ours > _efficiency(small_week, "equal_share") + 0.01
    assert ours >= _efficiency(small_week, "bftrainer_plain") - 0.003


def test_the_future_is_not_known(small_week: Fragments) -> None:
    """What happens later changes nothing that was decided before."""
    cut = 86_400.0
    before = small_week.start_s < cut
    early = Fragments(
        small_week.names,
        small_week.node[before],
        small_week.start_s[before],
        # Whoever was idle at the cut stays a day longer.
        np.where(small_week.end_s > cut, cut + 86_400.0, small_week.end_s)[before],
        small_week.censored[before],
    )
    seen: list[dict[int, float]] = [
        replay(part, workload(200, 2e7, 10, 64), "bftrainer").done_by_slice
        for part in (small_week, early)
    ]
    hours = [[done.get(hour, 0.0) for hour in range(24)] for done in seen]
    assert hours[0] == pytest.approx(hours[1])
    assert sum(hours[0]) > 0


def test_the_generator_keeps_its_statistics() -> None:
    figures = statistics(generate(seed=1))
    assert 300 < figures["idle_nodes_mean"] < 450
    assert 300 < figures["fragment_median_s"] < 480
    assert 850 < figures["fragment_mean_s"] < 1150
    assert 20 <= figures["event_gap_median_s"] <= 50
    assert 25 < figures["batch_mean_nodes"] < 36


@pytest.mark.parametrize("nodes", [50, 6000])
def test_generated_fragments_of_a_node_do_not_overlap(nodes: int) -> None:
    made = generate(nodes=nodes, days=0.5, seed=2)
    again = generate(nodes=nodes, days=0.5, seed=2)
    assert (made.start_s == again.start_s).all() and (made.node == again.node).all()
    assert len(made.names) == nodes and (made.end_s > made.start_s).all()
    order = np.lexsort((made.start_s, made.node))
    same = made.node[order][1:] == made.node[order][:-1]
    assert (made.start_s[order][1:] >= made.end_s[order][:-1])[same].all()


@pytest.mark.parametrize(
    "call",
    [
        lambda seen, work: replay(seen, work, "nobody"),
        lambda seen, work: replay(seen, work, "bftrainer", IdleTerms(charge="free")),
    ],
)
def test_unknown_words_are_refused(call: Callable[[Fragments, TrainerWorkload], object]) -> None:
    with pytest.raises(UsageError, match="known"):
        call(fragments([(0, 0.0, 1.0)]), workload())
