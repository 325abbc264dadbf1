"""What the site's Slurm is set to, as far as it binds an operator's controller.

An operator's update goes past limits of the accounting database that Slurm holds its owner to, so
where there are such limits the controller leaves alone what they speak of.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.limits import Limits

_ASK_AGAIN_S = 600.0
_TOO_MUCH = (
    "may do more to Slurm than the controller should; run it as a user of its own with "
    "AdminLevel=Operator, see hadar check"
)


def refuse_root(config: Config) -> None:
    """Raise HadarError where root would be a site's controller."""
    if config.site.rights == "operator" and os.geteuid() == 0:
        raise HadarError(f"root {_TOO_MUCH}")


class Rules:
    """Read at the start and every ten minutes, by a site's controller only: an owner's own updates
    are judged by Slurm, and a sandbox has nobody to protect."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._asks = config.site.rights == "operator"
        self._until = 0.0
        self._enforced = False
        self._limits: Limits | None = None

    def refuse_slurm_user(self) -> None:
        """Raise HadarError where this process is SlurmUser, who may do all that root may."""
        if self._asks and _slurm_user(self._cluster.read_config()) == os.geteuid():
            raise HadarError(f"SlurmUser {_TOO_MUCH}")

    def read(self, now: float) -> None:
        """Ask again where it is time. Raises SlurmError where the configuration cannot be read."""
        if not self._asks or now < self._until:
            return
        settings = self._cluster.read_config()
        said = settings.get("AccountingStorageEnforce", "").lower()
        self._enforced = any(word in said for word in ("limits", "safe", "all"))
        self._until = now + _ASK_AGAIN_S
        if self._enforced:
            try:
                self._limits = self._cluster.read_limits(settings["ClusterName"])
            except SlurmError:
                # slurmdbd may be away for long; what was known of it holds on.
                self._until = now + _ASK_AGAIN_S / 10

    def applied(
        self, jobs: Mapping[str, Job], partitions: Mapping[str, Partition]
    ) -> dict[str, Job]:
        """The jobs; those under a limit on CPUs or memory keep the CPUs, memory and nodes that
        they asked for. Where the limits are not known that is every job."""
        return {id_: self._bound(job, partitions) for id_, job in jobs.items()}

    def _bound(self, job: Job, partitions: Mapping[str, Partition]) -> Job:
        declared = job.declaration
        if declared is None or not self._enforced:
            return job
        qos = [partitions[name].qos for name in job.partitions if name in partitions]
        known = self._limits
        if known is not None and not known.bind(job.user, job.account, job.qos, *qos):
            return job
        kept = replace(declared, cpus=None, mem=None, fork=(1, 1), nodes=None)
        return replace(job, declaration=kept)


def _slurm_user(settings: Mapping[str, str]) -> int | None:
    """UID in ``slurm(64030)``."""
    match = re.search(r"\((\d{1,10})\)$", settings.get("SlurmUser", ""))
    return int(match[1]) if match else None
