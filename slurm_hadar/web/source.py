"""What the controller of this host answers, asked for the user who looks at the page."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from slurm_hadar.config import Config
from slurm_hadar.controller.service import client
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.cluster import ClusterView, JobTimeline
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.text import Explanation
from slurm_hadar.simulator.queue_model import QueueModel

_T = TypeVar("_T")


class SilentController(HadarError):
    """No controller answers on this host."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The last tick: when Slurm showed what it saw, s since the epoch, and whether a later one
    failed."""

    told_s: float
    failed: bool


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind)
    for kind in (Latest, ClusterView, JobTimeline, Explanation, JobReport, QueueModel)
}


@dataclass(frozen=True)
class ControllerAnswers:
    """Asks; each call blocks until the answer is there. Raises SilentController where none is,
    UsageError and HadarError with the controller's message where it refuses."""

    config: Config
    own_uid: int
    controllers_uid: int

    def latest(self) -> Latest:
        """Whether there is something new."""
        return self._asked(Latest, "latest", self.own_uid)

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
        answer = client.ask(self.config.status_socket, self.controllers_uid, question)
        if answer is None:
            raise SilentController("no controller answers on this host; start it: hadar run")
        try:
            found: _T = _ADAPTERS[kind].validate_python(answer)
        except ValidationError:
            raise HadarError(
                "the controller on this host is of another release; install the same release here"
            ) from None
        return found
