"""The log: one line of JSON for each decision that changed, each action, each tick, each fault.

Actions and decisions are taken from the journal, where they are marked once they are logged: a
controller that died before it wrote them leaves them to the next one. A line is ASCII and bounded,
so nothing that a user chose can break it or begin another one.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Literal

from slurm_hadar.controller.acts import laying
from slurm_hadar.controller.acts.acting import steering_of
from slurm_hadar.controller.acts.trail import number
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.report import Report
from slurm_hadar.domain.job import Job, JobState

People = Literal["none", "ids", "names"]
Fields = dict[str, object]

_LONGEST_TEXT, _LONGEST_NAME, _LONGEST_LINE = 400, 64, 4000
_MOST_NOTES = 10
_AT_ONCE = 5000
"""Lines of a kind that one tick writes; the rest comes with the next one."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_HOPES = ("rate_before", "rate_expected", "rate_expected_here", "cost_expected_s")


def write(logger: logging.Logger, store: Store, report: Report, people: People) -> None:
    """What one tick decided, did and saw."""
    with store.in_words():
        told = store.connection.execute(
            "SELECT id, job, time_s, placement, reason FROM told WHERE news=1 ORDER BY id LIMIT ?",
            (_AT_ONCE,),
        ).fetchall()
        entries = store.entries("WHERE news=1 ORDER BY id LIMIT ?", (_AT_ONCE,))
        jobs = report.seen.jobs
        for _, job, time_s, placement, reason in told:
            why = _without_names(reason, jobs.get(job), people)
            fields = {"job": job, **_person(jobs.get(job), people), "decided": _time(time_s)}
            say(logger, "decision", {**fields, "decision": placement, "reason": why})
        for entry in entries:
            job_ = jobs.get(entry.job)
            done = _action(entry)
            for key in ("reason", "outcome"):
                if key in done:
                    done[key] = _without_names(str(done[key]), job_, people)
            say(logger, "action", {"job": entry.job, **_person(job_, people), **done})
        with store.transaction():
            for table, ids in (
                ("told", [row[0] for row in told]),
                ("journal", [e.id for e in entries]),
            ):
                store.connection.executemany(
                    f"UPDATE {table} SET news=0 WHERE id=?", [(id_,) for id_ in ids]
                )
    say(logger, "tick", _tick(report, people))


def fault(logger: logging.Logger | None, what: str, people: People) -> None:
    """A tick that did nothing, and why."""
    if logger is not None:
        say(logger, "fault", {"what": _without_quotes(what, people)})


def say(logger: logging.Logger, event: str, fields: Mapping[str, object]) -> None:
    """One line."""
    logger.info("%s", line(event, fields))


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


def _person(job: Job | None, people: People) -> Fields:
    """What of the owner may stand in a line. Paths and comments never do."""
    if job is None or people == "none":
        return {}
    found: Fields = {"uid": job.uid}
    if people == "names":
        names = {"user": job.user, "name": job.name, "account": job.account}
        found |= {key: value[:_LONGEST_NAME] for key, value in names.items()}
    return found


def _without_names(text: str, job: Job | None, people: People) -> str:
    """A reason such as "partition x does not admit account y" without the account."""
    names = [name for name in (job.user, job.account) if name] if job else []
    if people == "names" or not names:
        return _without_quotes(text, people)
    words = "|".join(re.escape(name) for name in names)
    return _without_quotes(re.sub(rf"(?<!\w)(?:{words})(?!\w)", "...", text), people)


def _without_quotes(text: str, people: People) -> str:
    """What a message quotes may come from a user."""
    return text if people == "names" else _QUOTED.sub("'...'", text)


def _action(entry: Entry) -> Fields:
    meant = steering_of(entry.details, 0.0)
    stops = entry.kind == "move" and not meant.gpus
    found: Fields = {
        "action": entry.id,
        "kind": "stop" if stops else entry.kind,
        "state": _state(entry),
        "opened": _time(entry.opened_s),
    }
    before = entry.details.get("from")
    if isinstance(before, dict) and before:
        found["from"] = before
    if meant.gpus:
        found["to"] = laying.words(meant.gpus, list(meant.nodes))
    for key in ("reason", "batch", "number", "jobs"):
        if entry.details.get(key):
            found[key] = entry.details[key]
    found |= {key: entry.details[key] for key in _HOPES if number(entry.details, key) is not None}
    if entry.steps:
        found["steps_after_s"] = {
            phase: round(time - entry.opened_s, 3) for phase, time in entry.steps
        }
    if entry.outcome is not None:
        found["outcome"] = entry.outcome
        found["outcome_after_s"] = round(entry.changed_s - entry.opened_s, 3)
    if entry.shown:
        found["seen"] = entry.shown
    if entry.effect:
        found["effect"] = dict(entry.effect)
    return found


def _state(entry: Entry) -> str:
    """How far an action is: its phase, answered, closed, or measured."""
    if entry.outcome is None:
        return entry.phase
    if entry.effect:
        return "measured"
    return "answered" if entry.shown is None else "closed"


def _tick(report: Report, people: People) -> Fields:
    running = waiting = 0
    for target in [*report.picture.targets.values(), *report.backfill.targets.values()]:
        runs = target.job.state is JobState.RUNNING
        running, waiting = running + runs, waiting + (not runs)
    found: Fields = {
        "acted": report.acted,
        "running": running,
        "waiting": waiting,
        "left_to_slurm": len(report.picture.left_out) + len(report.backfill.left_out),
        "deferred": len(report.intent.deferred),
        "changes_sent": len(report.done),
        "queries": dict(report.queries),
    }
    for key in ("read_s", "decide_s", "act_s"):
        found[key] = round(getattr(report, key), 3)
    notes = [_without_quotes(words, people) for words in _notes(report)]
    return found | ({"notes": notes[:_MOST_NOTES]} if notes else {})


def _notes(report: Report) -> Iterator[str]:
    # What was done to a job has its own line.
    done = {action.job.id for action in report.intent.actions}
    for words in report.said:
        if words.split(":")[0].removeprefix("job ") not in done:
            yield words


def _time(epoch_s: float) -> str:
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"
