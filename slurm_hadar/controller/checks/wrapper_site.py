"""Turning the site's TOML into the one small JSON that hbatch reads at every submit."""

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_hadar import policies, reading
from slurm_hadar.config import Config, Rollout, group_types, wrapper_path
from slurm_hadar.controller.observation.access import unlike_groups
from slurm_hadar.controller.snapshot.chaining import allowed_partitions
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.paths import WRAPPER_BYTES
from slurm_hadar.slurm.cluster import open_cluster

_DIGITS = 4
"""Of a speed: more would only make the file longer."""


@dataclass(frozen=True, slots=True)
class SlurmNames:
    """What the site's Slurm says of itself: its cluster's name and its default partition; empty
    where it does not answer. ``sbatch``: the one on PATH that is Slurm's own; empty: not sought.
    ``unlike``: partitions of ``partitions.groups`` that differ from their members."""

    cluster: str = ""
    default_partition: str = ""
    sbatch: str = ""
    unlike: tuple[str, ...] = ()


def names_of(config: Config) -> SlurmNames:
    """Ask Slurm."""
    try:
        cluster = open_cluster(config.slurm)
        name = cluster.read_config().get("ClusterName", "")
        partitions = cluster.read_partitions()
    except SlurmError:
        return SlurmNames()
    default = [one.name for one in partitions if one.default]
    unlike = unlike_groups(config.partitions.groups, {one.name: one for one in partitions})
    return SlurmNames(name, default[0] if default else "", unlike=unlike)


def wrapper_site(
    config: Config, config_path: Path, names: SlurmNames | None = None
) -> dict[str, object]:
    """What hbatch needs to know of a site.

    ``stamp`` is the TOML's time of change (ns) and size (bytes), so that a stale file is noticed,
    and ``crc32`` is of its content, for one that was written again as it was; ``interval_s`` is
    seconds. ``groups``: partition -> the partitions that it stands for -> GPU type of each, without
    those that Slurm shows otherwise. ``speeds``: model of the throughput tables, ``""`` for all
    others -> GPU type of a group -> samples/s on one GPU over those on the
    fastest type; ``batches``: model -> batch per GPU -> the same with that batch, of the types that
    a table has with it, without batches for which it is that of ``speeds``. ``known``: model ->
    types whose speed stands in a table; ``models``: all of them; ``backfill``: the partitions for
    trainings on idle nodes, empty where that is off; ``chain``: those in which a job may be
    requeued before its time limit; ``copies``: whether the policy makes any; ``rollout``: its
    limits, None without. Raises OSError where the TOML is gone, UsageError where
    ``site.controller_user`` does not exist or a table cannot be read.
    """
    status, names = config_path.stat(), names or SlurmNames()
    folder = config.slurm.bin_dir
    groups = {name: one for name, one in group_types(config).items() if name not in names.unlike}
    models = _models(config)
    speeds, batches, known = _speeds(config, groups, models)
    found = names.sbatch or shutil.which("sbatch") or "sbatch"
    sbatch = str(folder / "sbatch") if folder else found
    return {
        "version": 1,
        "stamp": [status.st_mtime_ns, status.st_size],
        "crc32": zlib.crc32(reading.content(config_path, reading.SITE_BYTES)),
        "mode": config.site.mode,
        "rights": config.site.rights,
        "exchange_dir": str(config.site.exchange_dir),
        "controller_uid": config.controller_uid,
        "interval_s": config.controller.interval_s,
        "types": {
            name: {"feature": gpu.feature, "memory_gb": gpu.memory_gb}
            for name, gpu in config.gpu_types.items()
        },
        "cluster": names.cluster,
        "default_partition": names.default_partition,
        "opt_in": list(config.partitions.opt_in),
        "groups": groups,
        "speeds": speeds,
        "batches": batches,
        "known": known,
        "models": models,
        "backfill": list(config.backfill.partitions) if config.backfill.enabled else [],
        "chain": sorted(allowed_partitions(config)),
        "copies": policies.makes_copies(config.controller.policy),
        "rollout": _rollout(config.rollout),
        "default_types": config.wrapper.default_types,
        "quiet": config.wrapper.quiet,
        "sbatch": sbatch,
        "slurm_conf": str(config.slurm.conf) if config.slurm.conf else None,
    }


def _rollout(found: Rollout) -> dict[str, object] | None:
    """None where every job that opts in is managed."""
    if not (found.accounts or found.users or found.percent < 100):
        return None
    return {
        "accounts": list(found.accounts),
        "users": list(found.users),
        "percent": found.percent,
    }


def _models(config: Config) -> list[str]:
    """The models of all tables."""
    from slurm_hadar.profiles.table import load, model_key, shipped

    tables = [shipped(), *map(load, config.profiles.tables)]
    return sorted({model_key(row[0]) for table in tables for row in table.rows})


_Speeds = dict[str, float]
"""GPU type -> speed over that on the fastest type."""


def _short(speeds: Mapping[str, float]) -> _Speeds:
    return {kind: float(f"{speed:.{_DIGITS}g}") for kind, speed in speeds.items()}


def _speeds(
    config: Config, groups: Mapping[str, Mapping[str, str]], models: Sequence[str]
) -> tuple[dict[str, _Speeds], dict[str, dict[str, _Speeds]], dict[str, list[str]]]:
    """Per model of the tables: the speeds, those by batch, and the types that a table has; empty
    for a site without groups. See :func:`wrapper_site`."""
    # The tables take their time, and a site without groups needs none.
    from slurm_hadar.profiles.rates import open_rates

    kinds = tuple(dict.fromkeys(kind for types in groups.values() for kind in types.values()))
    if not kinds:
        return {}, {}, {}
    rates = open_rates(config)
    found, batches, known = {}, {}, {}
    for model in ("", *models):
        rate, is_known = rates.rates((None, model, None), kinds, (1,))
        if is_known.any():
            known[model] = [kind for kind, is_ in zip(kinds, is_known[:, 0], strict=True) if is_]
        best = float(rate.max()) or 1.0
        speeds = dict(zip(kinds, (rate[:, 0] / best).tolist(), strict=True))
        found[model] = _short(speeds)
        rows = _by_batch({kind: rates.table_rates(model, kind) for kind in kinds}, speeds)
        same = {kind: found[model][kind] for kind in known.get(model, ())}
        if rows := {batch: row for batch, row in rows.items() if row != same}:
            batches[model] = rows
    return found, batches, known


def _by_batch(
    measured: Mapping[str, Mapping[int, float]], speeds: Mapping[str, float]
) -> dict[str, _Speeds]:
    """Batch -> GPU type -> speed, of ``measured``: type -> batch -> samples/s. The fastest type of
    a batch has its speed of ``speeds``, so that both can be compared."""
    rows: dict[str, _Speeds] = {}
    for batch in sorted({batch for rates in measured.values() for batch in rates}):
        row = {kind: rates[batch] for kind, rates in measured.items() if batch in rates}
        fastest = max(row, key=lambda kind: row[kind])
        # A batch that runs nowhere says nothing.
        if row[fastest] > 0:
            scale = (speeds[fastest] or 1.0) / row[fastest]
            rows[str(batch)] = _short({kind: rate * scale for kind, rate in row.items()})
    return rows


def _text(site: dict[str, object]) -> str:
    return json.dumps(site, indent=1) + "\n"


def _readable(site: dict[str, object]) -> dict[str, object]:
    """A site as it is written: without ``batches`` where hbatch could not read it with them."""
    if len(_text(site)) <= WRAPPER_BYTES:
        return site
    return {key: value for key, value in site.items() if key != "batches"}


def lacks_batches(config_path: Path) -> bool:
    """Whether the JSON beside the TOML has no speeds by batch; False where it cannot be read."""
    written = _written(config_path)
    return isinstance(written, dict) and "batches" not in written


def _written(config_path: Path) -> object:
    try:
        data = reading.content(wrapper_path(config_path), reading.TABLE_BYTES)
        return reading.parsed(data.decode())
    except (OSError, ValueError):
        return None


def write_wrapper_site(config: Config, config_path: Path, names: SlurmNames | None = None) -> Path:
    """Write the JSON beside the TOML: aside, then renamed, mode 0644. Returns its path.

    Without ``names`` hbatch knows neither the default partition nor the cluster's name.

    Raises :class:`UsageError` where it cannot be written.
    """
    path = wrapper_path(config_path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = _text(_readable(wrapper_site(config, config_path, names)))
        try:
            aside.write_text(text)
            aside.chmod(0o644)
            aside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from None
    return path


def is_current(config: Config, config_path: Path, names: SlurmNames | None = None) -> bool:
    """Whether the JSON beside the TOML says what the TOML says now, and Slurm by its ``names``;
    without those what it says of Slurm stands.

    Without ``site.controller_user`` the UID in it is that of the user who wrote it, and stands.
    """
    written = _written(config_path)
    if not isinstance(written, dict):
        return False
    kept = written.get("groups")
    if (names is None or not names.cluster) and isinstance(kept, dict):
        unlike = tuple(name for name in config.partitions.groups if name not in kept)
        names = replace(names or SlurmNames(), unlike=unlike)
    now = wrapper_site(config, config_path, names)
    if names is None or not names.cluster:
        now |= {key: written.get(key, "") for key in ("cluster", "default_partition")}
    if not (names and names.sbatch) and not config.slurm.bin_dir:
        now["sbatch"] = written.get("sbatch")
    if not config.site.controller_user:
        now["controller_uid"] = written.get("controller_uid")
    if written.get("crc32") == now["crc32"]:
        # Only the time of change is another.
        now["stamp"] = written.get("stamp")
    return written == _readable(now)
