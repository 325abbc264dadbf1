"""The true speeds of a sandbox's pretend GPUs, which differ from every profile."""

import random
from collections.abc import Mapping
from typing import Any

from slurm_hadar.profiles.table import model_key, shipped

BaseRates = Mapping[str, Mapping[str, Mapping[int, float]]]
"""model -> GPU type -> number of GPUs -> samples/s of the whole job."""

SPREAD = 0.25
"""Largest random deviation from the profile, per model and type."""

_COUNTS = (1, 2, 4, 8)


def shipped_rates(types: list[str]) -> BaseRates:
    """Rates of the shipped profile for all its models on ``types``, at its middle batch.

    A model stands there under the profile's name and under its plain one (``ResNet-18`` and
    ``resnet18``). A type that the profile does not know is left out of a model.
    """
    table = shipped()
    names = dict.fromkeys(row[0] for row in table.rows)
    found: dict[str, dict[str, dict[int, float]]] = {}
    for model in dict.fromkeys(alias for name in names for alias in (name, model_key(name))):
        curves = table.curves(model)
        found[model] = {
            kind: {count: curves[kind].at(count, None).rate for count in _COUNTS}
            for kind in types
            if kind in curves
        }
    return found


def true_rates(base: BaseRates, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """``base`` times a random factor of 0.75 to 1.25 per (model, type); samples/s.

    The factor depends on the seed, the model's plain name and the type alone.
    """
    return {
        model: {
            kind: {
                str(count): rate * _factor(seed, model_key(model), kind)
                for count, rate in counts.items()
            }
            for kind, counts in by_type.items()
        }
        for model, by_type in base.items()
    }


def _factor(seed: int, model: str, kind: str) -> float:
    return random.Random(f"{seed}/{model}/{kind}").uniform(1 - SPREAD, 1 + SPREAD)


def pacing_table(nodes: Mapping[str, list[str]], base: BaseRates, seed: int) -> dict[str, Any]:
    """The content of the pacing file. ``nodes``: node -> type of each GPU.

    The emulation multiplies the rates by ``time_scale``, which may be edited in the file.
    """
    return {
        "version": 1,
        "time_scale": 1.0,
        "nodes": dict(nodes),
        "rates": true_rates(base, seed),
    }
