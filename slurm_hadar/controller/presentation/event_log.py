"""The log: one line of JSON for each decision that changed, each action, each tick, each fault.

Actions and decisions are taken from the journal, where they are marked once they are logged: a
controller that died before it wrote them leaves them to the next one. A line is ASCII and bounded,
so nothing that a user chose can break it or begin another one.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import isfinite

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.action_outcomes import number, outcome_text
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.journal.entry import Decision, Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation.log_file import EventLog
from slurm_hadar.controller.presentation.privacy import Privacy
from slurm_hadar.controller.report import TickReport
from slurm_hadar.domain.job import Job, JobState

Fields = dict[str, object]

_LONGEST_TEXT, _LONGEST_NAME, _LONGEST_LINE = 400, 64, 4000
_MOST_NOTES = 10
_DECISION, _ACTION = "decision", "action"
_AT_ONCE = 5000
"""Lines of a kind that one tick writes; the rest comes with the next one."""
_EXPECTED_EFFECT = ("rate_before", "rate_expected", "rate_expected_here", "cost_expected_s")


def write(log: EventLog, store: Store, report: TickReport) -> None:
    """What one tick decided, did and saw. What cannot be written now stays news."""
    written = _owns_up(log) and news(log, store, report.observation.jobs)
    # One that fails is enough: each may wait for another process.
    log.missed += not (written and log.write(line("tick", _tick(report, log.privacy))))


def news(log: EventLog, store: Store, jobs: Mapping[str, Job]) -> bool:
    """Write the decisions and actions that were not written yet; False where one cannot be written
    now, which leaves it and the rest to the next call. ``jobs``: by id, for whose they are."""
    written = True
    with store.readable_errors():
        done: dict[str, list[int]] = {_DECISION: [], _ACTION: []}
        for event, id_, fields in _news(store, jobs, log.privacy):
            written = log.write(line(event, fields))
            if not written:
                break
            done[event].append(id_)
        store.logged(done[_DECISION], done[_ACTION])
    return written


def fault(log: EventLog | None, what: str) -> None:
    """A tick that did nothing, and why."""
    if log is not None:
        fields = {"what": log.privacy.text(what)}
        log.missed += not (_owns_up(log) and log.write(line("fault", fields)))


def _owns_up(log: EventLog) -> bool:
    """Whether the log can be written, and tells how many lines it lacks."""
    if log.missed:
        what = f"the log could not be written; {log.missed} lines of ticks and faults are missing"
        if not log.write(line("fault", {"what": what})):
            return False
        log.missed = 0
    return True


def line(event: str, fields: Mapping[str, object], now: float | None = None) -> str:
    """A line of at most 4,000 characters, ASCII only. ``now``: s since the epoch, for the time."""
    at = datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)
    head = {"time": at.isoformat(timespec="milliseconds"), "event": event}
    whole = {**head, **{key: _bounded(value) for key, value in fields.items()}, **head}
    text = json.dumps(whole)
    if len(text) <= _LONGEST_LINE:
        return text
    return json.dumps({**head, "job": str(fields.get("job", ""))[:_LONGEST_NAME], "cut": True})


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[: _LONGEST_TEXT - 3] + "..."
    if isinstance(value, float):
        return round(value, 3) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key)[:_LONGEST_NAME]: _bounded(one) for key, one in list(value.items())[:50]}
    if isinstance(value, list | tuple):
        return [_bounded(one) for one in value[:50]]
    return value


def _news(
    store: Store, jobs: Mapping[str, Job], privacy: Privacy
) -> Iterator[tuple[str, int, Fields]]:
    decisions, actions = store.unlogged(_AT_ONCE)
    for id_, one in decisions.items():
        yield _DECISION, id_, _decision(one, jobs, privacy)
    for entry in actions:
        yield _ACTION, entry.id, _action(entry, jobs, privacy)


def _decision(one: Decision, jobs: Mapping[str, Job], privacy: Privacy) -> Fields:
    job = jobs.get(one.job)
    return {
        "job": one.job,
        **privacy.person(job),
        "decided": _time(one.time_s),
        "decision": one.placement,
        "reason": privacy.text(one.reason, [job] if job else []),
    }


def _action(entry: Entry, jobs: Mapping[str, Job], privacy: Privacy) -> Fields:
    meant, job = steering_of(entry.details, 0.0), jobs.get(entry.job)
    stops = entry.kind == "move" and not meant.gpus
    found: Fields = {
        "job": entry.job,
        **privacy.person(job),
        "action": entry.id,
        "kind": "stop" if stops else entry.kind,
        "state": _state(entry),
        "opened": _time(entry.opened_s),
    }
    before = entry.details.get("from")
    if isinstance(before, dict) and before:
        found["from"] = before
    if meant.gpus:
        found["to"] = job_updates.placement_text(meant.gpus, list(meant.nodes))
    fields = entry.details.get("fields")
    if entry.kind == Kind.HINT.value and isinstance(fields, dict):
        who = [job] if job else []
        found["fields"] = {key: privacy.text(str(value), who) for key, value in fields.items()}
    for key in ("reason", "batch"):
        if entry.details.get(key):
            found[key] = entry.details[key]
    found |= {
        key: entry.details[key]
        for key in _EXPECTED_EFFECT
        if number(entry.details, key) is not None
    }
    if entry.steps:
        found["steps_after_s"] = {
            phase: round(time - entry.opened_s, 3) for phase, time in entry.steps
        }
    if entry.outcome is not None:
        found["outcome"] = outcome_text(entry)
        found["outcome_after_s"] = round(entry.changed_s - entry.opened_s, 3)
    if entry.shown:
        found["observed"] = entry.shown
    if entry.effect:
        found["effect"] = dict(entry.effect)
    for key in ("reason", "outcome", "observed"):
        if key in found:
            found[key] = privacy.text(str(found[key]), [job] if job else [])
    return found


def _state(entry: Entry) -> str:
    """How far an action is: its phase, answered, closed, or measured."""
    if entry.outcome is None:
        return entry.phase
    if entry.effect:
        return "measured"
    return "answered" if entry.shown is None else "closed"


def _tick(report: TickReport, privacy: Privacy) -> Fields:
    running = waiting = 0
    for target in [*report.snapshot.schedulable.values(), *report.backfill.schedulable.values()]:
        runs = target.job.state is JobState.RUNNING
        running, waiting = running + runs, waiting + (not runs)
    found: Fields = {
        "acted": report.acted,
        "running": running,
        "waiting": waiting,
        "not_steered": len(report.snapshot.excluded) + len(report.backfill.excluded),
        "deferred": len(report.diff.deferred),
        "changes_sent": len(report.done),
        "queries": dict(report.queries),
    }
    for key in ("read_s", "decide_s", "act_s"):
        found[key] = round(getattr(report, key), 3)
    jobs = report.observation.jobs.values()
    notes = [privacy.text(words, jobs) for words in islice(_notes(report), _MOST_NOTES)]
    return found | ({"notes": notes} if notes else {})


def _notes(report: TickReport) -> Iterator[str]:
    # What was done to a job has its own line.
    done = {action.job.id for action in report.diff.actions}
    for words in report.messages:
        if words.split(":")[0].removeprefix("job ") not in done:
            yield words


def _time(epoch_s: float) -> str:
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"
