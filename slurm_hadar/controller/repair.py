"""Putting right what Slurm does to a job that is ours: nothing of ours may stay held."""

from slurm_hadar.controller.acting import Hands
from slurm_hadar.controller.observed import Observed
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState

_MOST_RELEASES = 3
_KIND = "release"


def release_failed_launches(hands: Hands, seen: Observed) -> list[str]:
    """Release managed jobs that Slurm holds because a launch failed on a node.

    A bounded number of times: a job that fails again and again has a fault of its own, and then an
    admin should look.
    """
    said = []
    for job in seen.jobs.values():
        failed = job.held and "launch failed" in job.reason.lower().replace("_", " ")
        if not (job.managed and job.state is JobState.PENDING and failed):
            continue
        tried = sum(entry.kind == _KIND for entry in hands.store.history(job.id))
        if tried >= _MOST_RELEASES:
            continue
        entry = hands.store.begin(job.id, _KIND, "sent", seen.now, {"reason": job.reason})
        try:
            hands.cluster.release(job.id)
            outcome = "released after a failed launch"
        except SlurmError as error:
            outcome = f"the release was refused: {error}"
        hands.store.end(entry, outcome, seen.now)
        said.append(f"job {job.id}: {outcome}")
    return said
