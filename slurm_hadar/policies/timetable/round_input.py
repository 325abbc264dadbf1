"""What one round of the timetable policy is given."""

from dataclasses import dataclass

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.timetable.doubt import Doubt
from slurm_hadar.policies.timetable.settings import TimetableOptions
from slurm_hadar.policies.timetable.work import Options


@dataclass(frozen=True)
class GivenRound:
    """``weight`` (J,): of the view's jobs, above 0, times ``ratio`` (J,), which is what finish-time
    fairness has the jobs count for, 1 where it is no objective. ``relies``: whether the work that
    jobs declared so far was rarely wrong."""

    view: View
    pools: ResourcePools
    options: Options
    weight: FloatArray
    settings: TimetableOptions
    doubt: Doubt
    ratio: FloatArray
    relies: bool
