"""What the controller of this host answers, asked for the user who looks at the page."""

from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from slurm_hadar.config import Config
from slurm_hadar.controller.service import client
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.cluster import ClusterView, JobTimeline
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.text import Explanation
from slurm_hadar.simulator.live_queue import QueueModel

_T = TypeVar("_T")


class SilentController(HadarError):
    """No controller answers on this host."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The last tick: when Slurm showed what it saw, s since the epoch, and whether a later one
    failed."""

    observed_s: float
    failed: bool


@dataclass(frozen=True)
class _Answer(Generic[_T]):
    version: Literal[1]
    result: _T


# From the text at once: of 5,000 jobs in half the time that json and then a check take.
_ADAPTERS: dict[type[Any], TypeAdapter[_Answer[Any]]] = {
    Latest: TypeAdapter(_Answer[Latest]),
    ClusterView: TypeAdapter(_Answer[ClusterView]),
    JobTimeline: TypeAdapter(_Answer[JobTimeline]),
    Explanation: TypeAdapter(_Answer[Explanation]),
    JobReport: TypeAdapter(_Answer[JobReport]),
    QueueModel: TypeAdapter(_Answer[QueueModel]),
}


@dataclass(frozen=True)
class ControllerAnswers:
    """Asks; each call blocks until the answer is there. Raises SilentController where none is,
    UsageError and HadarError with the controller's message where it refuses."""

    config: Config
    own_uid: int
    controllers_uid: int

    async def latest(self, known: Latest | None) -> Latest:
        """The last tick, once it differs from the one that is known, or after some seconds; an
        older controller answers at once."""
        question: dict[str, object] = {"version": 1, "command": "latest"}
        if known is not None:
            question["known"] = asdict(known)
        path = self.config.status_socket
        return _read(Latest, await client.wait_for_text(path, self.controllers_uid, question))

    def cluster(self, uid: int) -> ClusterView:
        """The cluster and the queue."""
        return self._asked(ClusterView, "cluster", uid)

    def timeline(self, uid: int) -> JobTimeline:
        """The last day."""
        return self._asked(JobTimeline, "timeline", uid)

    def explain(self, uid: int, job: str) -> Explanation:
        """What was decided on one job, and why."""
        return self._asked(Explanation, "explain", uid, job)

    def report(self, uid: int, job: str) -> JobReport:
        """How one job came to where it is."""
        return self._asked(JobReport, "doctor", uid, job)

    def queue_model(self) -> QueueModel:
        """The managed jobs as a policy sees them."""
        return self._asked(QueueModel, "queue_model", self.own_uid)

    def _asked(self, kind: type[_T], command: str, uid: int, job: str = "") -> _T:
        question: dict[str, object] = {"version": 1, "command": command, "job": job}
        if uid != self.own_uid:
            question["for"] = uid
        path = self.config.status_socket
        return _read(kind, client.ask_for_text(path, self.controllers_uid, question))


def _read(kind: type[_T], heard: bytes | None) -> _T:
    if heard is not None:
        try:
            found: _T = _ADAPTERS[kind].validate_json(heard).result
            return found
        except ValidationError:
            pass
    # Only a refusal is read twice.
    if heard is None or client.result_of(heard) is None:
        raise SilentController(
            "no controller answers on this host; its operator starts it: hadar run"
        )
    raise HadarError(
        "the controller on this host is of another version; after an upgrade its operator "
        "restarts it (systemctl restart slurm-hadar), otherwise install the same version here"
    )
