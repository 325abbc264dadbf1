"""Names in the code, the log, JSON and on the command line use the field's terms."""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import typer

from slurm_hadar import api, testing
from slurm_hadar.cli.main import app
from slurm_hadar.reports import job_report, text
from slurm_hadar.testing import strategies

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
    "known": "JobArrays.known: which rates are known",
    "end_known": "JobArrays.end_known: which ends are known",
}


def _parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _private(name: str) -> str:
    """What to use instead of a private word in a name; empty where it has none."""
    if name in ALLOWED:
        return ""
    return ", ".join(f"{part}: {INSTEAD[part]}" for part in _parts(name) if part in INSTEAD)


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
    wrong = [(where, name, _private(name)) for where, name in sorted(found) if _private(name)]
    assert wrong == []


def test_log_events_and_json_keys_are_the_terms_of_the_field():
    presentation = PACKAGE / "controller" / "presentation"
    modules = [*presentation.glob("*.py"), PACKAGE / "cli" / "plan_of_job_text.py"]
    found = {key for path in modules for key in _keys(path)}
    for record in (job_report.JobReport, job_report.Event, job_report.Problem, text.StatusRow):
        found |= {field.name for field in fields(record)}
    assert {"fault", "changes_sent", "missing_history"} <= found
    assert [(name, _private(name)) for name in sorted(found) if _private(name)] == []


def test_no_two_public_classes_share_a_name():
    where = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for kind, name in _definitions(path):
            if kind == "class":
                where[name].append(str(path.relative_to(PACKAGE)))
    shared = {name: found for name, found in where.items() if len(found) > 1}
    assert not shared


def test_each_exception_is_used():
    assert not set(ALLOWED) - {name for _, name in (*_names(), *_programming_interface())}


def test_a_private_word_is_found():
    assert _private("tick_lines") == "lines: formatter" and _private("TheStory")
    assert not _private("format_tick") and not _private("restore")
