"""A site to opt in at: a Slurm with an accounting database, four users, and a controller that is an
operator and no more.

SlurmUser and root are exempt from limits, so a controller that runs as one of them proves little.
The users are accounts that every Debian has and that run nothing: nothing is added to the machine.
"""

import contextlib
import os
import pwd
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions, Settings
from slurm_hadar.sandbox.pacing import BaseRates

HADAR = "backup"
"""The controller's user."""
USERS = {"news": "phys", "games": "phys", "irc": "chem", "list": "chem"}
"""User -> account."""
GOLD = "gold"
"""A QOS with a higher priority than the usual one."""
LAYOUT = Layout(
    (NodeGroup("v", 2, "v100", 2), NodeGroup("p", 2, "p100", 2), NodeGroup("k", 2, "k80", 2)),
    (
        PartitionSpec("gpu", default=True),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("p100", ("p",)),
        PartitionSpec("k80", ("k",)),
    ),
)
"""Twelve GPUs of three types, a partition for each type and one over all of them. Without a
Weight Slurm takes the first by name: k80 for a job that names no type."""
FASTEST_FIRST = replace(
    LAYOUT,
    groups=tuple(replace(one, weight=place) for place, one in enumerate(LAYOUT.groups, 1)),
)
"""The same with a Weight for each type, the fastest first."""
MULTIFACTOR = (
    "PriorityType=priority/multifactor",
    "PriorityCalcPeriod=1",
    "PriorityDecayHalfLife=01:00:00",
    "PriorityMaxAge=01:00:00",
    "PriorityWeightAge=10000",
    "PriorityWeightFairshare=1000",
    "PriorityWeightQOS=1000",
    "PriorityWeightPartition=1000",
)
"""Ages count within minutes, as the jobs last for minutes."""
EQUAL = ("PriorityType=priority/multifactor", "PriorityWeightPartition=1000")
"""All jobs have one priority, so that the first submitted is the first in the queue."""
_BIN = Path(sys.executable).parent
_OURS = ("PriorityType=", "SchedulerParameters=")
_LONGEST_COMMAND_S = 300.0
_SETTINGS: dict[str, dict[str, float | int]] = {
    # The values of a site, but that a round and the least time between two moves are one tick.
    "controller": {"interval_s": 60.0, "round_s": 60.0},
    "guards": {"min_between_moves_s": 60.0, "max_moves_per_tick": 20, "gain_over_cost": 2.0},
    "moving": {"ack_wait_s": 20.0, "settle_s": 20.0, "commit_s": 120.0},
}


@dataclass
class Site:
    """A sandbox that is up, and its people."""

    box: Sandbox
    folder: Path
    _controller: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run_as(
        self, user: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as that user, in the user's folder, with the sandbox's Slurm. Raises
        HadarError for one that does not end."""
        who = pwd.getpwnam(user)
        try:
            return subprocess.run(
                list(argv), env={**self.env(user), **(env or {})}, cwd=self.home(user),
                user=who.pw_uid, group=who.pw_gid, extra_groups=[who.pw_gid],
                capture_output=True, text=True, timeout=_LONGEST_COMMAND_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise HadarError(
                f"{shlex.join(argv)} did not end within {_LONGEST_COMMAND_S:g} s"
            ) from None

    def home(self, user: str) -> Path:
        """The folder in which that user's jobs write."""
        return self.folder / f"home-{user}"

    def env(self, user: str) -> dict[str, str]:
        """The environment in which that user's commands run."""
        kept = {key: os.environ[key] for key in ("PATH",) if key in os.environ}
        return {**kept, "LC_ALL": "C.UTF-8", "HOME": str(self.home(user)), **self.box.env}

    def command(self, name: str) -> str:
        """The path of ``hbatch`` or ``hadar``, or of one of the sandbox's Slurm commands."""
        if name in ("hbatch", "hadar"):
            return str(_BIN / name)
        return str(self.box.programs.bin_dir / name)

    def check(self) -> None:
        """Raise HadarError where the controller ended by itself."""
        if self._controller is not None and self._controller.poll() is not None:
            raise HadarError(f"hadar run ended by itself:\n{_tail(self.controller_log)}")

    @property
    def controller_log(self) -> Path:
        """What ``hadar run`` prints."""
        return self.folder / "controller.log"

    def start_controller(self) -> None:
        """Start ``hadar run`` as its own user, and wait for its first tick."""
        who = pwd.getpwnam(HADAR)
        with self.controller_log.open("wb") as output:
            self._controller = subprocess.Popen(
                [self.command("hadar"), "run"], env=self.env(HADAR), cwd=self.home(HADAR),
                user=who.pw_uid, group=who.pw_gid, extra_groups=[who.pw_gid],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        _wait(lambda: "tick:" in self.controller_log.read_text(), "the first tick", self.check)

    def stop_controller(self) -> None:
        """Stop it; nothing where none runs."""
        if self._controller is None:
            return
        self._controller.terminate()
        try:
            self._controller.wait(30)
        except subprocess.TimeoutExpired:
            self._controller.kill()
            self._controller.wait()
        self._controller = None


def refuse() -> None:
    """Raise UsageError where this machine or user cannot run a site of several users."""
    if os.getuid() != 0:
        raise UsageError("several users need root: run this as root")
    known = {entry.pw_name for entry in pwd.getpwall()}
    if absent := {HADAR, *USERS} - known:
        raise UsageError(f"this machine has no user {min(absent)}")
    who = pwd.getpwnam(HADAR)
    try:
        subprocess.run(
            [_BIN / "hadar", "--version"], user=who.pw_uid, group=who.pw_gid, extra_groups=[],
            capture_output=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"{_BIN}: user {HADAR} cannot run hadar there; check out where all users may"
        ) from None


@contextlib.contextmanager
def site(
    folder: Path,
    priorities: Sequence[str] = MULTIFACTOR,
    seed: int = 0,
    base_rates: BaseRates | None = None,
    layout: Layout = LAYOUT,
    settings: Settings = MappingProxyType({}),
) -> Iterator[Site]:
    """A site in ``folder``, down again at the end. ``priorities``: lines of slurm.conf; ``seed``:
    of the GPUs' true speeds, which differ from ``base_rates`` (None: the shipped ones) by up to
    25%; ``settings``: over those of this benchmark. Raises HadarError."""
    folder.chmod(0o755)
    box = Sandbox.up(
        folder / "box",
        layout,
        options=SandboxOptions(
            seed=seed,
            base_rates=base_rates,
            mode="act",
            with_accounting=True,
            settings={
                "site": {
                    "rights": "operator",
                    "controller_user": HADAR,
                    "state_dir": str(folder / "state"),
                    "exchange_dir": str(folder / "exchange"),
                },
                **{
                    name: {**_SETTINGS.get(name, {}), **settings.get(name, {})}
                    for name in {**_SETTINGS, **settings}
                },
            },
        ),
    )
    found = Site(box, folder)
    try:
        _folders(folder)
        _accounts(box)
        _with_priorities(box, priorities)
        config = configuration.load(box.config_path)
        write_wrapper_site(config, box.config_path)
        yield found
    finally:
        try:
            found.stop_controller()
        finally:
            box.down()
    if left := processes.ours(box.places):
        raise HadarError(f"processes {left} of the sandbox do not end")


def _folders(folder: Path) -> None:
    for name, mode in (("state", 0o700), ("exchange", 0o1777)):
        _make(folder / name, HADAR, mode)
    for user in (HADAR, *USERS):
        _make(folder / f"home-{user}", user, 0o755)


def _make(path: Path, user: str, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)


def _accounts(box: Sandbox) -> None:
    def manage(*words: str) -> None:
        box.run("sacctmgr", "-i", *words)

    # As docs/admin.md has it.
    manage("add", "account", "hadar", "Description=controller", "Organization=slurm-hadar")
    manage("add", "user", HADAR, "Account=hadar", "AdminLevel=Operator")
    manage("modify", "user", HADAR, "set", "MaxSubmitJobs=0")
    manage("add", "qos", GOLD, "Priority=100")
    for account in dict.fromkeys(USERS.values()):
        manage("add", "account", account, "Fairshare=10")
    for user, account in USERS.items():
        manage("add", "user", user, f"Account={account}", "Fairshare=10")
        manage("modify", "user", user, "set", f"QOS=normal,{GOLD}", "DefaultQOS=normal")


def _with_priorities(box: Sandbox, priorities: Sequence[str]) -> None:
    """Slurm with these lines and its own scheduler times: those of a sandbox are short."""
    lines = [line for line in box.conf.read_text().splitlines() if not line.startswith(_OURS)]
    box.stop_slurmctld()
    box.conf.write_text("\n".join([*lines, *priorities]) + "\n")
    box.start_slurmctld()
    box.run("scontrol", "reconfigure")
    wanted = len(box.layout.started)

    def idle() -> bool:
        return len(re.findall(r"^idle$", box.run("sinfo", "-h", "-N", "-o", "%T"), re.M)) >= wanted

    _wait(idle, "idle nodes")


def _wait(
    holds: Callable[[], bool],
    what: str,
    beside: Callable[[], None] = lambda: None,
    timeout_s: float = 90.0,
) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        beside()
        if time.monotonic() > end:
            raise HadarError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(0.2)


def _tail(path: Path, lines: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
