"""Slurm through PySlurm, with the commands for what PySlurm cannot do.

Through PySlurm: reading jobs, ``release``, and those updates that change only
Features, Partition, Comment, AdminComment, TimeLimit, StartTime, ReqNodeList, ExcNodeList or
TresPerNode of a whole job, to a value that is not empty.

Through the commands, because PySlurm (seen with 25.11.2 adapted to Slurm 24.11.5):

- shows no GPUs in use on nodes where there is no accounting database: ``read_nodes``;
- does not show what a partition bills (TRESBillingWeights): ``read_partitions``;
- shows no ``--gpus`` and ``--gpus-per-task``: one cheap ``squeue -O`` completes ``read_jobs``;
- ignores a changed node count, does not apply CPUs per task to the number of CPUs, knows no total
  of GPUs in our form, and cannot clear a field: the other updates;
- takes no id of an array task that Slurm has not split off: updates of ``84_2``;
- requeues a job that has ended too, which would run it again: ``requeue``;
- judges signals by an errno that need not be this call's: ``signal``, ``cancel``;
- takes no sbatch options and reads none from a script in sbatch's way: ``submit``;
- crashes the process on ``hold(mode=...)``: ``hold``;
- and for what is rare: ``read_reservations``, ``reserve``, ``unreserve``, ``read_topology``,
  ``read_config``, ``ping``.

PySlurm's calls end by Slurm's own MessageTimeout rather than by ``slurm.timeout_s``. One process
can talk to one slurm.conf only.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyslurm

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node, Partition, Reservation
from slurm_hadar.slurm import commands, pyslurm_records, tres, updates
from slurm_hadar.slurm.array_tasks import tasks_of
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.interface import TASKS_PER_ARRAY, Target, Update
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import Minutes
from slurm_hadar.slurm.waiting_priorities import CountedPriority

_ATTRIBUTES = {
    "AdminComment": "admin_comment",
    "Comment": "comment",
    "ExcNodeList": "excluded_nodes",
    "Features": "constraints",
    "Partition": "partitions",
    "ReqNodeList": "required_nodes",
    "StartTime": "begin_time",
    "TimeLimit": "time_limit",
    "TresPerNode": "gres_per_node",
}


class PySlurmCluster:
    """The PySlurm back end of :class:`~slurm_hadar.slurm.cluster.Cluster`."""

    backend = "pyslurm"

    def __init__(self, plain: CommandsCluster, why: str = "") -> None:
        self._plain = plain
        self.why = why
        self.traffic = plain.traffic
        self.queries: Counter[str] = plain.queries
        self.notes: list[str] = []
        os.environ["SLURM_BITSTR_LEN"] = commands.TASK_LIST_BYTES

    @property
    def slurm_version(self) -> tuple[int, int, int]:
        """See the commands' back end."""
        return self._plain.slurm_version

    def ping(self) -> bool:
        """Through the commands."""
        return self._plain.ping()

    def read_jobs(
        self, ids: Iterable[str] | None = None, tasks_per_array: int = TASKS_PER_ARRAY
    ) -> list[Job]:
        """One load of all jobs, and one ``squeue -O`` where jobs ask for no GPUs per node.

        A job whose texts PySlurm cannot decode sends the whole reading through squeue.
        """
        self.notes = []
        wanted = None if ids is None else dict.fromkeys(commands.checked_ids(ids))
        if wanted is not None and not wanted:
            return []
        try:
            with self.traffic.request("jobs"):
                shown = _loaded_jobs()
        except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            found = self._plain.read_jobs(wanted, tasks_per_array)
            self.notes = self._plain.notes
            return found
        requests: dict[int, tuple[str, str, str]] = {}
        if any(pyslurm_records.incomplete(job) for job, _ in shown):
            requests = self._requests()
        found = []
        for job, task_list in shown:
            whole = pyslurm_records.complete(job, requests)
            parts, notes = tasks_of(whole, task_list, wanted, tasks_per_array)
            found += parts
            self.notes += notes
        return found

    def read_nodes(self) -> list[Node]:
        """Through the commands."""
        return self._plain.read_nodes()

    def read_partitions(self) -> list[Partition]:
        """Through the commands."""
        return self._plain.read_partitions()

    def read_reservations(self) -> list[Reservation]:
        """Through the commands."""
        return self._plain.read_reservations()

    def read_topology(self) -> dict[str, str]:
        """Through the commands."""
        return self._plain.read_topology()

    def read_config(self) -> dict[str, str]:
        """Through the commands."""
        return self._plain.read_config()

    def admin_level(self, user: str) -> str:
        """Through the commands."""
        return self._plain.admin_level(user)

    def read_mail_types(self, numbers: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Through the commands."""
        return self._plain.read_mail_types(numbers)

    def read_limits(self, cluster: str) -> AccountLimits:
        """Through the commands."""
        return self._plain.read_limits(cluster)

    def read_minutes(self, users: Iterable[str]) -> Minutes:
        """Through the commands."""
        return self._plain.read_minutes(users)

    def read_use(self) -> dict[int, dict[str, float]]:
        """Through the commands."""
        return self._plain.read_use()

    def read_priorities(self) -> dict[int, list[CountedPriority]]:
        """Through the commands."""
        return self._plain.read_priorities()

    def submit(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Through the commands."""
        return self._plain.submit(script, options, env)

    def apply(self, many: Sequence[Update]) -> list[SlurmError | None]:
        """One request per update; what PySlurm cannot do goes through the commands together.

        With several updates of one job in a call all go through the commands, which keep order.
        """
        answers: list[SlurmError | None] = [None] * len(many)
        repeated = len({update.job_id for update in many}) < len(many)
        left = []
        for index, update in enumerate(many):
            try:
                updates.update_arguments(update, self.slurm_version)
            except SlurmError as error:
                answers[index] = error
                continue
            if repeated or not _fits(update):
                left.append(index)
                continue
            what = f"update of job {update.job_id}"
            answers[index] = self._call("update", what, partial(_modify, update))
        if left:
            found = self._plain.apply([many[index] for index in left])
            for index, answer in zip(left, found, strict=True):
                answers[index] = answer
        return answers

    def requeue(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """Through the commands."""
        return self._plain.requeue(ids)

    def reserve(self, name: str, nodes: Sequence[str], seconds: float) -> None:
        """Through the commands."""
        self._plain.reserve(name, nodes, seconds)

    def unreserve(self, name: str) -> None:
        """Through the commands."""
        self._plain.unreserve(name)

    def requeue_ended(self, job_id: str, stays_held: bool = False) -> None:
        """Through the commands."""
        self._plain.requeue_ended(job_id, stays_held)

    def hold(self, job_id: str) -> None:
        """Through the commands."""
        self._plain.hold(job_id)

    def release(self, job_id: str) -> None:
        """One request; a task by its own id through the commands."""
        if not commands.checked_id(job_id).isdigit():
            self._plain.release(job_id)
            return
        release = pyslurm.Job(int(job_id)).release
        error = self._call("release", f"release of job {job_id}", release)
        if error is not None:
            raise error

    def signal(self, job_id: str, name: str, target: Target = "full") -> None:
        """Through the commands."""
        self._plain.signal(job_id, name, target)

    def cancel(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """Through the commands."""
        return self._plain.cancel(ids)

    def _requests(self) -> dict[int, tuple[str, str, str]]:
        with self.traffic.request("requests"):
            text = self._plain.commands.read("squeue", pyslurm_records.REQUESTS)
        return pyslurm_records.requests(text)

    def _call(self, kind: str, what: str, request: Callable[[], object]) -> SlurmError | None:
        def attempt() -> SlurmError | None:
            try:
                with self.traffic.request(kind):
                    _translated(what, request)
            except SlurmError as error:
                return error
            return None

        return updates.patiently(attempt, time.sleep)


def _loaded_jobs() -> list[tuple[Job, str]]:
    try:
        return [pyslurm_records.job(entry) for entry in pyslurm.Jobs.load().values()]
    except pyslurm.RPCError as error:
        raise _refused("reading jobs", error) from None


def _translated(what: str, request: Callable[[], object]) -> None:
    try:
        request()
    except pyslurm.RPCError as error:
        raise _refused(what, error) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise SlurmError(f"{what}: {commands.clean_line(str(error))[:300]}") from None


def _fits(update: Update) -> bool:
    return (
        update.job_id.isdigit()
        and set(update.fields) <= set(_ATTRIBUTES)
        and all(update.fields.values())
    )


def _modify(update: Update) -> None:
    values = {_ATTRIBUTES[key]: _value(key, text) for key, text in update.fields.items()}
    pyslurm.Job(int(update.job_id)).modify(pyslurm.JobSubmitDescription(**values))


def _value(key: str, text: str) -> object:
    if key == "Partition":
        return text.split(",")
    if key == "TimeLimit" and text.isdigit():
        return int(text)
    return tres.bare(text) if key == "TresPerNode" else text


def _refused(what: str, error: Exception) -> SlurmError:
    return commands.refusal(what, commands.clean_line(str(error)))
