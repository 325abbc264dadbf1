"""Finish-time fairness as part of the objective: jobs of users who are behind an equal share of the
cluster get more weight.

**Finish-time fairness** rho = T / T_fair (Themis, NSDI 2020; as in Gavel, OSDI 2020), per user as
in :mod:`slurm_hadar.simulator.fairness`: T is the JCT of a job, T_fair its JCT on 1 / N of the GPUs
of each type alone, N being the number of users with jobs times the number of this user's jobs. The
rho of a user is the sum of T over the sum of T_fair.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.timetable.doubt import Doubt
from slurm_hadar.policies.timetable.work import Options

_MOST = 10.0
"""Ratios are clipped to this value and its inverse."""


def finish_ratio(view: View, options: Options, doubt: Doubt) -> FloatArray:
    """(J,) rho of each job's user over the present jobs, if each ran on its equal share from now
    on: (age + time left) over the time for the whole work on that share. 1 if no job of the user
    has known work. O(J x O).

    A job on g GPUs has c_r / (N g) of the time on each type r with c_r GPUs, scaled to at most all
    of the time (as in Gavel's code), with the g that is fastest on such a share.
    """
    jobs, counts = view.jobs, len(view.counts)
    if not options.seconds.size:
        return np.ones(len(jobs.ids))
    _, user, number = np.unique(jobs.owner, return_inverse=True, return_counts=True)
    user = user.reshape(-1)
    parts = len(number) * number[user]
    able = np.isfinite(options.seconds)
    part = able * (options.capacity[options.pool] / options.gpus)[None, :] / parts[:, None]
    speed = part / np.where(able, options.seconds, 1.0)
    used, alone = (a.reshape(len(user), -1, counts).sum(axis=1) for a in (part, speed))
    # Fraction of the remaining work per second.
    fastest = (alone / np.maximum(used, 1.0)).max(axis=1)
    total = np.maximum(jobs.total, options.left)
    known = (fastest > 0) & ~doubt.work & np.isfinite(total) & (options.left > 0)
    rest = np.where(known, 1.0 / np.where(known, fastest, 1.0), 0.0)
    whole = rest * np.where(known, total, 0.0) / np.where(known, options.left, 1.0)
    age = np.where(known, np.maximum(view.now - jobs.arrival_s, 0.0), 0.0)
    shared, fair = np.bincount(user, age + rest), np.bincount(user, whole)
    rho = np.where(fair > 0, shared / np.where(fair > 0, fair, 1.0), 1.0)
    found: FloatArray = np.clip(rho, 1.0 / _MOST, _MOST)[user]
    return found
