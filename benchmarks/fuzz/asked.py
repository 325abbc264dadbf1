"""What Slurm's commands answer beside the bulk queries, handed to whoever asked."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import config
from slurm_hadar.controller.checks import wrapper_site
from slurm_hadar.slurm import expected_start, limits, minutes, updates
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.commands import Answer, Commands


@dataclass(frozen=True, slots=True)
class _Saying(Commands):
    """Commands that all say the same."""

    said: str = ""

    def run(
        self,
        name: str,
        arguments: Sequence[str] = (),
        *,
        text: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """The same for every command."""
        return Answer(0, self.said, self.said)


def _cluster(said: str) -> CommandsCluster:
    return CommandsCluster(_Saying(said=said))


def _version(said: str) -> object:
    found = _cluster(said).slurm_version
    assert all(part >= 0 for part in found)
    return found


def _silence(said: str) -> object:
    found = updates.which_accepted(said, 3)
    assert len(found) == 3
    return found


COMMANDS: Mapping[str, Callable[[str], object]] = {
    "scontrol --version": _version,
    "sacctmgr show user": lambda said: _cluster(said).admin_level("backup"),
    "sbatch --parsable": lambda said: _cluster(said).submit("#!/bin/sh\n"),
    "scontrol's standard input": _silence,
}


def start(data: bytes, folder: Path) -> object:
    """When Slurm would start a job, or why it would not, as a real program says it."""
    (folder / "said").write_bytes(data)
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\ncat {folder}/said >&2\nexit {len(data) % 2}\n")
    program.chmod(0o755)
    return expected_start.start_of(str(program), [], {"PATH": os.environ["PATH"]}, None)


def limited(text: str) -> object:
    """Both halves of what the accounting database says of limits; all names in it are asked for."""
    associations, _, qos = text.partition("--\n")
    found = limits.parse(associations, qos)
    for account in [*found.parents, *found.accounts][:50]:
        found.bind("ann", account, "normal")
    return found


def minutes_of(text: str) -> object:
    """Limits on minutes; those of all names in it are asked for."""
    found = minutes.parse(text)
    for account, user in list(found.users)[:50]:
        found.known(user, account, *list(found.qos)[:50])
        found.binding(user, account, *list(found.qos)[:50])
        found.sizes.binding((user, 1000), [*found.above(account)], list(found.qos)[:50])
    return found


def is_current(data: bytes, folder: Path) -> object:
    """Whether hbatch's JSON fits, whatever is in it."""
    site = folder / "hadar.toml"
    site.write_text("[controller]\n")
    config.wrapper_path(site).write_bytes(data)
    return wrapper_site.is_current(config.load(site), site)
