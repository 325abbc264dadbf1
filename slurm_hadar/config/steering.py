"""Tables that say how jobs are steered: the tick, waiting jobs, moves and their guards."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from slurm_hadar.config.section import FullPath, Section

_AFTER_A_REFUSED_PLACE_S = 60.0


class Queue(Section):
    """How waiting jobs are steered."""

    max_wait_s: float = Field(default=0.0, ge=0)
    """Longest time, from its submission on, in which a managed job may leave out partitions where
    it would end later than where it waits; then it may run in all of them again. What its owner
    declared as ``wait`` counts instead."""
    exchange: Literal["none", "association", "account", "all"] = "none"
    """Which managed jobs that wait may exchange their priorities, where the policy wants another
    order: those of one user, account and QOS, of one account, or all. The one that moves up asks
    for no more of anything, or no other job stands between them. Only under
    priority/multifactor."""


class Guards(Section):
    """What keeps a wrong decision from doing harm."""

    min_between_moves_s: float = Field(default=600.0, ge=0)
    """Least time a job runs between two moves."""
    max_moves_per_tick: int = Field(default=20, ge=0)
    max_moves_per_hour: int = Field(default=200, ge=0)
    max_moves_per_job: int = Field(default=50, ge=0)
    preempt: bool = False
    """Whether a running job may be checkpointed and sent back to the queue for one that gains more
    and is next in Slurm's order for what it leaves."""
    gain_over_cost: float = Field(default=2.0, ge=1)
    """A move must save at least this many times the seconds that it costs. Policies that share GPUs
    in turns (gavel_*, tiresias) know no such gain."""
    slower_for: Literal["all", "account", "user", "none"] = "all"
    """For whose jobs a running job may move to a place where it is slower: all managed jobs, those
    of its account, of its user, or none."""
    max_queries_per_minute: int = Field(default=60, ge=20)
    """Most requests to Slurm in any minute, over ticks and within one."""
    slow_answer_s: float = Field(default=5.0, gt=0)
    """After an answer of Slurm that took longer the time to the next tick doubles."""
    longest_interval_s: float = Field(default=600.0, ge=1)
    """As far as it doubles, and back to controller.interval_s after quick answers."""
    max_jobs_per_array: int = Field(default=100, ge=1)
    """Waiting tasks of one array that are steered at a time."""
    interactive_names: tuple[str, ...] = ("*sys/dashboard/*", "spawner-*", "jupyterhub*")
    """Patterns (* and ?) of names of batch jobs that are interactive sessions, as Open OnDemand and
    JupyterHub submit them: they are left alone, like salloc and srun."""
    stop_file: FullPath = Path("/etc/slurm-hadar/stop")
    """While this file exists nothing is changed."""

    def between_moves_s(self, failed: int, refused: int = 0) -> float:
        """Least time between two moves of a job, s: doubled for each failed move in a row, up to a
        day. Each may pause the training or lose work. Where Slurm ``refused`` the place of some of
        them, a requeue for nothing, a minute after the first at the least."""
        usual = self.min_between_moves_s
        first = _AFTER_A_REFUSED_PLACE_S if refused else 0.0
        pause = max(usual * 2.0 ** min(failed, 20), first * 2.0 ** min(max(refused - 1, 0), 20))
        return max(usual, min(pause, 86_400.0))


class Moving(Section):
    """Times of a move."""

    ack_wait_s: float = Field(default=120.0, gt=0)
    """Longest wait for a job to save; one that does not answer stays where it is."""
    settle_s: float = Field(default=20.0, ge=0)
    """Longest time a tick spends on carrying its own moves through; on jobs that it has requeued,
    until the next tick is due, at most after_return_s more."""
    commit_s: float = Field(default=120.0, ge=0)
    """A moved job has this long to start where it was sent; then it may start anywhere again."""
    after_return_s: float = Field(default=40.0, ge=0)
    """A node that was down is used this long after it came back, and a job that another user or
    Slurm requeued this long after that: more than Slurm's KillWait, as processes may still be
    leaving."""


class ControllerSettings(Section):
    """The tick."""

    interval_s: float = Field(default=60.0, ge=1)
    round_s: float = Field(default=360.0, gt=0)
    policy: str = "timetable"
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """The policy's own settings."""


class Backfill(Section):
    """Trainings on idle nodes, which give way to all other jobs. Caps of 0: none."""

    enabled: bool = False
    """Off: jobs that wait in these partitions are not steered."""
    partitions: tuple[str, ...] = ()
    """Partitions for idle nodes: of a lower PriorityTier, with PreemptMode=REQUEUE."""
    tfwd_s: float = Field(default=120.0, gt=0)
    """Time looked ahead: a rescale must pay for itself within it."""
    margin_s: float = Field(default=60.0, ge=0)
    """Nodes that Slurm expects to give to a pending job within this time are left to it."""
    at_once: int = Field(default=10, ge=1)
    """Trainings that have nodes at a time."""
    max_nodes: int = Field(default=0, ge=0)
    max_nodes_per_user: int = Field(default=0, ge=0)
    max_nodes_per_job: int = Field(default=0, ge=0)
