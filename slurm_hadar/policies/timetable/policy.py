"""Timetable: plan all work ahead by a linear programme, and follow it round by round.

Our own policy. It combines ideas of the papers: comparative advantage of GPU types (Gavel, Hadar),
order by remaining work, prices that say what a GPU costs other jobs, protection of the long jobs
that determine the makespan, elastic GPU counts, and moves only if they pay.

- A time-indexed programme with a deadline for all present work plans which fraction of which job
  runs when, and on what. Its horizon stays until it cannot be met. No job is planned to run more
  than a fraction of the time, so that a long one has slack if gangs do not fit as planned.
- Each choice of placements is one assignment of gangs by values from the programme: the worth of
  the job's remaining work per second there, more where the timetable has it, first where a job
  would otherwise miss the horizon. Where no nodes fit a gang, a few more are tried without it.
- Between choices no job moves; a move must save several times its restart.
- GPUs that no choice uses go to running jobs that end sooner there, restart included.
- If fairness is an objective (``fairness.py``), users who are behind count for more.
- Jobs with untried counts or unknown work are in doubt (``doubt.py``): they grow step by step.
- Rates are those of the best batch, the fair share of CPUs and the nearest tier, where known; the
  plan is completed with batches, CPUs, near nodes, dealt rounds and copies
  (``composite.py``).
"""

from dataclasses import replace
from math import ceil

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.allocation import nothing_to_place, resource_pools
from slurm_hadar.policies.composite import decide_composite
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.policies.timetable import memory
from slurm_hadar.policies.timetable.choice import RoundChoice, choose, choose_without
from slurm_hadar.policies.timetable.doubt import doubt_of, optimistic_rates
from slurm_hadar.policies.timetable.fairness import finish_ratio
from slurm_hadar.policies.timetable.places import PlacedJobs, place
from slurm_hadar.policies.timetable.plan import solve
from slurm_hadar.policies.timetable.reasons import plan_with_reasons
from slurm_hadar.policies.timetable.round_input import RoundInput
from slurm_hadar.policies.timetable.settings import TimetableOptions
from slurm_hadar.policies.timetable.speeds import learn, with_speeds
from slurm_hadar.policies.timetable.work import options_of

_LEAST_WEIGHT = 1e-3
_CHOICES = 4
"""Most choices of a round, where nodes do not fit what the first ones place."""
_TRIALS = 64
"""Most moves that a round tries, to bound its time."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    return decide_composite(_planned, view, state)


def _planned(view: View, state: State) -> tuple[Plan, State]:
    settings = TimetableOptions.read(view.options)
    jobs = view.jobs
    if (nothing := nothing_to_place(view)) is not None:
        return nothing, dict(state) if jobs.ids else {}
    pools = resource_pools(view)
    observed = learn(view, state)
    rate = optimistic_rates(view, observed.rate, settings.curiosity)
    options = options_of(view, pools, rate, settings.min_stay_s)
    # Weight 0 means after all others, not never.
    weight = np.maximum(jobs.weight, _LEAST_WEIGHT)
    doubt = doubt_of(view, pools, options)
    ratio = np.ones(len(weight))
    if settings.fairness:
        ratio = finish_ratio(view, options, doubt) ** settings.fairness
    inputs = RoundInput(
        view, pools, options, weight * ratio, settings, doubt, ratio, observed.declarations_reliable
    )
    names = memory.pool_names(view, pools)
    past = memory.from_state(state, names)
    if past is None or memory.outdated(past, view, settings):
        deadline = past.table.deadline_s if past else 0.0
        table = solve(inputs, observed, deadline)
        past = memory.TimetableState(table)
    # A new observation of a job in doubt counts at once.
    kept = not doubt.job.any() and memory.unchanged(past, view, options, settings)
    choice = choose(inputs, past.table, kept)
    places = place(view, pools, options, choice)
    if not kept:
        choice, places = _where_nodes_fit(inputs, choice, places)
        option = places.options(choice.option)
        stay_where_moves_gain_nothing(inputs, option, places)
        move_onto_idle(inputs, choice.gain, places)
        option[list(places.onto_idle)] = list(places.onto_idle.values())
        selected = {jobs.ids[job]: int(option[job]) for job in places.allocations}
        past = memory.TimetableState(past.table, selected, jobs.ids, view.now)
    plan = plan_with_reasons(inputs, choice, places, past.table)
    return plan, with_speeds(memory.to_state(past, names), observed)


def _where_nodes_fit(
    inputs: RoundInput, choice: RoundChoice, places: PlacedJobs
) -> tuple[RoundChoice, PlacedJobs]:
    """This choice, or one of a few without the options for which no nodes were found: that whose
    placed jobs have the largest sum of values, the last of equals.

    A choice counts the GPUs of a pool, not those of each node, nor CPUs and memory.
    """
    if not places.unplaced:
        return choice, places
    value, found = choice.value, (choice, places)
    largest = _placed_value(value, choice, places)
    shortages = dict(places.unplaced)
    for _ in range(_CHOICES - 1):
        choice = choose_without(inputs, choice, list(places.unplaced))
        places = place(inputs.view, inputs.pools, inputs.options, choice)
        shortages = places.unplaced | shortages
        if (placed := _placed_value(value, choice, places)) >= largest:
            found, largest = (choice, replace(places, unplaced=shortages)), placed
        if not places.unplaced:
            break
    return found


def _placed_value(value: FloatArray, choice: RoundChoice, places: PlacedJobs) -> float:
    """The sum of the values of the jobs that got nodes."""
    option = places.options(choice.option)
    jobs = [job for job in sorted(places.allocations) if option[job] >= 0]
    return float(value[jobs, option[jobs]].sum())


def stay_where_moves_gain_nothing(inputs: RoundInput, option: IntArray, places: PlacedJobs) -> None:
    """Change ``places`` and ``option`` (J,): a running job stays if its chosen move saves less than
    ``gain_over_cost`` restarts and no job gets the GPUs that it would leave.

    The timetable may place it elsewhere for jobs yet to come; it may move when one arrives. Jobs
    without a plan are skipped, as the cost of another placement is a guess.
    """
    options = inputs.options
    cost_s = inputs.settings.gain_over_cost * inputs.view.jobs.restart_s
    moves = (options.now >= 0) & (option >= 0) & (option != options.now)
    for job in np.flatnonzero(moves & ~options.bound & ~inputs.doubt.unplanned).tolist():
        here_s, there_s = options.seconds[job, [options.now[job], option[job]]]
        allocation, need = places.allocations.get(job), options.needs[job]
        if allocation is None or there_s + cost_s[job] < here_s:
            continue
        places.free_capacity.give(allocation, need)
        stays = places.free_capacity.holds(options.held[job], need)
        if stays:
            places.allocations[job], option[job] = options.held[job], options.now[job]
        places.free_capacity.take(places.allocations[job], need)


def move_onto_idle(inputs: RoundInput, gain: FloatArray, places: PlacedJobs) -> None:
    """Change ``places``: a job that stays moves to idle GPUs if it ends sooner there by more than
    ``gain_over_cost`` restarts, the job with the largest saving first. ``gain`` (J, O): above 0
    where the job may run. O(J x O) for each of a bounded number of moves.

    The values of a choice count the saving of a move over a part of the remaining time only, since
    another job may need the GPUs later. No other job needs the GPUs that are free after all
    placements. Jobs without a plan are skipped, as the saving is a guess.
    """
    options, pool, gpus = inputs.options, inputs.options.pool, inputs.options.gpus
    left = np.asarray(places.free_capacity.left)
    if not (left > 0).any():
        return
    # A job placed in the last round stays for a round, so that two rounds in a row are stable.
    settled = inputs.view.now - inputs.view.jobs.since_s >= inputs.view.round_s
    open_ = (options.now >= 0) & settled & ~options.bound & ~inputs.doubt.unplanned
    stays = [
        j for j in np.flatnonzero(open_).tolist() if places.allocations.get(j) == options.held[j]
    ]
    jobs = np.asarray(stays, dtype=np.int64)
    now = options.now[jobs]
    cost = inputs.settings.gain_over_cost * inputs.view.jobs.restart_s[jobs]
    saved = (options.seconds[jobs, now] - cost)[:, None] - options.seconds[jobs]
    saved[gain[jobs] <= 0] = -np.inf
    returned = np.where(pool == pool[now][:, None], gpus[now][:, None], 0)
    for _ in range(_TRIALS):
        saved[gpus - returned > np.asarray(places.free_capacity.left)[pool]] = -np.inf
        if saved.max(initial=0.0) <= 0.0:
            return
        row, option = divmod(int(saved.argmax()), len(gpus))
        moved = _moved(inputs, places, int(jobs[row]), option)
        saved[row, slice(None) if moved else option] = -np.inf


def _moved(inputs: RoundInput, places: PlacedJobs, job: int, option: int) -> bool:
    """Whether nodes were found, and ``places`` changed. The job gets no more nodes per GPU than it
    has now, as it may be slower on more nodes."""
    options, free_capacity = inputs.options, places.free_capacity
    need, before = options.needs[job], places.allocations[job]
    pool, gpus = int(options.pool[option]), int(options.gpus[option])
    share = gpus / int(options.gpus[options.now[job]])
    most = min(int(inputs.view.jobs.max_nodes[job]), ceil(len(before) * share))
    free_capacity.give(before, need)
    allocation = free_capacity.one_node(pool, gpus, need)
    if allocation is None and most > 1:
        allocation = free_capacity.several_nodes((pool,), gpus, need, most)
    free_capacity.take(allocation or before, need)
    if allocation is not None:
        places.allocations[job], places.onto_idle[job] = allocation, option
    return allocation is not None


POLICY = Policy(
    name="timetable",
    decide=decide,
    options=TimetableOptions,
    uses=frozenset(
        {
            Trait.MOVES,
            Trait.ORDER,
            Trait.CPUS,
            Trait.BATCHES,
            Trait.COPIES,
            Trait.ROUNDS,
            Trait.RACKS,
        }
    ),
    title="plans all the work ahead by a linear programme and follows it; the default",
)
