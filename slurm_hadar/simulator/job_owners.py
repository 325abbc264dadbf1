"""Whose jobs a trace holds: what it says, and drawn from a seed where it does not."""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.simulator.workload import Workload

USERS, ACCOUNTS = 100, 20
_ZIPF = 1.0


@dataclass(frozen=True, slots=True)
class JobOwners:
    """Of J jobs."""

    users: tuple[str, ...]
    accounts: tuple[str, ...]


def owners(workload: Workload, seed: int) -> JobOwners:
    """The users and accounts of the jobs. What is drawn depends on the seed and a job's number
    alone: 100 users in 20 accounts; how many jobs each has follows Zipf's law."""
    weight = 1.0 / np.arange(1, USERS + 1) ** _ZIPF
    rng = np.random.default_rng([seed, 14])
    account = rng.permutation(np.arange(USERS) % ACCOUNTS)
    drawn = rng.choice(USERS, size=len(workload.ids), p=weight / weight.sum()).tolist()
    users = tuple(f"user{n + 1}" for n in drawn)
    accounts = tuple(f"account{account[n] + 1}" for n in drawn)
    if workload.queue is not None:
        users = tuple(a or b for a, b in zip(workload.queue.users, users, strict=True))
        accounts = tuple(a or b for a, b in zip(workload.queue.accounts, accounts, strict=True))
    return JobOwners(users, accounts)
