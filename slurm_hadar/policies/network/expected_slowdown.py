"""The expected slowdown of a job at each tier, on each type, with the present traffic."""

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.network.rack_capacity import ANYWHERE
from slurm_hadar.policies.network.settings import NetworkOptions

_MOST = 100.0
"""Most times that other traffic lengthens an exchange."""
_HIDDEN = 0.5
_FULL = 1.05
"""Links that lengthen an exchange by more than this factor are full."""


class ExpectedSlowdown:
    """Expected rates: (J, 3) factors, and how much longer an exchange takes at each tier now.

    A factor f on the job's fastest type means 1 / f - 1 of exchange per unit of compute; on a type
    that computes more slowly the same exchange weighs less.
    """

    def __init__(
        self,
        view: View,
        settings: NetworkOptions,
        tier_now: dict[int, int],
        far_capacity: float = 0.0,
    ) -> None:
        """``tier_now``: running job -> its tier; ``far_capacity``: that of an earlier round."""
        jobs, known = view.jobs, view.jobs.network
        guess = np.array([1.0, 1.0 - settings.rack_loss, 1.0 - settings.network_loss])
        factor = np.broadcast_to(guess, (len(jobs.ids), 3)) if known is None else known.factor
        self._exchange: FloatArray = 1.0 / np.clip(factor, 1e-3, 1.0) - 1.0
        self._fastest = np.maximum(jobs.rate.max(axis=1, initial=0.0), 1e-300)
        self._rate = jobs.rate
        slowed = np.ones(len(jobs.ids)) if known is None else np.clip(known.slowed, 1e-3, 1.0)
        self.slowed: FloatArray = slowed
        """(J,) compute-only time over actual time of running jobs."""
        self.longer = [1.0, 1.0, 1.0]
        """Per tier: time of an exchange now over its time on free links."""
        for tier in (1, 2):
            here = [job for job, at in tier_now.items() if at == tier]
            alone, now = self._exchange[here, tier], 1.0 / slowed[here] - 1.0
            # One average job counts as undisturbed, so that few measurements have little weight.
            usual = float(self._exchange[:, tier].mean()) if len(self._exchange) else 0.0
            if here and float(alone.sum()) + usual > 0:
                ratio = (float(np.maximum(now, alone).sum()) + usual) / (float(alone.sum()) + usual)
                self.longer[tier] = float(np.clip(ratio, 1.0, _MOST))
        self.longer[ANYWHERE] = max(self.longer[1:])
        far = [job for job, at in tier_now.items() if at == ANYWHERE]
        self._far = float(sum(self._share(job) for job in far))
        self.far_capacity = far_capacity
        """Traffic that the links between racks carried when they were full, in jobs that only
        exchange; 0: never observed full."""
        if self.longer[ANYWHERE] > _FULL and self._far > 0:
            self.far_capacity = self._far / self.longer[ANYWHERE]

    def _share(self, job: int) -> float:
        """Fraction of its time that a job over several racks would exchange on free links."""
        exchange = float(self._exchange[job, ANYWHERE])
        return exchange / (1.0 + exchange)

    def factor(self, job: int, kind: int, column: int, tier: int, nic: float = 0.0) -> float:
        """Expected rate at a tier over the rate on one machine, the job's own traffic included.

        ``nic``: load of the busiest NIC of its nodes, 1: just full.
        """
        relative_speed = float(self._rate[job, kind, column] / self._fastest[job, column])
        longer = self.longer[tier]
        if tier == ANYWHERE and self.far_capacity > 0:
            longer = max(longer, (self._far + self._share(job)) / self.far_capacity)
        exchange = float(self._exchange[job, tier]) * relative_speed
        return 1.0 / max(1.0 + exchange * min(longer, _MOST), (1.0 + exchange) * nic)

    def speed_kept_over_racks(self, job: int) -> float:
        """Fraction of its speed that a job keeps over several racks, on its fastest type."""
        return 1.0 / (1.0 + float(self._exchange[job, ANYWHERE]))

    def nic_share(self, job: int) -> float:
        """Load of a job on several nodes on their NICs, on free links, 0 to 1.

        How much of it overlaps with compute is unknown; half of the compute is assumed.
        """
        exchange = float(self._exchange[job, 1])
        return (exchange + _HIDDEN) / (1.0 + exchange) if exchange > 0 else 0.0

    def joins(self, job: int) -> None:
        """Add the traffic of a job that was placed over several racks."""
        self._far += self._share(job)

    def leaves(self, job: int) -> None:
        """Remove the traffic of a job that ran over several racks."""
        self._far = max(0.0, self._far - self._share(job))
