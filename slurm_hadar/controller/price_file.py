"""What a tick publishes for ``hbatch``: of each GPU type its price, how many are free and how long
one waits, beside nodes and the default partition.

Hadar is an online primal-dual method (arXiv 2503.10918): a job that comes chooses by the prices
alone, payoff = utility - price. So ``hbatch`` waits for no controller; it reads one small file.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from operator import le

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import unlike_groups
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import gpus_asked, pools_behind
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.exchange.prices import PriceList, mark, write_prices
from slurm_hadar.solvers.prices import DualPrice

_MOST_USERS = 200
"""Whose marks a partition has in the file: hbatch reads 64 KiB of it."""
FEWEST_USERS = 5
"""Where Slurm hides the jobs of other users, a price of fewer users' jobs could reveal one of
them."""
_MOST_SIZES = 8
"""Of a partition's nodes that are published."""
_COUNTS = (1, 2, 4, 8)
_LEAST_SPEED = 0.02
"""No type counts as slower than this part of a job's best, or one odd job would make all prices
low until the last GPU is taken."""
_LEAST_SHARE = 0.25
"""Umin over the least utility: 1 / (4 eta) of the paper, eta = 1."""


def publish(
    config: Config,
    rules: AccountingLimits,
    observation: Observation,
    shown: Snapshot,
    interval_s: float,
) -> list[str]:
    """Write the file of today's prices; ``interval_s``: between two ticks. Returns a word for the
    operator where that is not possible."""
    folder = config.site.exchange_dir
    try:
        groups = config.partitions.groups
        names = {name for some in groups.values() for name in some}
        nodes = largest_nodes(observation, names)
        types, arrived = {}, 0
        kept = unchanged_partitions(config, rules, observation)
        default = default_partition(observation) if rules.takes_as_typed else ""
        if not is_private(observation, rules.jobs_are_hidden):
            prices = type_prices(observation, shown)
            types = {kind: asdict(price) for kind, price in prices.items()}
            arrived = arriving(observation, interval_s)
        asleep = sorted(names & observation.asleep)
        found = PriceList(types, arrived, interval_s, nodes, default, kept, asleep)
        write_prices(folder, found)
    except OSError as error:
        return [f"the prices in {folder} cannot be written ({error.strerror})"]
    return []


def unchanged_partitions(
    config: Config, rules: AccountingLimits, observation: Observation
) -> dict[str, list[int] | None]:
    """Partitions of ``partitions.groups`` in which jobs stay as typed -> marks of the users whose
    jobs do, None: all. Those that differ from their members, those of which a member is not UP,
    and those for which associations of the accounting database stand."""
    groups, there = config.partitions.groups, observation.partitions
    found: dict[str, list[int] | None] = dict.fromkeys(unlike_groups(groups, there))
    # Slurm leaves one that is DRAIN or INACTIVE out of the list of a new job without a word.
    for name, members in groups.items():
        if not all(one not in there or there[one].up for one in members):
            found[name] = None
    for name, members in groups.items():
        users = rules.users_bound_to((name, *members))
        if users is None or len(users) > _MOST_USERS:
            found[name] = None
        elif users and name not in found:
            found[name] = sorted(map(mark, users))
    return found


@dataclass(frozen=True)
class TypePrice:
    """One GPU type. ``least``, ``most``: the bounds Umin, Umax of its price, in parts of a job's
    best speed per GPU; ``price``: today's; ``gpus``: usable ones, ``free``: those that no job runs
    on or is about to get; ``wait_s``: GPUs asked for -> s until so many are free for a newcomer,
    None: not by what is known; ``shared``: unmanaged jobs accept it beside others, so jobs that
    may be moved do not leave it to them."""

    least: float
    most: float
    price: float
    gpus: int
    free: int
    wait_s: Mapping[int, float | None]
    shared: bool


def type_prices(observation: Observation, snapshot: Snapshot) -> dict[str, TypePrice]:
    """By GPU type, with all that wait served first in Slurm's order."""
    pools = pools_behind(observation, snapshot)
    least, most = _bounds(snapshot.view.jobs.rate, np.array(snapshot.view.counts))
    bounds = DualPrice(np.full(len(most), least), most)
    found: dict[str, TypePrice] = {}
    for row, kind in enumerate(snapshot.view.types):
        gpus = sum(node.gpus.get(kind, 0) for node in observation.nodes.values() if node.usable)
        if not gpus:
            continue
        times = pools.get(kind, [])
        free = min(gpus, bisect_right(times, 0.0))
        found[kind] = TypePrice(
            least=least,
            most=float(most[row]),
            price=bounds.at(row, gpus - free, gpus),
            gpus=gpus,
            free=free,
            wait_s={count: _wait(times, count) for count in _COUNTS if count <= gpus},
            shared=kind in snapshot.shared,
        )
    return found


def largest_nodes(
    observation: Observation, partitions: Iterable[str]
) -> dict[str, list[tuple[int, int, int]]]:
    """Partition -> GPUs, CPUs and MB of its usable nodes, without those that have no more of
    anything than another."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name in partitions:
        members = observation.partitions[name].nodes if name in observation.partitions else ()
        usable = (observation.nodes[one] for one in members if one in observation.nodes)
        sizes = {(sum(n.gpus.values()), n.cpus, n.memory_mb) for n in usable if n.usable}
        largest = [
            size
            for size in sizes
            if not any(one != size and all(map(le, size, one)) for one in sizes)
        ]
        found[name] = sorted(largest)[-_MOST_SIZES:]
    return found


def default_partition(observation: Observation) -> str:
    """The partition of jobs that name none; empty where there is none."""
    return next((name for name, one in observation.partitions.items() if one.default), "")


def arriving(observation: Observation, interval_s: float) -> int:
    """GPUs that managed jobs of the last ``interval_s`` seconds asked for: they choose by the same
    prices."""
    since = observation.now - interval_s
    new = (job for job in observation.jobs.values() if job.submit_s > since)
    return sum(gpus_asked(job) for job in new if job.managed and not job.held)


def is_private(observation: Observation, jobs_are_hidden: bool) -> bool:
    """Whether the prices may not be shown: few users, each of whom sees only their own jobs."""
    there = (JobState.PENDING, JobState.RUNNING)
    users = {job.uid for job in observation.jobs.values() if job.state in there}
    return jobs_are_hidden and len(users) < FEWEST_USERS


def _bounds(rate: FloatArray, counts: FloatArray) -> tuple[float, FloatArray]:
    """Umin, and Umax (R,) of what a GPU of each type is worth to the jobs, in parts of their best
    speed per GPU. ``rate``: (J, R, C) samples/s."""
    each = (rate / counts).max(axis=2, initial=0.0)
    best = each.max(axis=1, keepdims=True, initial=0.0)
    worth = np.divide(each, best, out=np.zeros_like(each), where=best > 0)
    worth = np.where(worth > 0, np.maximum(worth, _LEAST_SPEED), 0.0)
    most = worth.max(axis=0, initial=0.0)
    # What no job of ours may use is worth to a newcomer what it is worth to that one alone.
    most = np.where(most > 0, most, 1.0)
    least = worth[worth > 0].min(initial=1.0) if worth.any() else _LEAST_SPEED
    return _LEAST_SHARE * float(least), most


def _wait(times: list[float], count: int) -> float | None:
    wait = times[count - 1] if count <= len(times) else inf
    return round(wait, 1) if wait < inf else None
