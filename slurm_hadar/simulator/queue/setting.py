"""What one simulation in Slurm's order is of: the jobs, the cluster, and what the controller may
do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel
from slurm_hadar.scheduling.slurm_schedulers import SchedulerLimits
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.estimates import Estimates
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.workload import Workload


@dataclass(frozen=True)
class SteeringSetting:
    """What the controller may do. ``moves``: it may move running jobs; ``exchange``: which waiting
    jobs exchange their places; ``preempt``: it may stop running jobs for others; ``tick_s``:
    between two ticks; ``max_wait_s``: for how long from its arrival a job may leave out types on
    which it would end later; the others as the guards of the site's configuration."""

    moves: bool = True
    exchange: ExchangeLevel = ExchangeLevel.NONE
    tick_s: float = 60.0
    preempt: bool = False
    gain_over_cost: float = 2.0
    min_between_moves_s: float = 600.0
    max_moves_per_tick: int = 20
    max_wait_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.tick_s <= 1e7:
            raise UsageError(f"--round {self.tick_s:g}: with --order slurm it must be above 0")
        if not 0.0 <= self.max_wait_s <= 1e9:
            raise UsageError(f"--max-wait {self.max_wait_s:g}: it must be 0 s to 1e9 s")


@dataclass(frozen=True)
class SimulationSetting:
    """One simulation, but for the policy. ``seen``: what the policy sees; None: the truth;
    ``reports``: (J, R, C) rates that managed jobs report, by which it corrects those."""

    workload: Workload
    cluster: VirtualCluster
    drawn: Drawn = field(default_factory=Drawn)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    costs: Costs = field(default_factory=Costs)
    steering: SteeringSetting = field(default_factory=SteeringSetting)
    seen: Estimates | None = None
    reports: FloatArray | None = None
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
