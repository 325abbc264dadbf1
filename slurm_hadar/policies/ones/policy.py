"""ONES: an evolutionary search for the placement, the number of GPUs and the batch of each job.

Online Evolutionary Scheduling (arXiv 2108.03645; abstract verified, the rest recalled). A candidate
assigns to each GPU a job and a number of samples. The population evolves at each decision by the
four operators (``solvers/evolution.py``). The price of a larger batch is the gradient noise scale:
candidates are scored by goodput, so a larger batch or more GPUs are chosen only if the additional
samples are worth more than what they waste.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.allocation import nothing_to_place, resource_pools
from slurm_hadar.policies.ones import memory
from slurm_hadar.policies.ones.limits import limits_of
from slurm_hadar.policies.ones.problem import BatchProblem, PlacedRound, greedy, present, problem_of
from slurm_hadar.policies.ones.progress import factors
from slurm_hadar.policies.ones.reasons import plan_with_reasons
from slurm_hadar.policies.ones.score import Score
from slurm_hadar.policies.ones.settings import OnesOptions
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.places import place
from slurm_hadar.solvers.evolution import Best, Effort, SearchProblem, evolve
from slurm_hadar.solvers.evolution_space import Keys

_LEAST, _MOST = 16, 64
"""Bounds of the population size, which otherwise is the number of GPUs."""
_FEW = 8
"""Least number of candidates, on the largest clusters."""
_SPREAD = 0.5
"""Standard deviation, on logarithms, of the random order of jobs of similar work."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = OnesOptions.read(view.options)
    jobs = view.jobs
    if (nothing := nothing_to_place(view)) is not None:
        return nothing, dict(state) if jobs.ids else {}
    pools = resource_pools(view)
    past = memory.from_state(state, view, pools)
    limits = limits_of(view, past.limits) if settings.limits == "paper" else None
    price = past.price(view, settings.price)
    problem = problem_of(view, pools, settings, limits.most if limits else None, price)
    best, searched = _search(view, problem, settings, past)
    option = np.where(problem.options.bound, problem.options.now, best.option)
    batch = np.where(problem.options.bound, problem.now_batch, best.batch)
    places = place(view, pools, problem.options, _choice(problem, option))
    if not settings.preempt and any(job not in places.allocations for job in problem.options.held):
        # The search counts GPUs only, and its answer does not fit the nodes for all jobs.
        option, batch = problem.options.now, problem.now_batch
        places = place(view, pools, problem.options, _choice(problem, option), steady=True)
    placed = _as_placed(PlacedRound(view, pools, problem, option, batch, places))
    found = best if searched else None
    return plan_with_reasons(placed, best, searched), past.after(placed, limits, found)


def _as_placed(chosen: PlacedRound) -> PlacedRound:
    """The choice as far as nodes were found for it."""
    view, pools, problem, places = chosen.view, chosen.pools, chosen.problem, chosen.places
    option, batch = chosen.option, chosen.batch
    column = {count: at for at, count in enumerate(view.counts)}
    placed, size = np.full_like(option, -1), batch.copy()
    for job, allocation in places.allocations.items():
        gpus, pool = sum(count for _, count in allocation), pools.pool_of[allocation[0][0]]
        wanted = int(option[job])
        same = wanted >= 0 and problem.options.gpus[wanted] == gpus
        if wanted == -2 or (same and problem.options.pool[wanted] == pool):
            placed[job] = wanted
        elif gpus in column:
            placed[job] = pool * len(view.counts) + column[gpus]
            size[job] = problem.space.best[job, placed[job]]
    return replace(chosen, option=placed, batch=size)


def _search(
    view: View, problem: BatchProblem, settings: OnesOptions, past: memory.OnesState
) -> tuple[Best, bool]:
    """The best candidate, and whether a search was made; without one all jobs stay."""
    nothing = not problem.space.seconds.size
    if nothing or past.still_valid(view, problem, settings.every_s):
        here = present(problem)
        score = Score(problem.space, problem.score_input)(here[0][None], here[1][None])
        return Best(*here, float(score[0]), 0), False
    steps = search(view, problem, settings, past)
    best = next(steps)
    while best.generation < settings.generations:
        best = next(steps)
    return best, True


def search(
    view: View, problem: BatchProblem, settings: OnesOptions, past: memory.OnesState
) -> Iterator[Best]:
    """The best candidate after each generation, without end."""
    here = present(problem)
    empty = np.full_like(here[0], -1), np.zeros_like(here[1])
    seeds = [here, greedy(problem, here), greedy(problem, empty), *past.elites(view, problem)]
    rng = np.random.default_rng([view.seed, past.decisions])
    score = Score(problem.space, problem.score_input)
    keys, effort = _keys(view, problem), Effort(population(problem, settings), settings.theta)
    return evolve(SearchProblem(problem.space, score, keys), seeds, effort, rng)


def population(problem: BatchProblem, settings: OnesOptions) -> int:
    """Number of candidates: about the number of GPUs, fewer where that takes too long."""
    gpus, jobs = int(problem.space.capacity.sum()), len(problem.sizes)
    number = settings.population or max(_LEAST, min(gpus, _MOST))
    return max(_FEW, min(number, settings.cells // max(gpus, jobs, 1)))


def _keys(view: View, problem: BatchProblem) -> Keys:
    score_input, jobs = problem.score_input, view.jobs
    able = np.isfinite(score_input.work)
    urge = np.full(len(able), -np.inf)
    urge[able] = -np.log(score_input.work[able] / score_input.weight[able])
    done = np.where(np.isfinite(jobs.total), np.maximum(jobs.total - jobs.left, 0.0), 0.0)
    left = np.where(np.isfinite(problem.options.left), problem.options.left, 1.0)

    def draw(rng: np.random.Generator, number: int) -> FloatArray:
        work = np.log(factors(done, left, rng, number))
        return urge[None, :] - work + _SPREAD * rng.standard_normal(work.shape)

    return draw


def _choice(problem: BatchProblem, option: IntArray) -> RoundChoice:
    """The choice as :func:`.timetable.places.place` takes it, with the value of a second on each
    option for gangs that find no nodes."""
    value = problem.score_input.weight[:, None] / problem.space.quickest
    jobs, options = value.shape
    none = np.zeros((jobs, options))
    price = np.zeros(len(problem.space.capacity))
    return RoundChoice(option, value, value, none, np.zeros(jobs, dtype=bool), price)


POLICY = Policy(
    name="ones",
    decide=decide,
    options=OnesOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.BATCHES}),
    preempts=True,
    title="evolutionary search over GPUs and batches, scored by goodput",
    paper="ONES, arXiv 2108.03645",
)
