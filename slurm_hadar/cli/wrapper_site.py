"""Reading what ``hadar check --write`` left for hbatch, and what a controller says of itself.

The runtime has a reader of the same kind; this one spares a submit the imports behind it.
"""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH116, PTH118, PTH123

from __future__ import annotations

import json
import os
import stat

from slurm_hadar import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_INTERVAL_S = 3600.0
_TOML_BYTES = 256_000
"""The most of a site's TOML: see :data:`slurm_hadar.reading.SITE_BYTES`."""
_LONGEST = 300
"""Characters of a message: keys of the JSON are named in it."""


class SiteError(Exception):
    """The small JSON is there and cannot be used; the message says why, as a terminal shows it."""

    def __init__(self, message: str) -> None:
        cut = message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
        super().__init__("".join(c if c.isprintable() else "?" for c in cut))


class RolloutLimits:
    """Which jobs the site has managed: of these accounts and users, and ``percent`` of them."""

    def __init__(self, source: Mapping[str, object]) -> None:
        self.accounts = _texts(source, "accounts")
        self.users = _texts(source, "users")
        self.percent = number(source, "percent")


class WrapperSite:
    """The small JSON: see :func:`slurm_hadar.controller.checks.wrapper_site.write_wrapper_site`.

    ``features`` and ``memory_mb`` (0: unknown) are by GPU type; ``groups``: partition -> those that
    it stands for -> GPU type; ``speeds``: model -> GPU type -> speed over that of the fastest;
    ``batches``: model -> batch per GPU -> the same with that batch, of types measured with it;
    ``known``: model -> GPU types whose speed is known, and no guess; ``models``: all that a table
    knows; ``backfill``: partitions for trainings on idle nodes, None: not said;
    ``chain``: those in which a job may be requeued before its time limit, None: not said.
    ``copies``: whether the policy makes copies of jobs, as far as is said;
    ``rollout``: None where every job that opts in is managed.
    ``stale``: the TOML beside it has changed since. Raises :class:`SiteError` where a field is
    missing or of the wrong kind; a file of an earlier release has no groups, no speeds, no batches,
    no name of its ``cluster`` and no ``default_partition``.
    """

    def __init__(self, source: Mapping[str, object], stale: bool = False) -> None:
        self.stale = stale
        self.acts = _text(source, "mode") == "act"
        self.exchange_dir = _text(source, "exchange_dir")
        self.controller_uid = int(number(source, "controller_uid"))
        self.opt_in = _texts(source, "opt_in")
        self.default_partition = _text(source, "default_partition", "")
        self.cluster = _text(source, "cluster", "")
        self.default_types = _text(source, "default_types")
        self.quiet = source.get("quiet") is True
        self.sbatch = _text(source, "sbatch")
        self.slurm_conf = _text(source, "slurm_conf") if source.get("slurm_conf") else ""
        self.features: dict[str, str] = {}
        self.memory_mb: dict[str, int] = {}
        types = source.get("types")
        if not isinstance(types, dict):
            raise SiteError("types is missing")
        for name, gpu in types.items():
            if not isinstance(gpu, dict):
                raise SiteError(f"types.{name} is no object")
            self.features[name] = _text(gpu, "feature")
            self.memory_mb[name] = int(number(gpu, "memory_gb") * 1024)
        self.groups: dict[str, dict[str, str]] = {
            name: {member: _text(members, member) for member in members}
            for name, members in _tables(source, "groups").items()
        }
        if unknown := {k for types in self.groups.values() for k in types.values()} - {*types}:
            raise SiteError(f"types.{min(unknown)} is missing")
        self.speeds: dict[str, dict[str, float]] = {
            model: {kind: number(speeds, kind) for kind in speeds}
            for model, speeds in _tables(source, "speeds").items()
        }
        self.batches: dict[str, dict[int, dict[str, float]]] = {
            model: _by_batch(rows) for model, rows in _tables(source, "batches").items()
        }
        known = source.get("known", {})
        if not isinstance(known, dict):
            raise SiteError("known is no object")
        self.models = _texts(source, "models") if "models" in source else ()
        self.backfill = _texts(source, "backfill") if "backfill" in source else None
        self.chain = _texts(source, "chain") if "chain" in source else None
        rollout = source.get("rollout")
        copies = source.get("copies", True)
        if not isinstance(copies, bool):
            raise SiteError("copies is neither true nor false")
        self.copies = copies
        self.rollout = RolloutLimits(rollout) if isinstance(rollout, dict) else None
        self.known: dict[str, tuple[str, ...]] = {model: _texts(known, model) for model in known}

    def may_list(self, partition: str | None) -> bool:
        """Whether a job that asks for this partition may get a list of others."""
        return self.acts and not self.stale and partition in self.groups


def read_site(path: str, config: str) -> WrapperSite | None:
    """The site as hbatch sees it, None where there is no such file.

    Raises :class:`SiteError` where it cannot be used.
    """
    try:
        with open(paths.opened(path), "rb") as stream:
            data = stream.read(paths.WRAPPER_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SiteError(error.strerror or str(error)) from None
    if len(data) > paths.WRAPPER_BYTES:
        raise SiteError("it is larger than 1 MiB, the limit")
    try:
        source = json.loads(data)
    except (ValueError, RecursionError):
        raise SiteError("it is not JSON") from None
    if not isinstance(source, dict) or source.get("version") != 1:
        raise SiteError("it is of another version")
    return WrapperSite(source, _is_stale(source, config))


def _is_stale(source: Mapping[str, object], config: str) -> bool:
    """Whether the TOML has another content than when ``source`` was made of it."""
    try:
        status = os.stat(config)
    except OSError:
        return False
    if source.get("stamp") == [status.st_mtime_ns, status.st_size]:
        return False
    # It may have been written again as it was.
    import zlib

    try:
        with open(paths.opened(config), "rb") as stream:
            return source.get("crc32") != zlib.crc32(stream.read(_TOML_BYTES + 1))
    except OSError:
        return True


def controller_is_active(site: WrapperSite, now: float) -> bool:
    """Whether a controller in act mode gave a sign of life lately. ``now`` in s since the epoch."""
    return _heartbeat(site, now) is not None


def takes_lists(site: WrapperSite, now: float) -> bool:
    """Whether a controller acts that wants one more job with a list of partitions in the queue."""
    beat = _heartbeat(site, now)
    return beat is not None and beat.get("room") is not False


def _heartbeat(site: WrapperSite, now: float) -> dict[str, object] | None:
    """The heartbeat of a controller that acts; None where there is none that is fresh."""
    beat = fresh_file(site, "heartbeat.json", now)
    return beat if beat is not None and beat.get("mode") == "act" else None


def fresh_file(site: WrapperSite, name: str, now: float) -> dict[str, object] | None:
    """A file of the controller's in the exchange folder; None where there is none to believe, or
    it is older than three intervals and 30 s."""
    path = os.path.join(site.exchange_dir, name)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            data = os.read(handle, 65536)
        finally:
            os.close(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != site.controller_uid:
            return None
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("version") != 1:
            return None
        interval_s = min(number(found, "interval_s"), _LONGEST_INTERVAL_S)
        age = now - number(found, "time")
    except (OSError, ValueError, RecursionError, SiteError):
        return None
    longest = 3 * interval_s + 30
    return found if -longest <= age <= longest else None


def _text(source: Mapping[str, object], key: str, missing: str | None = None) -> str:
    value = source.get(key, missing)
    if not isinstance(value, str):
        raise SiteError(f"{key} is missing")
    return value


def _texts(source: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = source.get(key)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise SiteError(f"{key} is missing")
    return tuple(value)


def _tables(source: Mapping[str, object], key: str) -> dict[str, dict[str, object]]:
    value = source.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise SiteError(f"{key} is no object of objects")
    return value


def _by_batch(rows: Mapping[str, object]) -> dict[int, dict[str, float]]:
    if not all(batch.isdecimal() and 0 < int(batch) < 10**9 for batch in rows):
        raise SiteError("batches has one that is no number")
    tables = _tables({"batches": dict(rows)}, "batches")
    return {int(batch): {kind: number(row, kind) for kind in row} for batch, row in tables.items()}


def number(source: Mapping[str, object], key: str) -> float:
    """A field that is a number from 0 to 1e12. Raises :class:`SiteError`."""
    value = source.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise SiteError(f"{key} is missing")
    return value
