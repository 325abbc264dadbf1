"""``hadar check`` on what ``hadar plugins install`` laid beside slurm.conf: does it still fit?"""

import re
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.plugins.install import Wish, planned
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


def plugin_findings(config: Config, settings: dict[str, str]) -> Iterator[Finding]:
    """``settings``: what slurmctld runs with. Nothing where no plugin is installed here."""
    named = str(config.slurm.conf or settings.get("SLURM_CONF", ""))
    conf = Path(named).absolute()
    folder = conf.parent / OURS
    installed = [name for name, file in _FILE_OF.items() if (folder / file).exists()]
    if not _PLAIN.fullmatch(named) or not installed:
        return
    try:
        options = options_in((folder / "site.lua").read_text(errors="replace"))
    except OSError:
        options = ()
    # Compiling the SPANK plugin again would not tell whether it fits.
    wish = Wish(
        tuple(name for name in installed if name != "spank"),
        untype="--untype" in options,
        lease="--lease" in options,
    )
    try:
        changes = planned(conf, config, wish).changes
    except HadarError as error:
        yield Finding("warning", f"the plugins in {folder} cannot be looked at: {error}")
        return
    other = [
        change.path.name
        for change in changes
        if change.path.parent == folder and change.needed and change.after is not None
    ]
    if not other:
        yield Finding("ok", f"{', '.join(installed)} in {folder} fit the configuration")
        return
    words = [f"--slurm-conf {conf}", *(f"--plugin {name}" for name in installed), *options]
    yield Finding(
        "problem",
        f"{', '.join(other)} in {folder} {'do' if len(other) > 1 else 'does'} not fit the "
        "configuration or this release any more: users of sbatch get what it was before",
        f"hadar plugins install {' '.join(words)} --apply, copy {folder} to all nodes, then "
        "scontrol reconfigure",
    )
