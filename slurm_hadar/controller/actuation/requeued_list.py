"""The list of partitions of a job in the middle of a move, where no tick wrote it.

Of a job that runs Slurm shows the one partition in which it does; its requeue brings the whole list
back. So the list is read right after the requeue. Where that was not possible, as of a job that
requeues itself, the list is compared with what the job can have been given.
"""

from collections.abc import Mapping

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.observation.access import declared_list
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering

FIELD = "Partition"
_RAN_IN, _KNOWN = "ran_in", "may_name"


def details(action: Action, known: Steering, config: Config) -> dict[str, object]:
    """For the journal, of a move that writes the list: where the job runs, and all partitions that
    its list may name. ``known``: what is kept of the job."""
    if FIELD not in action.fields:
        return {}
    declared = action.job.declaration or Declaration()
    kept = (known.wrote, known.unsure, known.was, action.steering.was)
    members = (config.partitions.groups.get(name, ()) for name in declared.partitions)
    found = [
        *(values[FIELD].split(",") for values in kept if FIELD in values),
        declared.partitions,
        declared_list(declared, config),
        *members,
    ]
    known_names = dict.fromkeys(name for names in found for name in names)
    return {_RAN_IN: list(action.job.partitions), _KNOWN: list(known_names)}


def is_unread(entry: Mapping[str, object]) -> bool:
    """Whether the list of a move with these details is to be read after its requeue."""
    stood = entry.get("stood")
    return isinstance(stood, dict) and FIELD not in stood and _RAN_IN in entry


def with_list(entry: Mapping[str, object], job: Job) -> dict[str, object] | None:
    """The details with the list of ``job``, as it is shown right after its requeue; None where it
    does not show that."""
    stood, before = entry.get("stood"), entry.get("restarts")
    again = isinstance(before, int) and job.restarts == before + 1
    waits = job.state in (JobState.COMPLETING, JobState.PENDING)
    if not (isinstance(stood, dict) and again and waits):
        return None
    if not _names(entry, _RAN_IN) <= {*job.partitions}:
        return None
    return {**entry, "stood": {**stood, FIELD: ",".join(job.partitions)}}


def changed(entry: Mapping[str, object], job: Job) -> bool:
    """Whether a requeued job, of which the list was not read in time, has one that it cannot have
    been given before its move."""
    if not is_unread(entry):
        return False
    fields, shown = entry.get("fields"), {*job.partitions}
    written = str(fields.get(FIELD, "")).split(",") if isinstance(fields, dict) else []
    ran_in = _names(entry, _RAN_IN)
    if shown == {*written}:
        return False
    if not ran_in <= shown:
        return True
    # What hbatch wrote for the types that were declared then is not known any more, and it omits
    # types on which the job is slow.
    return not shown <= ran_in.union(written, _names(entry, _KNOWN))


def _names(entry: Mapping[str, object], key: str) -> set[str]:
    found = entry.get(key)
    return {str(name) for name in found} if isinstance(found, list) else set()
