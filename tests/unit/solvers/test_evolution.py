"""The evolutionary search: operators keep gangs whole, every generation is valid and no worse."""

import itertools
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.evolution import (
    Effort,
    SearchProblem,
    crossover,
    evolve,
    fill,
    gpus_of_jobs,
    jobs_of_gpus,
    mutate,
)
from slurm_hadar.solvers.evolution_space import Candidates, Space, used

pytestmark = pytest.mark.filterwarnings("error")


def space_of(seed, jobs=6, capacity=(6, 4), counts=(1, 2, 4), keep=False):
    """Random speeds; about a third of the options is not allowed."""
    rng = np.random.default_rng(seed)
    options = len(capacity) * len(counts)
    seconds = rng.lognormal(8.0, 1.0, (jobs, options, 3))
    seconds[rng.random((jobs, options)) < 0.3] = np.inf
    seconds[rng.random(seconds.shape) < 0.2] = np.inf
    sizes = np.tile([32, 64, 128], (jobs, 1))
    kept = np.zeros(jobs, dtype=bool)
    kept[0] = keep
    return Space(np.array(capacity), np.array(counts), seconds, sizes, kept)


def keys(space):
    def draw(rng, number):
        return rng.standard_normal((number, len(space.sizes)))

    return draw


def nobody(space, number=1):
    shape = (number, len(space.sizes))
    return Candidates(np.full(shape, -1), np.zeros(shape, dtype=np.int64))


def crowd(space, seed, number=8):
    return fill(space, nobody(space, number), keys(space), np.random.default_rng(seed))


def valid(space, found):
    assert (used(space, found.option) <= space.capacity).all()
    row, job = np.nonzero(found.option >= 0)
    assert np.isfinite(space.seconds[job, found.option[row, job], found.batch[row, job]]).all()


def total(space):
    def score(option, batch):
        jobs = np.arange(option.shape[1])[None, :]
        there = space.seconds[jobs, np.maximum(option, 0), batch]
        return np.where(option >= 0, there, 1e6).sum(axis=1)

    return score


@given(st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_operators_keep_gangs_whole_and_capacity(seed, luck):
    space = space_of(seed)
    rng = np.random.default_rng(luck)
    mothers, fathers = crowd(space, luck), crowd(space, luck + 1)
    valid(space, mothers)
    crossed = crossover(space, mothers, fathers, rng)
    valid(space, crossed)
    mutants = mutate(space, crossed, 0.3, rng)
    valid(space, mutants)
    valid(space, fill(space, mutants, keys(space), rng))


@given(st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_reorder_makes_gangs_contiguous_and_is_read_back_as_it_was(seed, luck):
    space = space_of(seed)
    found = crowd(space, luck)
    who, local = gpus_of_jobs(space, found)
    pools = np.repeat(np.arange(len(space.capacity)), space.capacity)
    for row in range(len(who)):
        for job in range(len(space.sizes)):
            at = np.flatnonzero(who[row] == job)
            option = found.option[row, job]
            assert len(at) == (space.gpus[option] if option >= 0 else 0)
            if len(at):
                assert (np.diff(at) == 1).all()
                assert (pools[at] == space.pool[option]).all()
                assert local[row, at].sum() == space.sizes[job, found.batch[row, job]]
                assert local[row, at].max() - local[row, at].min() <= 1
    again = jobs_of_gpus(space, who, local)
    assert (again.option == found.option).all()
    assert (again.batch[again.option >= 0] == found.batch[found.option >= 0]).all()


def test_uniform_mutation_preempts_with_its_probability_but_not_who_must_stay():
    space = space_of(3, keep=True)
    found = crowd(space, 1, number=400)
    after = mutate(space, found, 0.25, np.random.default_rng(2))
    ran = found.option >= 0
    gone = ran & (after.option < 0)
    assert not gone[:, 0].any()
    assert 0.2 < gone[:, 1:].sum() / ran[:, 1:].sum() < 0.3
    assert (mutate(space, found, 0.0, np.random.default_rng(2)).option == found.option).all()


def test_fill_leaves_no_gpu_idle_that_a_waiting_job_could_use():
    for seed in range(30):
        space = space_of(seed)
        found = crowd(space, seed)
        free = space.capacity - used(space, found.option)
        for row, job in zip(*np.nonzero(found.option < 0), strict=True):
            fits = np.isfinite(space.quickest[job]) & (space.gpus <= free[row][space.pool])
            assert not fits.any()


@given(st.integers(0, 2**31), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_whenever_it_is_stopped_the_best_is_valid_and_never_worse(seed, generations):
    space = space_of(seed)
    first = nobody(space)
    seeds = [(first.option[0], first.batch[0])]

    def run():
        rng = np.random.default_rng(seed)
        steps = evolve(SearchProblem(space, total(space), keys(space)), seeds, Effort(8), rng)
        return list(islice(steps, generations))

    found = run()
    for best in found:
        one = Candidates(best.option[None], best.batch[None])
        valid(space, one)
        assert total(space)(one.option, one.batch)[0] == best.score
    scores = [best.score for best in found]
    assert scores == sorted(scores, reverse=True)
    assert [best.generation for best in found] == list(range(generations))
    again = run()[-1]
    assert (again.option == found[-1].option).all()
    assert again.score == found[-1].score


def test_it_finds_the_best_of_all_schedules_of_a_few_jobs():
    for seed in range(5):
        space = space_of(seed, jobs=4, capacity=(3, 2), counts=(1, 2))
        score, options = total(space), len(space.gpus)
        best = np.inf
        for choice in itertools.product(range(-1, options), repeat=4):
            option = np.array([choice])
            batch = np.where(option >= 0, space.best[np.arange(4), np.maximum(option, 0)], 0)
            if (used(space, option) <= space.capacity).all():
                best = min(best, float(score(option, batch)[0]))
        first = nobody(space)
        steps = evolve(
            SearchProblem(space, score, keys(space)),
            [(first.option[0], first.batch[0])],
            Effort(24),
            np.random.default_rng(seed),
        )
        assert next(islice(steps, 60, None)).score == pytest.approx(best)


def test_nothing_to_choose_from():
    space = Space(
        np.array([2]), np.array([1]), np.full((0, 1, 1), np.inf), np.zeros((0, 1), np.int64),
        np.zeros(0, bool),
    )  # fmt: skip
    none = np.zeros(0, dtype=np.int64)
    steps = evolve(
        SearchProblem(space, lambda option, batch: np.zeros(len(option)), keys(space)),
        [(none, none)],
        Effort(4), np.random.default_rng(0),
    )  # fmt: skip
    assert next(islice(steps, 3, None)).score == 0.0
