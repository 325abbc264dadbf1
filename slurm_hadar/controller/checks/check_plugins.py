"""``hadar check`` on what ``hadar plugins install`` wrote beside slurm.conf: does it still fit?"""

import re
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.plugins.install import InstallRequest, planned
from slurm_hadar.plugins.site_files import OURS
from slurm_hadar.plugins.site_lua import options_in

_FILE_OF = {
    "job-submit": "job_submit.lua",
    "cli-filter": "cli_filter.lua",
    "spank": "hadar_spank.so",
    "gpu-sampling": "prolog",
    "task-prolog": "task_prolog",
}
_PLAIN = re.compile(r"/[A-Za-z0-9_./:+@-]*")
_LEASING = re.compile(r"\bresult\.lease\b|^  lease_s = [1-9]", re.M)
"""In a Lua file of a version that gave waiting jobs a begin time."""
_NO_LEASE = re.compile(r"^  lease_s = 0,$", re.M)
"""In a site.lua of that version that was written in observe mode: no job got one."""


def plugin_findings(config: Config, settings: dict[str, str]) -> Iterator[Finding]:
    """``settings``: what slurmctld runs with. Nothing where no plugin is installed here."""
    named = str(config.slurm.conf or settings.get("SLURM_CONF", ""))
    conf = Path(named).absolute()
    folder = conf.parent / OURS
    installed = [name for name, file in _FILE_OF.items() if (folder / file).exists()]
    if not _PLAIN.fullmatch(named) or not installed:
        return
    options = options_in(_text(folder / "site.lua"))
    # Compiling the SPANK plugin again would not tell whether it fits.
    plugins = tuple(name for name in installed if name != "spank")
    leasing = _leasing(folder)
    other = list(leasing)
    try:
        changes = planned(
            conf, config, InstallRequest(plugins, untype="--untype" in options)
        ).changes
    except HadarError as error:
        yield Finding("warning", f"the plugins in {folder} cannot be looked at: {error}")
        if not other:
            return
    else:
        other += [
            change.path.name
            for change in changes
            if change.path.parent == folder and change.needed and change.after is not None
            if change.path.name not in leasing
        ]
    if not other:
        yield Finding("ok", f"{', '.join(installed)} in {folder} fit the configuration")
        return
    effect = "jobs submitted with sbatch follow the old files"
    if leasing:
        effect = (
            f"managed jobs may still get a begin time from {', '.join(leasing)}, and are not "
            "eligible before it"
        )
    words = [f"--slurm-conf {conf}", *(f"--plugin {name}" for name in installed), *options]
    yield Finding(
        "problem",
        f"{', '.join(other)} in {folder} {'do' if len(other) > 1 else 'does'} not fit the "
        f"configuration or this version any more: {effect}",
        f"hadar plugins install {' '.join(words)} --apply, copy {folder} to all nodes and login "
        "nodes, then scontrol reconfigure",
    )


def _leasing(folder: Path) -> list[str]:
    """The Lua files from which jobs may get a begin time: those of a version that set one."""
    if _NO_LEASE.search(_text(folder / "site.lua")):
        return []
    names = ("cli_filter.lua", "help.lua", "job_submit.lua", "site.lua")
    return [name for name in names if _LEASING.search(_text(folder / name))]


def _text(path: Path) -> str:
    """A file's text, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
