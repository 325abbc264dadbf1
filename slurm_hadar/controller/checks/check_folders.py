"""``hadar check`` on the state folder and the exchange folder: whose they are, who may write."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding, me, user_name
from slurm_hadar.controller.checks.state_disk import disk_finding
from slurm_hadar.controller.lock import controllers_uid


def folder_findings(config: Config) -> Iterator[Finding]:
    """Both folders of the site."""
    state = config.site.state_dir
    if not state.exists():
        yield Finding(
            "warning",
            f"state folder {state} does not exist yet",
            f"install -d -m 0700 -o {me()} {state}",
        )
    else:
        found = state.lstat()
        if found.st_uid != os.getuid() and os.getuid() != 0:
            owner = user_name(found.st_uid)
            yield Finding(
                "warning",
                f"state folder {state} is {owner}'s, so {me()} sees only a part of the site",
                f"where {owner} runs the controller: sudo -u {owner} hadar check; where {me()} is "
                f"to run it: chown {me()} {state} && chmod 700 {state}",
            )
        elif found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            yield Finding(
                "problem",
                f"state folder {state} is not {me()}'s alone",
                f"chown {me()} {state} && chmod 700 {state}",
            )
        else:
            yield Finding("ok", f"state folder {state} is {me()}'s alone")
    on_network = disk_finding(state)
    if on_network is not None:
        yield on_network
    yield exchange_finding(config, config.site.exchange_dir)


def exchange_finding(config: Config, folder: Path) -> Finding:
    """Whether jobs and the controller can use the exchange folder, and no other user can use our
    files."""
    if not folder.is_dir():
        return Finding(
            "problem",
            f"exchange folder {folder} does not exist",
            f"install -d -m 1777 -o {me()} {folder} on a file system that all nodes share",
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    if config.site.rights != "user" and mode != 0o1777:
        return Finding(
            "problem",
            f"exchange folder {folder} has mode {mode:o}, jobs cannot answer",
            f"chmod 1777 {folder}",
        )
    owner = folder.stat().st_uid
    controller = controllers_uid(config)
    if config.site.rights == "operator" and owner != controller:
        return Finding(
            "problem",
            f"exchange folder {folder} belongs to {user_name(owner)}: only the owner of an open "
            "folder can replace or remove what others put there under the names of our files",
            f"chown {user_name(controller)} {folder}",
        )
    ours = owner == os.getuid()
    # The mode as well: access says nothing where root asks.
    closed = ours and mode & 0o700 != 0o700
    if closed or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            "problem",
            f"exchange folder {folder} has mode {mode:o}: {me()} cannot use it",
            f"chmod u+rwx {folder}" if ours else "set site.exchange_dir to a folder of your own",
        )
    return Finding("ok", f"exchange folder {folder}")
