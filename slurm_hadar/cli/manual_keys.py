"""Every key of the configuration, from ``config/``: what it takes, its default, its meaning.

``hadar policies`` shows the options of policies in the same way.
"""

import ast
import inspect
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slurm_hadar.config import Config, GpuType, cluster, reporting, schema, steering

SCHEMA = (cluster, steering, reporting, schema)
"""The modules with the tables of the configuration."""

_SAID_HERE = {
    "version": "Of this file's form.",
    "site.name": "Shown by hadar check.",
    "slurm.backend": "auto: PySlurm where it fits the site's Slurm, Slurm's commands otherwise.",
    "slurm.timeout_s": "Longest silence of a Slurm command; in all it may take ten times as long.",
    "guards.max_moves_per_tick": "Most moves that one tick begins.",
    "guards.max_moves_per_hour": "Most moves begun in an hour.",
    "guards.max_moves_per_job": "Most moves of one job.",
    "controller.interval_s": "Seconds between two ticks of hadar run.",
    "controller.round_s": "Length of a policy's round.",
    "controller.policy": "The policy's name.",
    "backfill.max_nodes": "Most nodes of all trainings on idle nodes together; 0: no limit.",
    "backfill.max_nodes_per_user": "The same for the trainings of one user.",
    "backfill.max_nodes_per_job": "The same for one training.",
    "profiles.tables": "Throughput tables beside the shipped one.",
    "wrapper.quiet": "hbatch says nothing about what it did.",
    "simulation.job_names": "Patterns of job names, each with a model.",
    "simulation.accounts": "Patterns of accounts, each with a model.",
}
"""Meanings of keys that ``config/`` says nothing about; a docstring there goes first."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``section``: the table that it stands in, ``""`` for the top of the file."""

    section: str
    name: str
    takes: str
    default: str
    meaning: str


def all_keys() -> list[Key]:
    """All keys, in the order of the file. Raises LookupError for one without a meaning."""
    return list(_keys(Config, "", docstrings(*SCHEMA)))


def sections() -> dict[str, str]:
    """What each table is about."""
    about = {"gpu_types.NAME": _flat(GpuType.__doc__)}
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            about[name] = _flat(kind.__doc__)
    return about


def _keys(model: type[BaseModel], section: str, said: dict[tuple[str, str], str]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, name, said)
        elif name == "gpu_types":
            yield from _keys(GpuType, "gpu_types.NAME", said)
        else:
            full = f"{section}.{name}" if section else name
            meaning = said.get((model.__name__, name)) or _SAID_HERE.get(full)
            if not meaning:
                raise LookupError(f"{full}: write a string below it in config/ that says what")
            yield Key(section, name, takes(field), default(field), meaning)


def docstrings(*modules: types.ModuleType) -> dict[tuple[str, str], str]:
    """(class, field) -> the string below the field, of modules whose source is there."""
    found = {}
    for kind in (kind for one in modules for kind in ast.parse(inspect.getsource(one)).body):
        if isinstance(kind, ast.ClassDef):
            for field, below in zip(kind.body, kind.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    found[kind.name, field.target.id] = _flat(str(below.value.value))
    return found


def takes(field: FieldInfo) -> str:
    """The type of a field and its bounds, one below and one above."""
    # On equal numbers the exclusive bound counts.
    least = max(_bounds(field, ("ge", "at least"), ("gt", "above")), default=None)
    most = min(_bounds(field, ("lt", "below"), ("le", "at most")), default=None)
    shown = [f"{word} {bound:g}" for bound, _, word in filter(None, (least, most))]
    return ", ".join([_type(field.annotation), *shown])


def _bounds(field: FieldInfo, *kinds: tuple[str, str]) -> list[tuple[float, int, str]]:
    """(bound, place of its kind in ``kinds``, word) of a field, for each kind (attribute, word)."""
    return [
        (float(bound), at, word)
        for one in field.metadata
        for at, (name, word) in enumerate(kinds)
        if (bound := getattr(one, name, None)) is not None
    ]


def _type(kind: object) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(json.dumps(value) for value in get_args(kind))
    if origin is Annotated:
        return _type(get_args(kind)[0])
    if origin is tuple:
        return f"list of {_type(get_args(kind)[0])}s"
    if origin is dict:
        return "table"
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in get_args(kind) if one is not type(None))
    names = {bool: "true or false", int: "whole number", float: "number", Path: "path"}
    return next((word for one, word in names.items() if kind is one), "text")


def default(field: FieldInfo) -> str:
    """The default of a field, as TOML has it."""
    value = field.get_default(call_default_factory=True)
    if value is None or value == {}:
        return "none"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _flat(text: str | None) -> str:
    return " ".join((text or "").replace("``", "").split())
