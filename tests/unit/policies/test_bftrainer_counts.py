"""The programmes over counts against all assignments."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.node_counts import (
    CountLimits,
    Taker,
    TypedDemand,
    best_chunks,
    best_counts,
    best_counts_capped,
    best_values,
    typed_counts,
)

SEEDS = st.integers(0, 2**32 - 1)


def _values(random: np.random.Generator, trainers: int) -> list[np.ndarray]:
    return [random.integers(-5, 20, random.integers(1, 5)).astype(float) for _ in range(trainers)]


def _all(values: list[np.ndarray], nodes: int):
    for counts in product(*(range(len(value)) for value in values)):
        if sum(counts) <= nodes:
            yield counts, sum(v[k] for v, k in zip(values, counts, strict=True))


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_counts_are_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, nodes = _values(random, int(random.integers(1, 5))), int(random.integers(0, 9))
    counts = best_counts(values, nodes)
    assert counts.sum() <= nodes
    worth = sum(v[k] for v, k in zip(values, counts, strict=True))
    assert worth == max(value for _, value in _all(values, nodes))


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_caps_of_owners_hold_and_the_rest_is_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, nodes = _values(random, 4), int(random.integers(0, 12))
    owner, caps = ["a", "b", "a", "c"], {"a": int(random.integers(0, 5)), "b": 1}
    counts = best_counts_capped(values, nodes, owner, caps)

    def allowed(c: tuple[int, ...]) -> bool:
        return c[0] + c[2] <= caps["a"] and c[1] <= caps["b"]

    assert allowed(tuple(counts.tolist())) and counts.sum() <= nodes
    worth = sum(v[k] for v, k in zip(values, counts, strict=True))
    assert worth == max(value for c, value in _all(values, nodes) if allowed(c))


def test_best_values_is_minus_infinity_where_not_so_many_can_be_taken() -> None:
    assert best_values([np.array([0.0, 3.0]), np.array([0.0, 5.0])], 9).tolist() == [0, 5, 8]


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_chunks_are_the_best_of_all_that_keep_the_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    free = int(random.integers(1, 7))
    group = np.sort(random.integers(0, 3, free))
    chance = random.uniform(0, 1, 3)
    takers = []
    for _ in range(int(random.integers(1, 4))):
        inside = random.uniform(size=3) < 0.3
        rate = np.concatenate([[random.uniform(0, 5)], random.uniform(0, 9, random.integers(0, 5))])
        adds = np.where(inside, 0.0, chance)[group]
        takers.append(Taker(rate, 100.0, 18.0, 12.0, float(random.uniform(0, 2)), adds))

    def worth(chunks: list[tuple[int, int]]) -> float:
        total = 0.0
        for taker, (a, b) in zip(takers, chunks, strict=True):
            hits = taker.losses + sum(taker.adds[group == g][0] for g in set(group[a:b].tolist()))
            total += taker.rate[b - a] * (100.0 - 18.0 * (b > a) - 12.0 * hits)
        return total

    def every(at: int, left: int):
        if not left:
            yield []
            return
        for a in range(at, free + 1):
            for b in range(a, free + 1):
                if b - a < len(takers[-left].rate):
                    for rest in every(b, left - 1):
                        yield [(a, b), *rest]

    found = best_chunks(takers, group)
    assert all(b <= c for (_, b), (c, _) in pairwise(found))
    assert worth(found) == pytest.approx(max(worth(chunks) for chunks in every(0, len(takers))))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_several_gpu_types_against_all_assignments(seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes = random.integers(0, 4, 2)
    left = nodes.copy()
    demands = []
    for owner in ("a", "b"):
        most = int(random.integers(1, 4))
        rate = np.zeros((2, most + 1))
        rate[:, 1:] = random.integers(0, 30, (2, most)).cumsum(axis=1)
        held = np.minimum(random.integers(0, 2, 2), left)
        if held.sum() > most:
            held[:] = 0
        left -= held
        demands.append(TypedDemand(rate, held, 10.0, 6.0, owner))
    budget, caps = int(random.integers(2, 7)), {"a": 2}
    budget = max(budget, int((nodes - left).sum()))
    solved = typed_counts(demands, nodes, 60.0, CountLimits(budget, caps, 30.0))
    assert solved.proven
    counts = solved.counts
    assert (counts.sum(axis=0) <= nodes).all() and counts.sum() <= budget and counts[0].sum() <= 2
    rows = [
        np.array(row)
        for row in product(*(range(int(n) + 1) for n in nodes))
    ]  # fmt: skip
    best = max(
        demands[0].value(a, 60.0) + demands[1].value(b, 60.0)
        for a in rows
        for b in rows
        if ((a + b) <= nodes).all()
        and (a + b).sum() <= budget
        and a.sum() <= 2
        and a.sum() < demands[0].rate.shape[1]
        and b.sum() < demands[1].rate.shape[1]
        # A trainer holds no node that it cannot train on.
        and (not a.sum() or demands[0].rate_of(a) > 0)
        and (not b.sum() or demands[1].rate_of(b) > 0)
    )
    worth = sum(one.value(row, 60.0) for one, row in zip(demands, counts, strict=True))
    assert worth == pytest.approx(best)


def test_without_time_the_present_map_stays() -> None:
    rate = np.zeros((2, 65))
    rate[:, 1:] = np.arange(1, 65) ** 0.9
    held = np.array([3, 2])
    demands = [TypedDemand(rate * (j + 1), held, 18.0, 12.0) for j in range(6)]
    solved = typed_counts(demands, np.array([60, 50]), 120.0, CountLimits(110, time_limit_s=0.0))
    assert not solved.proven
    assert sum(d.value(c, 120.0) for d, c in zip(demands, solved.counts, strict=True)) >= sum(
        d.value(held, 120.0) for d in demands
    )
