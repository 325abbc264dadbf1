"""Whether a job waits beside an idle GPU that it could use."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node

BF_INTERVAL_S = 5.0
"""Of the sandbox's slurm.conf."""
SLACK_S = 15.0
"""Two looks, a cycle of the main scheduler, and a busy machine: Slurm alone needs that too."""


@dataclass
class Liveness:
    """Looks at the queue and the nodes one after another. A GPU may be idle, and a job wait that
    fits it, for a bf_interval and :data:`SLACK_S`: the same job and the same node all that time."""

    most_s: float = BF_INTERVAL_S + SLACK_S
    longest_s: float = 0.0
    """The longest time that a job waited beside one idle GPU, s."""
    looks: int = 0
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _late: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(
        self,
        at_s: tuple[float, float],
        jobs: Sequence[Job],
        nodes: Sequence[Node],
        any_gpu: Collection[str],
    ) -> None:
        """Note what Slurm shows. ``at_s``: now on the monotonic clock, and since the epoch.
        ``any_gpu``: names of jobs that may run on one GPU of any node."""
        now, epoch = at_s
        self.looks += 1
        idle = [
            node.name
            for node in nodes
            if node.usable
            and node.state.lower() == "idle"
            and sum(node.gpus.values()) > sum(node.gpus_used.values())
        ]
        waits = [
            job.id
            for job in jobs
            if job.managed
            and job.name in any_gpu
            and job.state is JobState.PENDING
            and not job.held
            and not job.dependency
            and 0 < job.eligible_s <= epoch
            and job.not_before_s <= epoch
        ]
        pairs = {(job, node) for job in waits for node in idle}
        self._since = {pair: self._since.get(pair, now) for pair in pairs}
        for pair, since in self._since.items():
            self.longest_s = max(self.longest_s, now - since)
            if now - since > self.most_s:
                self._late[pair] = max(self._late.get(pair, 0.0), now - since)

    def forget(self) -> None:
        """Slurm did not answer: nothing is known of the time until the next look."""
        self._since = {}

    @property
    def wrong(self) -> list[str]:
        """A sentence for each job that waited too long."""
        longest: dict[str, tuple[float, str]] = {}
        for (job, node), seconds in self._late.items():
            longest[job] = max(longest.get(job, (0.0, "")), (seconds, node))
        return [
            f"job {job} waited for {seconds:.0f} s beside an idle GPU of {node}"
            for job, (seconds, node) in sorted(longest.items())
        ]
