"""Adding the plugins to a site's Slurm and taking them back: what would change, as data."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.plugins import install_lua, programs, slurm_conf
from slurm_hadar.plugins.changes import Change, apply, read
from slurm_hadar.plugins.site_files import FileChanges, Files, SiteFiles, bytes_of, text_of

PLUGINS = ("job-submit", "cli-filter", "spank", "gpu-sampling", "task-prolog")
_LUA = PLUGINS[:2]
_PROGRAMS = {
    "gpu-sampling": (("prolog", "Prolog"), ("epilog", "Epilog")),
    "task-prolog": (("task_prolog", "TaskProlog"),),
}
_RECORD = "slurm-conf-with-plugins"
"""Which slurm.conf files got plugins of this installation, a path per line, in its virtual
environment: ``install.sh uninstall`` reads it."""
_SPANK_MARK = "# slurm-hadar"


@dataclass(frozen=True)
class InstallRequest:
    """What a site wants. ``untype``: see :mod:`.site_lua`. ``include``: folder of
    ``slurm/spank.h``; ``plugin_dir``: folder of Slurm's own plugins; None: found."""

    plugins: Sequence[str] = PLUGINS
    untype: bool = False
    include: Path | None = None
    plugin_dir: Path | None = None


def planned(path: Path, config: Config, request: InstallRequest) -> FileChanges:
    """What adding the wished plugins changes; plugins that are not wished are taken out.

    Raises :class:`UsageError` for a slurm.conf or paths that cannot be used.
    """
    site, plan = SiteFiles(path), FileChanges()
    files: Files = {}
    for name in _LUA:
        if name in request.plugins:
            install_lua.add(site, name, request.plugin_dir, plan, files)
        else:
            install_lua.take_out(site, name, plan)
    if files:
        install_lua.settings(site, config, request.untype, plan, files)
    _programs(site, config, request, plan, files)
    _spank(site, request, plan, files)
    ours = _ours(site, files, plan)
    text = slurm_conf.with_settings(site.text, plan.added, plan.replaced)
    conf = Change(site.path, site.data, bytes_of(text))
    # What a file names is there before it, and goes after it.
    coming = [change for change in [*ours, *plan.changes] if change.after is not None]
    going = [change for change in [*plan.changes, *ours] if change.after is None]
    plan.changes = [*coming, conf, *going]
    return plan


def removal(path: Path) -> FileChanges:
    """What taking everything of ours out changes. Raises :class:`UsageError`."""
    site, plan = SiteFiles(path), FileChanges()
    plan.changes.append(Change(site.path, site.data, bytes_of(site.text)))
    for name in _LUA:
        install_lua.take_out(site, name, plan)
    _stack(site, None, plan)
    plan.changes += _ours(site, {}, plan)
    return plan


def _programs(
    site: SiteFiles,
    config: Config,
    request: InstallRequest,
    plan: FileChanges,
    files: Files,
) -> None:
    wanted = [name for name in _PROGRAMS if name in request.plugins]
    if wanted and (path := programs.others_may_change(Path(sys.executable))):
        plan.by_hand.append(
            f"{', '.join(wanted)}: {path} can be changed by others than root, and every user's "
            "jobs would run what they put there: install slurm-hadar where only root may write"
        )
    for name, pairs in _PROGRAMS.items():
        if name not in request.plugins:
            continue
        for program, setting in pairs:
            text = programs.program(
                program,
                Path(sys.executable),
                config.site.exchange_dir,
                config.controller_uid,
                config.partitions.opt_in,
            )
            files[program] = (bytes_of(text), 0o755)
            path = site.ours / program
            if other := site.value(setting):
                plan.by_hand.append(
                    f"{setting} is {other} already: call ours from there with the line {path}"
                )
            else:
                plan.added[setting] = str(path)


def _spank(site: SiteFiles, request: InstallRequest, plan: FileChanges, files: Files) -> None:
    library = None
    if "spank" in request.plugins:
        try:
            files["hadar_spank.so"] = (programs.build_spank(request.include), 0o755)
            library = site.ours / "hadar_spank.so"
        except programs.NotBuilt as error:
            plan.by_hand.append(f"spank: {error}; left out, all else works without")
    _stack(site, library, plan)


def _stack(site: SiteFiles, library: Path | None, plan: FileChanges) -> None:
    path = site.plugstack
    before = read(path)
    lines = [one for one in text_of(before or b"").split("\n") if not one.endswith(_SPANK_MARK)]
    text = "\n".join(lines)
    if library is not None:
        break_before = "" if not text or text.endswith("\n") else "\n"
        text += f"{break_before}optional {library} {_SPANK_MARK}\n"
    # A file that was ours alone goes away with its line.
    gone = not text and (before is None or _SPANK_MARK in text_of(before))
    plan.changes.append(Change(path, before, None if gone else bytes_of(text), ours=gone))


def _ours(site: SiteFiles, files: Files, plan: FileChanges) -> list[Change]:
    """The files of our folder: those wanted, and those that are there and no longer wanted.

    A program that slurm.conf still names stays for now: until Slurm has read the new slurm.conf it
    would drain every node on which it does not find its prolog.
    """
    changes, stay = [], []
    library = "hadar_spank.so"
    # site.lua last: our Lua files take one of the release before, those of the release before may
    # miss a setting in ours.
    for name in (
        *install_lua.SHARED,
        "job_submit.lua",
        "cli_filter.lua",
        "site.lua",
        library,
        *programs.NAMES,
    ):
        path = site.ours / name
        before = read(path)
        data, mode = files.get(name, (None, 0o644))
        if data is None and name in programs.NAMES and str(path) in text_of(site.data):
            stay += [name] if before is not None else []
            continue
        changes.append(Change(path, before, data, mode, ours=True))
    if stay:
        plan.by_hand.append(
            f"{', '.join(stay)} in {site.ours} stay until Slurm has read its new slurm.conf: "
            "scontrol reconfigure, then type this once more"
        )
    return changes


def note_installation(conf: Path) -> str:
    """Add ``conf`` to the record; paths of files that are gone are left out.

    Returns what to tell the admin where that cannot be written, else nothing. Without a virtual
    environment (the Debian package) there is no record.
    """
    if sys.prefix == sys.base_prefix:
        return ""
    record = Path(sys.prefix, _RECORD)
    try:
        before = read(record)
        known = [line for line in (before or b"").decode(errors="replace").split("\n") if line]
        paths = dict.fromkeys([*(one for one in known if Path(one).exists()), str(conf.absolute())])
        after = "".join(f"{path}\n" for path in paths).encode()
        apply([Change(record, before, after, ours=True)])
    except HadarError as error:
        return f"uninstall will not know of {conf.absolute()}: {error}"
    return ""
