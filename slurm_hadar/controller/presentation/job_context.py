"""All that is known of one job, for its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slurm_hadar.config import Config
from slurm_hadar.controller.idle_training import idle_nodes
from slurm_hadar.controller.journal.entry import Decision, Entry
from slurm_hadar.controller.lock import is_fresh
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import excluded_types
from slurm_hadar.domain.job import Job
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.exchange.plan_file import JobPlan, read_plan


@dataclass(frozen=True)
class JobContext:
    """All that is known of one job. ``controller_uid``: whose files are believed; ``entries``
    oldest first; ``journal``: whether the controller's own file was read; ``omitted``: GPU type ->
    why the job's list of partitions omits it; ``fault``: why the latest tick failed, empty where it
    did not or that is not known."""

    id: str
    observation: Observation
    config: Config
    controller_uid: int
    beat: Heartbeat | None = None
    entries: tuple[Entry, ...] = ()
    decisions: tuple[Decision, ...] = ()
    last: Decision | None = None
    journal: bool = True
    omitted: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""

    @property
    def job(self) -> Job | None:
        """The job as Slurm shows it."""
        return self.observation.jobs.get(self.id)

    @property
    def under_way(self) -> Entry | None:
        """The move that the job is in the middle of."""
        found = [e for e in self.entries if e.kind == "move" and e.outcome is None]
        return found[-1] if found else None

    @property
    def latest_move(self) -> Entry | None:
        """The last move of the job, also one that has ended."""
        return next((e for e in reversed(self.entries) if e.kind == "move"), None)

    @property
    def decision(self) -> Decision | None:
        """The last decision on the job, as far as it holds."""
        if self.job is None:
            return self.last
        return excluded_types.corrected(self.last, self.job, self.observation, self.config)

    @property
    def controller_lives(self) -> bool:
        """Whether a controller manages the job now."""
        beat = self.beat
        return beat is not None and beat.mode == "act" and is_fresh(beat, self.observation.now)

    @property
    def on_idle_nodes(self) -> bool:
        """Whether it trains on what is idle."""
        return any(
            job.id == self.id for job in idle_nodes.on_idle_nodes(self.observation, self.config)
        )

    @cached_property
    def plan(self) -> JobPlan | None:
        """The job's plan file, where it can be believed."""
        return read_plan(self.config.site.exchange_dir, self.id, (self.controller_uid,))
