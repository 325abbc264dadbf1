"""Running jobs that move onto GPUs which are idle otherwise, or stay on them."""

from math import ceil

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.round_input import GivenRound

_TRIALS = 64
"""Moves that are tried in a round, so that thousands of jobs cost no more time."""


def stay_where_moves_gain_nothing(given: GivenRound, option: IntArray, places: PlacedJobs) -> None:
    """Change ``places`` and ``option`` (J,): a running job stays where the choice moves it to a
    place that saves less than ``gain_over_cost`` restarts, and no job was given what it leaves.

    The timetable may have it elsewhere for jobs that are yet to come; when one comes it may move.
    A job without a plan is left out: what another place would cost it is a guess.
    """
    options = given.options
    cost_s = given.settings.gain_over_cost * given.view.jobs.restart_s
    moves = (options.now >= 0) & (option >= 0) & (option != options.now)
    for job in np.flatnonzero(moves & ~options.bound & ~given.doubt.unplanned).tolist():
        here_s, there_s = options.seconds[job, [options.now[job], option[job]]]
        parts, need = places.parts.get(job), options.needs[job]
        if parts is None or there_s + cost_s[job] < here_s:
            continue
        places.room.give(parts, need)
        stays = places.room.holds(options.held[job], need)
        if stays:
            places.parts[job], option[job] = options.held[job], options.now[job]
        places.room.take(places.parts[job], need)


def move_onto_idle(given: GivenRound, gain: FloatArray, places: PlacedJobs) -> None:
    """Change ``places``: a job that stays moves where it ends sooner by more than
    ``gain_over_cost`` restarts, the one that saves the most first. ``gain`` (J, O): above 0 where
    the job may run. O(J x O) for each of a bounded number of moves.

    The values of a choice count what a move saves over a part of the remaining time only, since
    another job may need the GPUs later. GPUs that are free when all places are found are needed by
    no other job now. A job without a plan is left out: what another place would save it is a guess.
    """
    options, pool, gpus = given.options, given.options.pool, given.options.gpus
    left = np.asarray(places.room.left)
    if not (left > 0).any():
        return
    # What was placed in the last round stays for one: a round after another changes nothing.
    settled = given.view.now - given.view.jobs.since_s >= given.view.round_s
    open_ = (options.now >= 0) & settled & ~options.bound & ~given.doubt.unplanned
    stays = [j for j in np.flatnonzero(open_).tolist() if places.parts.get(j) == options.held[j]]
    jobs = np.asarray(stays, dtype=np.int64)
    now = options.now[jobs]
    cost = given.settings.gain_over_cost * given.view.jobs.restart_s[jobs]
    saved = (options.seconds[jobs, now] - cost)[:, None] - options.seconds[jobs]
    saved[gain[jobs] <= 0] = -np.inf
    returned = np.where(pool == pool[now][:, None], gpus[now][:, None], 0)
    for _ in range(_TRIALS):
        saved[gpus - returned > np.asarray(places.room.left)[pool]] = -np.inf
        if saved.max(initial=0.0) <= 0.0:
            return
        row, option = divmod(int(saved.argmax()), len(gpus))
        moved = _moved(given, places, int(jobs[row]), option)
        saved[row, slice(None) if moved else option] = -np.inf


def _moved(given: GivenRound, places: PlacedJobs, job: int, option: int) -> bool:
    """Whether nodes were found, then ``places`` has them: no more nodes per GPU than it has now, as
    it may be slower far apart."""
    options, room = given.options, places.room
    need, before = options.needs[job], places.parts[job]
    pool, gpus = int(options.pool[option]), int(options.gpus[option])
    share = gpus / int(options.gpus[options.now[job]])
    most = min(int(given.view.jobs.max_nodes[job]), ceil(len(before) * share))
    room.give(before, need)
    parts = room.one_node(pool, gpus, need)
    if parts is None and most > 1:
        parts = room.several_nodes((pool,), gpus, need, most)
    room.take(parts or before, need)
    if parts is not None:
        places.parts[job], places.onto_idle[job] = parts, option
    return parts is not None
