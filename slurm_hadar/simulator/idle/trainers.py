"""The trainers that a replay of idle fragments hands nodes to: a JSON file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.bftrainer.records import Trainer

_MOST_TRAINERS = 100_000
_MOST_NODES = 100_000


@dataclass(frozen=True)
class TrainerWork:
    """One trainer's job: its curve, ``samples`` to do, ``arrival_s``."""

    trainer: Trainer
    samples: float
    arrival_s: float


@dataclass(frozen=True)
class TrainerWorkload:
    """Trainers in the order of arrival; at most ``at_once`` of them have nodes at a time."""

    work: tuple[TrainerWork, ...]
    at_once: int


def read_trainers(
    path: Path, model: str = "", copies: int | None = None, at_once: int | None = None
) -> TrainerWorkload:
    """A trainers file, or one of measured curves by model, of which ``model`` names one.

    ``copies`` and ``at_once``, where given, override the file's. Raises UsageError.
    """
    try:
        text = reading.content(path, reading.TABLE_BYTES).decode("utf-8-sig")
        found = reading.parsed(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path.name}, line {error.lineno}: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise UsageError(f"{path.name}: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path.name}: it must be a JSON object")
    if "trainers" in found:
        return _native(found, path.name, model, copies, at_once)
    return _by_model(found, path.name, model, copies, at_once)


def _native(
    found: Mapping[str, object], file: str, model: str, copies: int | None, at_once: int | None
) -> TrainerWorkload:
    entries = found["trainers"]
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{file}: trainers must be a list with at least one trainer")
    work: list[TrainerWork] = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise UsageError(f"{file}, trainer {number}: it must be a JSON object")
        name = str(entry.get("name", f"trainer{number}"))
        if model and name != model:
            continue
        where = f"{file}, trainer {number} ({name[:60]})"
        many = copies or _whole(entry, "copies", where, 1, _MOST_TRAINERS)
        if len(work) + many > _MOST_TRAINERS:
            raise UsageError(f"{where}: more than {_MOST_TRAINERS} trainers")
        trainer = _trainer(name, entry, where)
        samples = _number(entry, "samples", where, above=True)
        arrival = _number(entry, "arrival_s", where, 0.0)
        work += [TrainerWork(trainer, samples, arrival)] * many
    if not work:
        raise UsageError(f"{file} has no trainer named {model!r}")
    limit = at_once or _whole(found, "at_once", file, 10, _MOST_TRAINERS)
    return TrainerWorkload(tuple(sorted(work, key=lambda one: one.arrival_s)), limit)


def _by_model(
    found: Mapping[str, object], file: str, model: str, copies: int | None, at_once: int | None
) -> TrainerWorkload:
    """Curves as BFTrainer's data has them: nodes, img_per_s, Jmin, Jmax, Pmax, Tcup_s, Tcdw_s."""
    known = [name for name, value in found.items() if isinstance(value, dict)]
    if not known:
        raise UsageError(f"{file}: it has no list of trainers")
    if model not in known:
        raise UsageError(
            f"{file}: name one of its models with --model: {reading.shown(', '.join(known), 300)}"
        )
    entry = found[model]
    assert isinstance(entry, dict)
    where = f"{file}, {model[:60]}"
    trainer = _trainer(
        model,
        {
            "nodes": entry.get("nodes"),
            "samples_per_s": entry.get("img_per_s"),
            "least": entry.get("Jmin", 1),
            "most": entry.get("Jmax"),
            "grow_s": _mean(entry, "Tcup_s", where),
            "shrink_s": _mean(entry, "Tcdw_s", where),
        },
        where,
    )
    one = TrainerWork(trainer, _number(entry, "Pmax", where, above=True), 0.0)
    return TrainerWorkload((one,) * (copies or 1), at_once or 10)


def _mean(entry: Mapping[str, object], key: str, where: str) -> object:
    value = entry.get(key)
    if isinstance(value, dict):
        return value.get("mean")
    raise UsageError(f"{where}: {key} must be an object with a mean")


def _trainer(name: str, entry: Mapping[str, object], where: str) -> Trainer:
    nodes, rates = _list(entry, "nodes", where), _list(entry, "samples_per_s", where)
    if len(nodes) != len(rates):
        raise UsageError(f"{where}: {len(nodes)} nodes, but {len(rates)} samples_per_s")
    if not nodes or any(b <= a for a, b in pairwise(nodes)) or nodes[0] < 0:
        raise UsageError(f"{where}: nodes must be counts that increase")
    if nodes[-1] < 1 or nodes[-1] > _MOST_NODES or any(rate < 0 for rate in rates):
        raise UsageError(f"{where}: counts must be 1-{_MOST_NODES}, samples_per_s not negative")
    least = _whole(entry, "least", where, 1, _MOST_NODES)
    most = _whole(entry, "most", where, int(nodes[-1]), _MOST_NODES)
    if least > most or most > nodes[-1]:
        raise UsageError(f"{where}: least {least} to most {most} is not within its nodes")
    return Trainer(
        name=name,
        rate=curve(nodes, rates, least, most)[None, :],
        grow_s=_number(entry, "grow_s", where),
        shrink_s=_number(entry, "shrink_s", where),
        user=str(entry.get("user", "")),
    )


def curve(nodes: Sequence[float], rates: Sequence[float], least: int, most: int) -> FloatArray:
    """(most + 1,) samples/s on 0..most nodes: linear between the measured points and from 0 nodes
    to the first, 0 below ``least``."""
    points, values = list(nodes), list(rates)
    if points[0] > 0:
        points, values = [0.0, *points], [0.0, *values]
    whole: FloatArray = np.interp(np.arange(most + 1), points, values)
    whole[:least] = 0.0
    return whole


def _list(entry: Mapping[str, object], key: str, where: str) -> list[float]:
    value = entry.get(key)
    if not isinstance(value, list):
        raise UsageError(f"{where}: {key} must be a list of numbers")
    return [_finite(one, key, where) for one in value]


def _finite(value: object, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: {key} must be a number, not {str(value)[:40]!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UsageError(f"{where}: {key} must be a finite number")
    return number


def _number(
    entry: Mapping[str, object],
    key: str,
    where: str,
    default: float | None = None,
    above: bool = False,
) -> float:
    if key not in entry and default is not None:
        return default
    if key not in entry:
        raise UsageError(f"{where}: {key} is missing")
    number = _finite(entry[key], key, where)
    if number < 0 or (above and number == 0):
        raise UsageError(f"{where}: {key} must be {'more than 0' if above else '0 or more'}")
    return number


def _whole(entry: Mapping[str, object], key: str, where: str, default: int, most: int) -> int:
    number = _number(entry, key, where, default)
    if number != int(number) or not 1 <= number <= most:
        raise UsageError(f"{where}: {key} must be a whole number from 1 to {most}")
    return int(number)
