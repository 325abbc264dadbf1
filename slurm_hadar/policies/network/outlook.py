"""What a job is expected to lose at each tier, on each type, with the traffic as it is."""

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.network.places import ANYWHERE
from slurm_hadar.policies.network.settings import NetworkOptions

_MOST = 100.0
"""Others' traffic makes an exchange this many times longer at most."""
_HIDDEN = 0.5
_FULL = 1.05
"""Links that make an exchange longer than this are full."""


class Outlook:
    """Expected rates: (J, 3) factors and how much longer an exchange takes at each tier now.

    A factor f on the type on which the job is fastest means 1 / f - 1 of exchange per unit of
    compute; on a type that computes more slowly the same exchange weighs less.
    """

    def __init__(
        self, view: View, settings: NetworkOptions, tier_now: dict[int, int], carries: float = 0.0
    ) -> None:
        """``tier_now``: running job -> its tier; ``carries``: as left by an earlier round."""
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
        """Per tier: an exchange now over one with the links to itself."""
        for tier in (1, 2):
            here = [job for job, at in tier_now.items() if at == tier]
            alone, now = self._exchange[here, tier], 1.0 / slowed[here] - 1.0
            # One job of the usual sort counts as undisturbed, so that few say little.
            usual = float(self._exchange[:, tier].mean()) if len(self._exchange) else 0.0
            if here and float(alone.sum()) + usual > 0:
                ratio = (float(np.maximum(now, alone).sum()) + usual) / (float(alone.sum()) + usual)
                self.longer[tier] = float(np.clip(ratio, 1.0, _MOST))
        self.longer[ANYWHERE] = max(self.longer[1:])
        far = [job for job, at in tier_now.items() if at == ANYWHERE]
        self._far = float(sum(self._share(job) for job in far))
        self.carries = carries
        """Traffic that the links over several racks were seen to carry when they were full, in
        jobs that do nothing but exchange; 0: they never were."""
        if self.longer[ANYWHERE] > _FULL and self._far > 0:
            self.carries = self._far / self.longer[ANYWHERE]

    def _share(self, job: int) -> float:
        """Part of its time that a job far apart would exchange, alone."""
        exchange = float(self._exchange[job, ANYWHERE])
        return exchange / (1.0 + exchange)

    def factor(self, job: int, kind: int, column: int, tier: int, nic: float = 0.0) -> float:
        """Expected rate at a tier over the one on one machine, the job's own traffic included.

        ``nic``: how busy the busiest of its nodes' network cards will be, 1: just full.
        """
        pace = float(self._rate[job, kind, column] / self._fastest[job, column])
        longer = self.longer[tier]
        if tier == ANYWHERE and self.carries > 0:
            longer = max(longer, (self._far + self._share(job)) / self.carries)
        exchange = float(self._exchange[job, tier]) * pace
        return 1.0 / max(1.0 + exchange * min(longer, _MOST), (1.0 + exchange) * nic)

    def hurt(self, job: int) -> float:
        """What a job keeps of its speed over several racks, on the type on which it is fastest."""
        return 1.0 / (1.0 + float(self._exchange[job, ANYWHERE]))

    def nic_share(self, job: int) -> float:
        """How busy a job on several nodes keeps its nodes' network cards, links to itself, 0-1.

        What hides behind its compute is not known; half of the compute is taken for it.
        """
        exchange = float(self._exchange[job, 1])
        return (exchange + _HIDDEN) / (1.0 + exchange) if exchange > 0 else 0.0

    def joins(self, job: int) -> None:
        """A job was placed over several racks: those that come after it find its traffic there."""
        self._far += self._share(job)

    def leaves(self, job: int) -> None:
        """A job that ran over several racks goes elsewhere."""
        self._far = max(0.0, self._far - self._share(job))
