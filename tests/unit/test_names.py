"""Names in the code, the log, JSON and on the command line use the field's terms."""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import typer

from slurm_hadar import api, testing
from slurm_hadar.cli.main import app
from slurm_hadar.controller.alerts.dispatch import Looked
from slurm_hadar.controller.presentation.account_usage import RecordedUse
from slurm_hadar.controller.presentation.own_plan import OwnPlan
from slurm_hadar.reports import job_report, text
from slurm_hadar.reports.cluster import ClusterView, JobTimeline, NodeRow
from slurm_hadar.reports.run import Summary
from slurm_hadar.reports.status import Overview
from slurm_hadar.reports.usage import UsageReport
from slurm_hadar.sandbox.layout import Layout
from slurm_hadar.simulator.live_queue import QueueModel, QueueOutcome
from slurm_hadar.templates import Described
from slurm_hadar.testing import strategies
from slurm_hadar.web.controller_answers import Latest

PACKAGE = Path(__file__).resolve().parents[2] / "slurm_hadar"
DEFINITION = re.compile(r"^(class|def) ([A-Za-z]\w*)", re.MULTILINE)

INSTEAD = {
    "acting": "apply", "acts": "actuation", "arrays": "scheduling input", "beside": "sensitivity",
    "claim": "pending demand", "claims": "pending demand", "door": "interface",
    "floor": "resource pools", "hands": "action context", "hopes": "expected effect",
    "house": "architecture", "intent": "diff", "kept": "steering store", "known": "context",
    "last": "reservation", "laying": "job updates", "learned": "profiling", "lease": "begin time",
    "lines": "formatter", "nobody": "none", "offer": "bid", "offers": "bids",
    "outsiders": "unmanaged jobs", "pace": "GPU emulation", "parts": "allocation",
    "past": "history", "picture": "snapshot", "post": "incumbent", "room": "free capacity",
    "rules": "accounting limits", "said": "job reports", "seen": "observation",
    "somebody": "the user", "stays": "idle survival", "story": "job report",
    "targets": "eligibility", "telling": "presentation", "throw": "sandbox",
    "together": "composite", "told": "reported", "trail": "reconciliation", "trouble": "problem",
    "troubles": "diagnostics", "turns": "offer loop", "viewing": "view builder",
    "wanted": "resource request", "whoever": "the user", "words": "text",
}  # fmt: skip
"""A private word -> the term to use."""

ONLY_OURS = {
    "claims", "door", "hands", "hopes", "house", "laying", "nobody", "outsiders", "pace",
    "picture", "somebody", "story", "telling", "throw", "told", "trail", "trouble", "troubles",
    "viewing", "whoever",
}  # fmt: skip
"""Of these, those that no private name needs either: the others are ordinary words as well."""

FOR_RELEASED = ("sent on", "send on", "let go")
"""What a requeued job is called once it may start: released."""

ALLOWED = {
    "NodeArrays": "numpy arrays over nodes, public in slurm_hadar.api",
    "JobArrays": "numpy arrays over jobs, public in slurm_hadar.api",
    "node_arrays": "builds NodeArrays",
    "job_arrays": "builds JobArrays",
    "LastReports": "the latest report of each job",
    "last_reports": "the module of LastReports",
    "last_end_s": "the end of the last job",
    "partition_lines": "lines of slurm.conf",
    "offer_loop": "the loop of resource offers, the paper's own term",
    "OfferLoop": "the loop of resource offers, the paper's own term",
    "RackOffer": "one resource offer of that loop",
    "stateful_parts": "parts of a training with a state_dict",
}

ALLOWED_FIELDS = {
    "known": "JobArrays.known: which rates are known",
    "end_known": "JobArrays.end_known: which ends are known",
    "known_s": "from when on the live page knows the jobs that have ended",
    "last": "the latest time on a page",
    "last_h": "the end of the last job",
    "last_s": "the last tick of the controller",
}
"""Allowed as a field, a parameter or a JSON key, not for a class or a module."""


def _parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _private(name: str) -> str:
    """What to use instead of a private word in a name; empty where it has none."""
    if name in ALLOWED:
        return ""
    return ", ".join(f"{part}: {INSTEAD[part]}" for part in _parts(name) if part in INSTEAD)


def _private_field(name: str) -> str:
    return "" if name in ALLOWED_FIELDS else _private(name)


def _definitions(path: Path) -> list[tuple[str, str]]:
    """(``class`` or ``def``, name) of what is public at the top of a module."""
    return DEFINITION.findall(path.read_text())


def _names() -> Iterator[tuple[str, str]]:
    """(where, name) of packages, modules, public classes and public functions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        yield str(where), path.parent.name if path.stem == "__init__" else path.stem
        for _, name in _definitions(path):
            yield str(where), name


def _commands(group: typer.Typer) -> Iterator[str]:
    command = typer.main.get_command(group)
    stack = [("hadar", command)]
    while stack:
        name, one = stack.pop()
        for key, below in getattr(one, "commands", {}).items():
            yield key
            stack.append((f"{name} {key}", below))
        for option in one.params:
            yield from (text.lstrip("-") for text in option.opts if text.startswith("-"))


def test_names_are_the_terms_of_the_field():
    assert [(where, name, _private(name)) for where, name in _names() if _private(name)] == []


def _all_names(tree: ast.AST) -> Iterator[str]:
    """What a module calls its classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_private_names_avoid_the_words_that_only_this_project_used():
    wrong = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name in set(_all_names(ast.parse(path.read_text())))
        if _is_ours(name)
    }
    assert wrong == set()


def _is_ours(name: str) -> bool:
    parts = _parts(name)
    together = f" {' '.join(parts)} "
    return not ONLY_OURS.isdisjoint(parts) or any(f" {one} " in together for one in FOR_RELEASED)


def test_commands_and_options_are_the_terms_of_the_field():
    assert [(name, _private(name)) for name in _commands(app) if _private(name)] == []


def _keys(path: Path) -> Iterator[str]:
    """Keys of the dicts that a module writes, and events of the log."""
    for node in ast.walk(ast.parse(path.read_text())):
        keys = list(node.keys) if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "line":
            keys.append(node.args[0])
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def _members(found: object) -> Iterator[str]:
    """Public fields and methods of a class of this package, and all parameters."""
    if inspect.isfunction(found):
        yield from inspect.signature(found).parameters
    if not inspect.isclass(found):
        return
    for one in found.__mro__:
        if not one.__module__.startswith("slurm_hadar."):
            continue
        for name in {*vars(one), *inspect.get_annotations(one)}:
            member = inspect.unwrap(
                getattr(getattr(one, name, None), "__func__", vars(one).get(name))
            )
            if not name.startswith("_"):
                yield name
            if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                yield from inspect.signature(member).parameters


def _programming_interface() -> Iterator[tuple[str, str]]:
    """(where, name) of what authors of policies import, with fields, methods and parameters."""
    for module, names in ((api, api.__all__), (testing, testing.__all__), (strategies, ["views"])):
        for name in names:
            yield module.__name__, name
            for inner in _members(inspect.unwrap(getattr(module, name))):
                yield f"{module.__name__}.{name}", inner


def test_the_interface_for_authors_of_policies_uses_the_terms_of_the_field():
    found = set(_programming_interface())
    assert {
        ("slurm_hadar.api.FreeCapacity", "pools"),
        ("slurm_hadar.api.FreeCapacity", "allocation"),
        ("slurm_hadar.api.JobArrays", "cpu_sensitivity"),
        ("slurm_hadar.api.PolicyOptions", "options"),
        ("slurm_hadar.api.placement", "allocation"),
        ("slurm_hadar.testing.jobs_of", "fields"),
    } <= found
    wrong = [(where, name, _private_field(name)) for where, name in sorted(found)]
    assert [one for one in wrong if one[-1]] == []


PRINTS_JSON = (
    "cli", "controller/presentation", "controller/service", "demo", "sandbox", "simulator",
    "tuning", "web",
)  # fmt: skip
"""Folders whose modules make what a command, the socket or the live page gives as JSON."""

JSON_RECORDS: dict[str, tuple[type, ...]] = {
    "cli/alerts.py": (Looked,),
    "cli/doctor.py": (job_report.JobReport,),
    "cli/report.py": (UsageReport,),
    "cli/status.py": (Overview,),
    "cli/template.py": (Described,),
    "controller/presentation/job_explanation.py": (text.Explanation,),
    "controller/service/published.py": (
        ClusterView, JobTimeline, Latest, Overview, OwnPlan, QueueModel, RecordedUse,
        job_report.JobReport, text.Explanation,
    ),
    "reports/compare.py": (Summary,),
    "sandbox/layout.py": (Layout,),
    "web/api.py": (
        JobTimeline, NodeRow, Overview, UsageReport, job_report.JobReport, text.Explanation,
    ),
    "web/controller_answers.py": (Latest,),
    "web/what_if.py": (QueueModel, QueueOutcome),
}  # fmt: skip
"""The dataclasses that each module gives as JSON."""


def _record_keys(record: object) -> set[str]:
    """Fields of a dataclass and of the dataclasses in it."""
    found: set[str] = set()
    if is_dataclass(record):
        hints = get_type_hints(record)
        for one in fields(record):
            found |= {one.name} | _record_keys(hints[one.name])
    for inner in get_args(record):
        found |= _record_keys(inner)
    return found


def _json_keys() -> set[str]:
    modules = [path for folder in PRINTS_JSON for path in (PACKAGE / folder).rglob("*.py")]
    found = {key for path in modules for key in _keys(path)}
    for records in JSON_RECORDS.values():
        found = found.union(*map(_record_keys, records))
    return found


def test_log_events_and_json_keys_are_the_terms_of_the_field():
    found = _json_keys()
    assert {"fault", "changes_sent", "missing_history", "observed_s", "samples_per_s"} <= found
    wrong = [(name, _private_field(name)) for name in sorted(found)]
    assert [one for one in wrong if one[-1]] == []


def test_each_record_that_is_given_as_json_is_listed():
    folders = (*PRINTS_JSON, "reports")
    modules = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    with_records = {
        path.relative_to(PACKAGE).as_posix() for path in modules if "asdict(" in path.read_text()
    }
    assert with_records == set(JSON_RECORDS)


def test_no_two_public_classes_share_a_name():
    where = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for kind, name in _definitions(path):
            if kind == "class":
                where[name].append(str(path.relative_to(PACKAGE)))
    shared = {name: found for name, found in where.items() if len(found) > 1}
    assert not shared


def test_each_exception_is_used():
    assert not set(ALLOWED) - {name for _, name in _names()}
    fields_of_all = _json_keys() | {name for _, name in _programming_interface()}
    assert not set(ALLOWED_FIELDS) - fields_of_all


def test_a_private_word_is_found():
    assert _private("tick_lines") == "lines: formatter" and _private("TheStory")
    assert not _private("format_tick") and not _private("restore")
    assert _is_ours("_sent_on") and _is_ours("theTrouble") and not _is_ours("_sent_once")
