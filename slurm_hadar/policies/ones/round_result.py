"""What one round of the ones policy came to."""

from dataclasses import dataclass

from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.ones.problem import BatchProblem
from slurm_hadar.policies.timetable.places import PlacedJobs


@dataclass(frozen=True)
class LaidRound:
    """``option`` (J,): which of the problem's options each job has, ``batch`` (J,): with which of
    its batches; ``places``: the nodes."""

    view: View
    pools: ResourcePools
    problem: BatchProblem
    option: IntArray
    batch: IntArray
    places: PlacedJobs
