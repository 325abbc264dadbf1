"""Turning the site's TOML into the one small JSON that hbatch reads at every submit."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar import reading
from slurm_hadar.config import Config, group_types, wrapper_path
from slurm_hadar.domain.errors import UsageError

_DIGITS = 4
"""Of a speed: more would only make the file longer."""


def wrapper_site(config: Config, config_path: Path) -> dict[str, object]:
    """What hbatch needs to know of a site.

    ``stamp`` is the TOML's time of change (ns) and size (bytes), so that a stale file is noticed;
    ``interval_s`` is seconds. ``groups``: partition -> the partitions that it stands for -> GPU
    type of each. ``speeds``: model of the throughput tables, ``""`` for all others -> GPU type of a
    group -> samples/s on one GPU over those on the fastest type. ``known``: model -> types whose
    speed stands in a table. Raises OSError where the TOML is gone, UsageError where
    ``site.controller_user`` does not exist or a table cannot be read.
    """
    status = config_path.stat()
    folder = config.slurm.bin_dir
    groups = group_types(config)
    speeds, known = _speeds(config, groups)
    sbatch = str(folder / "sbatch") if folder else shutil.which("sbatch") or "sbatch"
    return {
        "version": 1,
        "stamp": [status.st_mtime_ns, status.st_size],
        "mode": config.site.mode,
        "rights": config.site.rights,
        "exchange_dir": str(config.site.exchange_dir),
        "controller_uid": config.controller_uid,
        "interval_s": config.controller.interval_s,
        "types": {
            name: {"feature": gpu.feature, "memory_gb": gpu.memory_gb}
            for name, gpu in config.gpu_types.items()
        },
        "opt_in": list(config.partitions.opt_in),
        "groups": groups,
        "speeds": speeds,
        "known": known,
        "default_types": config.wrapper.default_types,
        "quiet": config.wrapper.quiet,
        "sbatch": sbatch,
        "slurm_conf": str(config.slurm.conf) if config.slurm.conf else None,
    }


def _speeds(
    config: Config, groups: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Per model of the tables; empty for a site without groups. See :func:`wrapper_site`."""
    # The tables take their time, and a site without groups needs none.
    from slurm_hadar.profiles.rates import open_rates
    from slurm_hadar.profiles.table import load, model_key, shipped

    kinds = tuple(dict.fromkeys(kind for types in groups.values() for kind in types.values()))
    if not kinds:
        return {}, {}
    rates = open_rates(config)
    tables = [shipped(), *map(load, config.profiles.tables)]
    models = {model_key(row[0]) for table in tables for row in table.rows}
    found, known = {}, {}
    for model in ("", *sorted(models)):
        rate, is_known = rates.rates(model, None, kinds, (1,))
        row = [float(one) for one in rate[:, 0]]
        if is_known.any():
            known[model] = [kind for kind, is_ in zip(kinds, is_known[:, 0], strict=True) if is_]
        best = max(row) or 1.0
        found[model] = {
            kind: float(f"{one / best:.{_DIGITS}g}") for kind, one in zip(kinds, row, strict=True)
        }
    return found, known


def write_wrapper_site(config: Config, config_path: Path) -> Path:
    """Write the JSON beside the TOML: aside, then renamed, mode 0644. Returns its path.

    Raises :class:`UsageError` where it cannot be written.
    """
    path = wrapper_path(config_path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = json.dumps(wrapper_site(config, config_path), indent=1) + "\n"
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


def is_current(config: Config, config_path: Path) -> bool:
    """Whether the JSON beside the TOML says what the TOML says now.

    Without ``site.controller_user`` the UID in it is that of whoever wrote it, and stands.
    """
    try:
        data = reading.content(wrapper_path(config_path), reading.TABLE_BYTES)
        written = reading.parsed(data.decode())
    except (OSError, ValueError):
        return False
    now = wrapper_site(config, config_path)
    if not config.site.controller_user and isinstance(written, dict):
        now["controller_uid"] = written.get("controller_uid")
    return bool(written == now)
