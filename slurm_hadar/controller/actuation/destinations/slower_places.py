"""For whose jobs a running job goes to a place where it is slower (``guards.slower_for``)."""

from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.placement import Placement, Plan, by_type

_SAME = 0.99
"""Part of its present speed from which on a place is no slower."""


class SlowerPlaces:
    """The guard of one tick. ``slower_for``: as in the configuration."""

    def __init__(self, snapshot: Snapshot, slower_for: str) -> None:
        self._snapshot, self._for = snapshot, slower_for

    def why_it_stays(self, target: SchedulableJob, plan: Plan) -> str:
        """Why a running job is not moved to its place in the plan; empty: it may be. O(jobs)."""
        place = plan.placements[target.job.id]
        if self._for == "all" or not self._is_slower(target, place):
            return ""
        coming = self._coming_there(target, plan)
        if coming and all(self._shares(target.job, job) for job in coming):
            return ""
        return f"it would be slower there, for another's job (guards.slower_for = {self._for})"

    def _is_slower(self, target: SchedulableJob, place: Placement) -> bool:
        """Whether it is, or may be, as speeds on several types together are not known."""
        held = by_type(target.held)
        now, then = (self._snapshot.rate(target.job.id, gpus) for gpus in (held, place.gpus))
        return not (now and then) or then < _SAME * now

    def _coming_there(self, target: SchedulableJob, plan: Plan) -> list[Job]:
        """The jobs that come to the nodes that it leaves."""
        jobs = self._snapshot.schedulable
        left = {*target.held} - {*plan.placements[target.job.id].nodes}
        return [
            jobs[id_].job
            for id_, place in plan.placements.items()
            if id_ != target.job.id and left & ({*place.nodes} - {*jobs[id_].held})
        ]

    def _shares(self, job: Job, other: Job) -> bool:
        match self._for:
            case "user":
                return job.uid == other.uid
            case "account":
                return bool(job.account) and job.account == other.account
            case _:
                return False
