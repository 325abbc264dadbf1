"""Running jobs that move onto otherwise idle GPUs, or stay on them."""

from math import ceil

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.round_input import RoundInput

_TRIALS = 64
"""Most moves that a round tries, to bound its time."""


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
