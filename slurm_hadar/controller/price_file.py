"""What a tick publishes for ``hbatch``: the prices of GPU types, nodes, the default partition."""

from dataclasses import asdict

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import unlike_groups
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import newcomers
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.exchange.prices import PriceList, mark, write_prices

_MOST_USERS = 200
"""Whose marks a partition has in the file: hbatch reads 64 KiB of it."""


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
        nodes = newcomers.largest_nodes(observation, names)
        types, arriving = {}, 0
        kept = unchanged_partitions(config, rules, observation)
        default = newcomers.default_partition(observation) if rules.takes_as_typed else ""
        if not newcomers.is_private(observation, rules.jobs_are_hidden):
            prices = newcomers.type_prices(observation, shown)
            types = {kind: asdict(price) for kind, price in prices.items()}
            arriving = newcomers.arriving(observation, interval_s)
        asleep = sorted(names & observation.asleep)
        found = PriceList(types, arriving, interval_s, nodes, default, kept, asleep)
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
