"""The input of one round of the timetable policy."""

from dataclasses import dataclass

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.timetable.doubt import Doubt
from slurm_hadar.policies.timetable.settings import TimetableOptions
from slurm_hadar.policies.timetable.work import Options


@dataclass(frozen=True)
class RoundInput:
    """``weight`` (J,): the weights of the view's jobs, above 0, times ``ratio``. ``ratio`` (J,):
    the factor of finish-time fairness; 1 if that is no objective. ``declarations_reliable``:
    whether the work that jobs declared so far was rarely wrong."""

    view: View
    pools: ResourcePools
    options: Options
    weight: FloatArray
    settings: TimetableOptions
    doubt: Doubt
    ratio: FloatArray
    declarations_reliable: bool
