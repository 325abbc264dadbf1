"""Hadar's total utility beside the best there is, found by trying every assignment."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from slurm_hadar.domain.view import View
from slurm_hadar.policies.hadar import policy as hadar
from slurm_hadar.solvers.prices import dual_price
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing import jobs_of, nodes_of, place_of, view_of

_SEEDS = range(120)
_OPTIONS = {"critical": 1e6, "communication": 0.0}


def _instance(seed: int) -> View:
    """3 to 5 waiting jobs on 2 or 3 nodes of 1 or 2 GPUs, of two types."""
    random = np.random.default_rng(seed)
    jobs, nodes = int(random.integers(3, 6)), int(random.integers(2, 4))
    gpus = np.zeros((nodes, 2), dtype=int)
    gpus[np.arange(nodes), random.integers(0, 2, nodes)] = random.integers(1, 3, nodes)
    one = random.uniform(1.0, 10.0, (jobs, 2))
    rate = np.stack([one, one * random.uniform(1.2, 2.0, (jobs, 1))], axis=2)
    asked = random.integers(0, 3, jobs)
    rate[asked == 0, :, 1] = 0.0
    rate[asked == 1, :, 0] = 0.0
    rate[random.random((jobs, 2)) < 0.1] = 0.0
    arrays = jobs_of(rate, left=random.uniform(1e3, 1e5, jobs), weight=random.integers(1, 4, jobs))
    return view_of(nodes_of(gpus.tolist()), arrays, (1, 2), _OPTIONS)


def _utilities(view: View) -> np.ndarray:
    """(J, R, C): weight times the best run time, over the run time there."""
    rate, gpus = view.jobs.rate.copy(), view.nodes.gpus.sum(axis=0)
    for column, count in enumerate(view.counts):
        rate[:, gpus < count, column] = 0.0
    best = np.maximum(rate.max(axis=(1, 2)), 1e-300)
    utility: np.ndarray = view.jobs.weight[:, None, None] * rate / best[:, None, None]
    return utility


def _best(view: View) -> float:
    utility, gpus = _utilities(view), view.nodes.gpus
    cells = list(product(range(gpus.shape[0]), range(gpus.shape[1]), range(len(view.counts))))

    @cache
    def rest(job: int, free: tuple[int, ...]) -> float:
        if job == len(view.jobs.ids):
            return 0.0
        most = rest(job + 1, free)
        for node, kind, column in cells:
            at, count = node * gpus.shape[1] + kind, view.counts[column]
            if free[at] >= count and utility[job, kind, column] > 0:
                after = (*free[:at], free[at] - count, *free[at + 1 :])
                most = max(most, utility[job, kind, column] + rest(job + 1, after))
        return most

    return rest(0, tuple(gpus.ravel().tolist()))


def _got(view: View) -> float:
    plan, _ = hadar.decide(view, {})
    check(view, plan)
    utility, total = _utilities(view), 0.0
    for job, id_ in enumerate(view.jobs.ids):
        if id_ in plan.placements:
            ((_, kind), count), *more = place_of(view, plan.placements[id_]).items()
            assert not more
            total += utility[job, kind, view.counts.index(count)]
    return total


def _alpha(view: View) -> float:
    """alpha of the paper, from its own bounds, with T the time all work takes on one GPU."""
    utility, jobs = _utilities(view), view.jobs
    with np.errstate(divide="ignore"):
        seconds = np.where(utility > 0, jobs.left[:, None, None] / jobs.rate, np.inf)
    doable = np.isfinite(seconds)
    gpu_seconds = np.where(doable, seconds, 0.0) * np.asarray(view.counts)
    density = np.divide(utility, gpu_seconds, out=np.zeros_like(utility), where=doable)
    longest = gpu_seconds.max(axis=(1, 2))
    horizon = np.where(doable, seconds, 0.0).max(axis=(1, 2)).sum()
    best = np.where(doable, seconds, np.inf).min(axis=(1, 2))
    last = np.where(np.isfinite(best), jobs.weight * best / horizon, 0.0)
    gpus = float(view.nodes.gpus.sum())
    return dual_price(density.max(axis=2), last, longest, gpus, view.round_s).ratio


@pytest.fixture(scope="module")
def ratios() -> list[float]:
    found = []
    for seed in _SEEDS:
        best = _best(_instance(seed))
        found.append(_got(_instance(seed)) / best if best > 0 else 1.0)
    return found


def test_within_the_bound_of_the_paper(ratios: list[float]) -> None:
    """2 alpha is the paper's competitive ratio (recalled): a job turned away was outbid by prices
    that rise by e^alpha at most. It is 2 on some of these instances, 11 on the average."""
    for seed, ratio in zip(_SEEDS, ratios, strict=True):
        assert ratio >= 1.0 / (2.0 * _alpha(_instance(seed))) - 1e-9, seed


def test_far_better_than_the_bound_in_practice(ratios: list[float]) -> None:
    """Measured on these instances: 0.90 on the average and 0.51 at the least. More is not to be
    had: Hadar ranks by payoff per price over the whole horizon, the optimum is that of a moment."""
    assert max(ratios) <= 1.0 + 1e-9
    assert np.mean(ratios) >= 0.87
    assert min(ratios) >= 0.45
