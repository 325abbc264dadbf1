"""The one interface to a Slurm cluster.

All code that reads or steers Slurm holds a :class:`Cluster`; ``cluster.backend`` names the back
end and ``cluster.why`` the reason for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node, Partition, Reservation
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import Minutes
from slurm_hadar.slurm.traffic import Traffic
from slurm_hadar.slurm.waiting_priorities import CountedPriority

Target = Literal["steps", "batch", "full"]
"""Who gets a signal: the job's steps only, the batch shell only, or the batch shell, its children
and all steps."""

TASKS_PER_ARRAY = 100
"""Waiting tasks of one array that a read shows at most, by default."""


@dataclass(frozen=True, slots=True)
class Update:
    """One change of one job, as ``scontrol update`` takes it.

    Keys are scontrol's names: Features, Partition, TresPerNode, TresPerJob, NumNodes, NumTasks,
    NumCPUs, CPUsPerTask, MinCPUsNode, MinMemoryNode, MinMemoryCPU, ReqNodeList, ExcNodeList,
    StartTime, TimeLimit, MailType, Comment, AdminComment, Requeue. Memory is in MB, StartTime is
    ``now``, ``uts`` with seconds since the epoch, or an ISO time, TimeLimit is minutes or
    ``D-HH:MM:SS``.

    TresPerNode is written ``gpu:2`` or ``gpu:v100:2``, without ``gres:`` or ``gres/`` in front.
    An empty value clears Features, ReqNodeList, ExcNodeList, Comment and AdminComment.
    """

    job_id: str
    fields: Mapping[str, str]


class Cluster(Protocol):
    """A Slurm cluster.

    Reads raise :class:`SlurmError` when Slurm does not answer or answers nonsense, and never
    return a part as the whole. Its ``retry`` says whether the same call may succeed later.
    Writes that take several ids report per id; those that take one raise.
    """

    backend: str
    """``"commands"`` or ``"pyslurm"``."""
    why: str
    """Why this back end was chosen, as a sentence for ``hadar check``."""
    queries: Counter[str]
    """Requests sent so far by kind: jobs, nodes, partitions, reservations, config, users, ping,
    limits, minutes, mails, priorities, update, submit, requeue, reserve, hold, release, signal,
    cancel."""
    traffic: Traffic
    """How many requests that were, and how quickly they were answered."""
    notes: list[str]
    """What the last ``read_jobs`` left out (long arrays that were cut), one sentence each."""

    @property
    def slurm_version(self) -> tuple[int, int, int]:
        """Slurm's version such as (24, 11, 5), asked once."""
        ...

    def ping(self) -> bool:
        """Whether slurmctld answers now; never raises."""
        ...

    def read_jobs(
        self, ids: Iterable[str] | None = None, tasks_per_array: int = TASKS_PER_ARRAY
    ) -> list[Job]:
        """All jobs that Slurm still knows, finished ones included (until its MinJobAge).

        ``ids`` restricts the answer; ids that Slurm does not know any more are missing in it. A
        waiting array comes as one Job per task, at most ``tasks_per_array`` of them, lowest
        task first; tasks named in ``ids`` are never cut.
        """
        ...

    def read_nodes(self) -> list[Node]:
        """All nodes."""
        ...

    def read_partitions(self) -> list[Partition]:
        """All partitions, hidden ones included."""
        ...

    def read_reservations(self) -> list[Reservation]:
        """Reservations, active and coming."""
        ...

    def read_topology(self) -> dict[str, str]:
        """Node -> its leaf switch; empty where the site has no tree of switches."""
        ...

    def read_config(self) -> dict[str, str]:
        """``scontrol show config`` as key -> value."""
        ...

    def admin_level(self, user: str) -> str:
        """AdminLevel of a user in the accounting database: Operator, Administrator or None; ""
        where the database does not know the user."""
        ...

    def read_mail_types(self, numbers: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Of jobs by Slurm's own number (``raw_id``): the mails that they asked for, such as
        ``("BEGIN", "END")``. Those that asked for none, and that Slurm does not show, are missing.
        """
        ...

    def read_limits(self, cluster: str) -> AccountLimits:
        """Whose CPUs and memory the accounting database limits on the cluster of that name."""
        ...

    def read_minutes(self, users: Iterable[str]) -> Minutes:
        """Limits on minutes and what is used of them, as slurmctld counts: of all accounts and
        QOS, and of these users in their accounts."""
        ...

    def read_use(self) -> dict[int, dict[str, float]]:
        """Slurm's own number of a job -> resource -> what it has, or asks for where it waits;
        memory in MB."""
        ...

    def read_priorities(self) -> dict[int, list[CountedPriority]]:
        """Slurm's own number of a job that waits and is not held -> its priority as last counted,
        in each of its partitions. Under priority/multifactor only."""
        ...

    def submit(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Submit a batch script and return the job's id.

        ``script`` is the script's text, or a :class:`Path` to it. ``options`` are sbatch's, each
        an argument of its own. ``env`` is the environment that the job inherits; None: a clean
        one of ours.
        """
        ...

    def apply(self, updates: Sequence[Update]) -> list[SlurmError | None]:
        """Carry out many updates; one answer per update, None where it was accepted.

        Accepted means that Slurm took it, not that the job can be scheduled so.
        """
        ...

    def requeue(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """Requeue running jobs (plainly: Slurm starts them again by itself after a while).

        To a job that waits, or has ended since it was read, nothing happens.
        """
        ...

    def reserve(self, name: str, nodes: Sequence[str], seconds: float) -> None:
        """Close nodes for all jobs but those that run there, from now on for so long, by a
        reservation beside any others."""
        ...

    def unreserve(self, name: str) -> None:
        """End the reservation of that name."""
        ...

    def requeue_ended(self, job_id: str, stays_held: bool = False) -> None:
        """Requeue a job that has ended: Slurm starts it anew, whatever its end was.

        ``stays_held``: its owner held it before it ended, and Slurm would take that hold for an
        admin's. Of a job that is not held this would be a hold.
        """
        ...

    def hold(self, job_id: str) -> None:
        """Hold a waiting job. Ours for tests and repairs only: the controller never holds."""
        ...

    def release(self, job_id: str) -> None:
        """Release a held job."""
        ...

    def signal(self, job_id: str, name: str, target: Target = "full") -> None:
        """Send a signal such as ``USR2`` to a running job."""
        ...

    def cancel(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """Cancel jobs. A job that has ended already is no error."""
        ...
