"""What the last tick published, and the answers that are made of it for each user.

A tick publishes its report, which then no longer changes; the server's thread does all the rest, at
a request.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.decision_records import decisions
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.journal.store_file import StateFileError
from slurm_hadar.controller.observation.accounting_limits import FAULTS
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import account_usage, job_explanation, job_report
from slurm_hadar.controller.presentation.account_usage import RecordedUse
from slurm_hadar.controller.presentation.cluster_view import cluster_view
from slurm_hadar.controller.presentation.overview import (
    Sight,
    Viewer,
    controller_state,
    midnight,
    overview,
)
from slurm_hadar.controller.presentation.own_plan import own_plan
from slurm_hadar.controller.profiling.gpu_use import GpuUseLearner
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.service.placement_history import DAY_S, PlacementHistory
from slurm_hadar.controller.service.rights import RightsCache
from slurm_hadar.controller.service.server import Unchanged
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.work import WORTH_SAYING
from slurm_hadar.domain.errors import HadarError, SlurmError, UnknownJobError, UsageError
from slurm_hadar.domain.reasons import without_others
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.profiles.rates import Rates, open_rates
from slurm_hadar.reports.cluster import ClusterView, JobTimeline
from slurm_hadar.reports.status import CONTROLLER, Overview
from slurm_hadar.simulator.live_queue import model_of
from slurm_hadar.slurm.commands import checked_id

_KEPT, _KEPT_BYTES = 32, 2**20
"""Answers of one tick that are kept for repeated requests, and the longest of these."""
_NOT_YET = "the controller has not finished its first tick yet; ask again in a minute"
_FAILED = "its latest tick failed"


def general_fault(error: Exception) -> str:
    """What every user may know of why a tick failed: no path, no name and no job."""
    if isinstance(error, SlurmError):
        return f"{_FAILED}: Slurm refused a request or did not answer"
    if isinstance(error, StateFileError):
        return f"{_FAILED}: its state file could not be used"
    return _FAILED if isinstance(error, HadarError) else f"{_FAILED}: internal error"


@dataclass(frozen=True)
class _Tick:
    report: TickReport | None = None
    fault: str = ""
    general: str = ""
    """The fault without what only the operator may see."""

    def fault_for(self, everything: bool) -> str:
        """Why the latest tick did nothing; empty: it did not fail. ``everything``: as in
        :class:`Viewer`."""
        return self.fault if everything else self.general


class Published:
    """Answers for the socket; :meth:`publish` and :meth:`fault` are called by the daemon."""

    def __init__(
        self, config: Config, own_uid: int, connection: sqlite3.Connection | None = None
    ) -> None:
        """``connection``: the state file's, of the thread that publishes; without one the
        timeline ends with the process."""
        self._config, self._uid = config, own_uid
        self._tick = _Tick()
        self._day = PlacementHistory(connection)
        self._answered: dict[tuple[int, bytes], bytes | Unchanged] = {}
        self._answered_of: _Tick | None = None
        self._source: _TickSource | None = None
        self._sight_of: tuple[_Tick, Sight] | None = None
        self._rights = RightsCache(config.slurm)
        self.on_news: Callable[[], None] = lambda: None
        """Called in the thread that publishes, after it has."""

    def publish(self, report: TickReport) -> None:
        """A tick is over."""
        # On a full disk the history is in memory, and written by a later tick.
        with contextlib.suppress(sqlite3.Error):
            self._day.record(report.observation)
        self._tick = _Tick(report)
        self.on_news()

    def fault(self, words: str, general: str = _FAILED) -> None:
        """A tick did nothing, for this reason. ``general``: what every user may know of it."""
        self._tick = replace(self._tick, fault=words, general=general)
        self.on_news()

    def answer(self, uid: int, line: bytes) -> bytes | Unchanged:
        """The answer to one line of that user's; see :class:`slurm_hadar.controller.service.server.
        Server`."""
        now = self._tick
        if self._answered_of is not now or len(self._answered) >= _KEPT:
            self._answered_of = now
            self._answered.clear()
        key = (uid, line)
        if key not in self._answered:
            found = self._said(uid, line, now)
            said = _encoded(found)
            if len(said) > _KEPT_BYTES:
                return said
            self._answered[key] = Unchanged(said) if "unchanged" in found else said
        return self._answered[key]

    def close(self) -> None:
        """Close what the answers were read from; in the thread that answered."""
        if self._source is not None:
            self._source.store.close()
            self._source = None

    def _said(self, uid: int, line: bytes, now: _Tick) -> dict[str, object]:
        try:
            question = json.loads(line)
            if not isinstance(question, dict) or question.get("version") != 1:
                return {"error": "a question of another version of slurm-hadar", "usage": True}
            command = str(question.get("command"))
            answer = _ANSWERS.get(command)
            if answer is None and command != "fault":
                return {"error": "the controller knows no such question", "usage": True}
            uid = self._asked_for(uid, question)
            fault = now.fault_for(self._sees_everything(uid))
            if answer is None:
                return {"result": {"fault": fault}}
            if now.report is None:
                return {"error": f"no result yet: {fault}" if fault else _NOT_YET}
            viewer = self._viewer(uid, now.report)
            about = question.get("job", "") or question.get("since_s", "")
            result = answer(self, now, viewer, str(about))
            known = {"unchanged": True} if result == question.get("known") else {}
            return {"result": result, **known}
        except HadarError as error:
            unknown = {"unknown_job": True} if isinstance(error, UnknownJobError) else {}
            return {"error": str(error), "usage": isinstance(error, UsageError), **unknown}
        except (ValueError, RecursionError):
            return {"error": "this is no question", "usage": True}
        except Exception as error:
            # A fault of ours in one answer must not end the thread.
            return {"error": f"a fault of slurm-hadar: {type(error).__name__}"}

    def _asked_for(self, uid: int, question: dict[str, Any]) -> int:
        """Whose view is asked for: root and the controller's user may ask for another user, as
        ``hadar web`` does. Raises UsageError."""
        other = question.get("for", uid)
        if not isinstance(other, int) or isinstance(other, bool) or other < 0:
            raise UsageError("a question for a user names a UID")
        if other != uid and uid not in (0, self._uid):
            raise UsageError("only root and the controller's user ask for other users")
        return other

    def _sees_everything(self, uid: int) -> bool:
        return uid in (0, self._uid)

    def _viewer(self, uid: int, report: TickReport) -> Viewer:
        everything = self._sees_everything(uid)
        hidden = frozenset() if everything else report.private
        return Viewer(uid, everything, "jobs" in hidden, "nodes" in hidden)

    def _status(self, now: _Tick, viewer: Viewer, _: str) -> bytes:
        return _writer(Overview).dump_json(overview(self._sight(now, viewer), viewer))

    def _cluster(self, now: _Tick, viewer: Viewer, _: str) -> bytes:
        return _writer(ClusterView).dump_json(cluster_view(self._sight(now, viewer), viewer))

    def _timeline(self, now: _Tick, viewer: Viewer, _: str) -> bytes:
        report = now.report
        assert report is not None
        moves = self._reader(report).store.moves_since(report.observation.now - DAY_S)
        day = self._day.timeline(report.observation.now, moves, viewer)
        return _writer(JobTimeline).dump_json(day)

    def _report(self, now: _Tick, viewer: Viewer, since_s: str) -> bytes:
        """What the state file adds to the jobs that Slurm's accounting shows to this user."""
        report = now.report
        assert report is not None
        from_s = float(since_s)
        store = self._reader(report).store
        if viewer.everything or (rights := self._rights.of(viewer.uid)).everything:
            found = account_usage.recorded(store, from_s)
        else:
            found = account_usage.recorded_of(store, from_s, viewer.uid, rights.accounts)
        return _writer(RecordedUse).dump_json(found)

    def _queue_model(self, now: _Tick, viewer: Viewer, _: str) -> dict[str, Any]:
        assert now.report is not None
        if not viewer.everything:
            raise UsageError("the whole queue is shown to root and the controller's user only")
        return asdict(model_of(now.report.snapshot.view))

    def _latest(self, now: _Tick, _viewer: Viewer, _: str) -> dict[str, Any]:
        assert now.report is not None
        return {"observed_s": now.report.observation.now, "failed": bool(now.fault)}

    def _sight(self, now: _Tick, viewer: Viewer) -> Sight:
        report = now.report
        assert report is not None
        beat = read_heartbeat(self._config.site.exchange_dir, self._uid)
        state = controller_state(beat, time.time())
        state = replace(state, fault=now.fault_for(viewer.everything))
        since = midnight(report.observation.now)
        reader = self._reader(report)
        entries, owned = reader.store.moves_since(since), reader.gpus.owners.jobs_of
        known = self._sight_of
        if known is not None and known[0] is now and known[1].controller.alive == state.alive:
            # With the rows that were made for other users.
            return replace(known[1], controller=state, entries=entries, owned=owned)
        decided = report.decided
        if decided is None:
            decided = decisions(
                report.observation, report.snapshot, report.plan, report.diff, report.backfill
            )
        sight = Sight(
            report.observation,
            self._config,
            state,
            CONTROLLER,
            {one.job: one for one in decided},
            entries,
            report.understated,
            in_vain=reader.store.all_in_vain(Kind.MOVE.value),
            accounting=reader.store.policy_state(FAULTS),
            owned=owned,
        )
        self._sight_of = (now, sight)
        return sight

    def _explain(self, now: _Tick, viewer: Viewer, id_: str) -> dict[str, Any]:
        report = now.report
        assert report is not None
        id_ = self._own(report, viewer, id_)
        found = job_explanation.explanation_of(self._reader(report), id_)
        trust = report.understated.get(report.observation.jobs[id_].uid, 1.0)
        if trust >= WORTH_SAYING:
            note = (
                f"Declared work of this user's jobs counts {trust:.1f} times "
                "(declared work was off before)"
            )
            found = replace(found, notes=[*found.notes, note])
        return _without_others(asdict(found), (id_,), viewer)

    def _doctor(self, now: _Tick, viewer: Viewer, id_: str) -> dict[str, Any]:
        report = now.report
        assert report is not None
        id_ = self._own(report, viewer, id_)
        fault = now.fault_for(viewer.everything)
        found = job_report.of_controller(self._reader(report), id_, fault)
        return _without_others(asdict(found), (id_,), viewer)

    def _plan(self, now: _Tick, viewer: Viewer, _: str) -> dict[str, Any]:
        report = now.report
        assert report is not None
        jobs = report.observation.jobs.values()
        ids = {job.id for job in jobs if job.managed and viewer.sees_decisions(job)}
        return _without_others(asdict(own_plan(report, ids)), ids, viewer)

    def _own(self, report: TickReport, viewer: Viewer, id_: str) -> str:
        """The id of a job, where this user may know what was decided on it; of one that Slurm does
        not show any more, by the state file. Raises UsageError."""
        checked_id(id_)
        jobs = report.observation.jobs
        found = job_explanation.named(report.observation, id_)
        job = jobs.get(found)
        if job is None:
            tasks = [task for task in jobs.values() if str(task.array_job_id) == id_]
            if any(map(viewer.sees_decisions, tasks)):
                job_explanation.no_array(report.observation, id_)
            owners = self._reader(report).gpus.owners
            if viewer.everything or (not tasks and owners.has(viewer.uid, found)):
                return found
        elif viewer.sees_decisions(job):
            return found
        raise UnknownJobError(
            f"no job {id_} of yours was shown by Slurm at the last tick or is in the state file; "
            "squeue --me shows those that wait and run, and only its owner and the operator see "
            "what was decided on a job"
        )

    def _reader(self, report: TickReport) -> "_TickSource":
        """The state file is opened once, in the thread that answers."""
        if self._source is None:
            self._source = _TickSource(self._config, self._uid)
        self._source.report = report
        try:
            with self._source.store.readable_errors():
                return self._source
        except HadarError:
            self.close()
            raise


_ANSWERS: dict[str, Callable[[Published, _Tick, Viewer, str], dict[str, Any] | bytes]] = {
    "status": Published._status,
    "cluster": Published._cluster,
    "timeline": Published._timeline,
    "queue_model": Published._queue_model,
    "latest": Published._latest,
    "explain": Published._explain,
    "doctor": Published._doctor,
    "plan": Published._plan,
    "report": Published._report,
}


class _TickSource:
    """A :class:`job_explanation.Source` of what a tick saw."""

    report: TickReport

    def __init__(self, config: Config, own_uid: int) -> None:
        self.config, self.own_uid = config, own_uid
        self.store = Store.open(config.site.state_dir)
        self.gpus = GpuUseLearner(self.store.connection)
        self._rates = open_rates(config, self.store.connection)
        self._rates_of: TickReport | None = None

    @property
    def rates(self) -> Rates:
        """With what was measured up to this tick, which another thread writes into the file."""
        if self._rates_of is not self.report:
            self._rates.read_again()
            self._rates_of = self.report
        return self._rates

    def observe(self) -> Observation:
        """What the tick saw."""
        return self.report.observation

    def snapshot(self, _: Observation) -> Snapshot:
        """What its policy saw."""
        return self.report.snapshot


@cache
def _writer(kind: type[Any]) -> TypeAdapter[Any]:
    """It writes what ``asdict`` and ``json.dumps`` do, of 5,000 jobs in a tenth of the time."""
    return TypeAdapter(kind)


def _without_others(found: dict[str, Any], ids: Collection[str], viewer: Viewer) -> dict[str, Any]:
    """Under PrivateData no number of another job, nor how many there are."""
    if viewer.everything or not viewer.hidden_jobs:
        return found

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return without_others(value, ids)
        if isinstance(value, dict):
            return {key: cleaned(one) for key, one in value.items()}
        return [cleaned(one) for one in value] if isinstance(value, list | tuple) else value

    return {key: cleaned(value) for key, value in found.items()}


def _encoded(said: dict[str, object]) -> bytes:
    result = said.get("result")
    if isinstance(result, bytes):
        return b'{"version": 1, "result": ' + result + b"}"
    return json.dumps({"version": 1, **said}).encode()
