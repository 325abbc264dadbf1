"""What a tick publishes for ``hbatch``: the prices of GPU types, nodes, the default partition."""

from dataclasses import asdict

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot import newcomers
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.exchange.prices import PriceList, write_prices


def publish(
    config: Config, rules: AccountingLimits, seen: Observed, shown: Snapshot, interval_s: float
) -> list[str]:
    """Write the file of today's prices; ``interval_s``: between two ticks. Returns a word for the
    operator where that is not possible."""
    folder = config.site.exchange_dir
    try:
        groups = config.partitions.groups.values()
        nodes = newcomers.largest_nodes(seen, {name for some in groups for name in some})
        types, arriving = {}, 0
        default = newcomers.default_partition(seen) if rules.takes_as_typed else ""
        if not newcomers.is_private(seen, rules.jobs_are_hidden):
            prices = newcomers.type_prices(seen, shown)
            types = {kind: asdict(price) for kind, price in prices.items()}
            arriving = newcomers.arriving(seen, interval_s)
        write_prices(folder, PriceList(types, arriving, interval_s, nodes, default))
    except OSError as error:
        return [f"the prices in {folder} cannot be written ({error.strerror})"]
    return []
