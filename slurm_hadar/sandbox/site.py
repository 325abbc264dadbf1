"""The sandbox's own hadar.toml."""

import json
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar import config
from slurm_hadar.profiles.specs import lookup
from slurm_hadar.sandbox.layout import Layout
from slurm_hadar.sandbox.options import SandboxOptions, SlurmTimes, Value
from slurm_hadar.sandbox.places import SandboxPaths


def site_toml(
    layout: Layout,
    places: SandboxPaths,
    bin_dir: Path,
    options: SandboxOptions,
    times: SlurmTimes,
) -> str:
    """Text of a hadar.toml for a sandbox; the options' settings go over what a demo
    wants.

    Times are short: a sandbox lives for minutes. Raises UsageError for settings that no
    configuration knows.
    """
    sections: dict[str, dict[str, Value]] = {
        "site": {
            "name": "sandbox",
            "mode": options.mode,
            "rights": "sandbox",
            "state_dir": str(places.hadar_state),
            "exchange_dir": str(places.exchange),
        },
        # Not in the state folder, which other users may not enter.
        "status": {"socket": str(places.folder / "hadar.sock")},
        "web": {"socket": str(places.folder / "web.sock")},
        "slurm": {"bin_dir": str(bin_dir), "conf": str(places.slurm_conf)},
        "partitions": {"groups": _partition_groups(layout)},
        "guards": {
            "min_between_moves_s": 15.0,
            "max_moves_per_tick": 4,
            "gain_over_cost": 1.5,
            # Its slurmctld serves no other user, and its days are minutes.
            "max_queries_per_minute": 100_000,
            # A laptop that is busy answers late; its ticks need not become rarer for that.
            "slow_answer_s": 60.0,
            "stop_file": str(places.folder / "stop"),
        },
        "moving": {
            "ack_wait_s": 20.0,
            "settle_s": 5.0,
            "commit_s": 10.0,
            "after_return_s": times.kill_wait_s + 1.0,
        },
        "controller": {"interval_s": 5.0, "round_s": 30.0},
        "gpu_types": {kind: _gpu_type(kind) for kind in layout.gpu_types},
    }
    for section, values in (options.settings or {}).items():
        sections.setdefault(section, {}).update(values)
    text = _toml(sections)
    config.parse(text, str(places.site))
    return text


def _partition_groups(layout: Layout) -> dict[str, tuple[str, ...]]:
    """``gpu`` with the partitions of its GPU types; empty where the layout has no such shape."""
    by_name = {partition.name: partition for partition in layout.all_partitions}
    common = by_name.pop("gpu", None)
    if common is None:
        return {}
    inside = [g for g in layout.groups if not common.groups or g.prefix in common.groups]
    kinds = list(dict.fromkeys(kind for group in inside for kind in group.types))
    if len(kinds) < 2 or any(len(group.types) != 1 for group in inside):
        return {}
    for kind in kinds:
        holders = {group.prefix for group in inside if kind in group.types}
        own = by_name.get(kind)
        if own is None or set(own.groups) != holders:
            return {}
        if (own.tier, own.preempted) != (common.tier, common.preempted):
            return {}
    return {common.name: tuple(kinds)}


def _gpu_type(kind: str) -> dict[str, object]:
    spec = lookup(kind)
    known = {"memory_gb": spec.memory_gb, "tflops": spec.tflops} if spec else {}
    return {"feature": kind, **known}


def _toml(sections: Mapping[str, Mapping[str, Value]]) -> str:
    lines = ["# Written by the sandbox.", "version = 1"]
    for name, values in sections.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_literal(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_literal(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)
