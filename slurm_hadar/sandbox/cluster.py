"""A sandbox: up, down, status, and the parts of it that a fault test takes away."""

import contextlib
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_hadar import paths, users
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError
from slurm_hadar.sandbox import (
    accounting,
    conf,
    daemons,
    ending,
    pacing,
    places,
    pretend_devices,
    processes,
    programs,
)
from slurm_hadar.sandbox.daemons import SandboxStatus
from slurm_hadar.sandbox.layout import DEFAULT, Layout
from slurm_hadar.sandbox.options import DEFAULT_OPTIONS, SandboxOptions, SlurmTimes
from slurm_hadar.sandbox.places import SandboxPaths
from slurm_hadar.sandbox.ports import Ports
from slurm_hadar.sandbox.programs import Programs


class Sandbox:
    """A Slurm cluster in one folder, on loopback only, of the user who started it.

    As a context manager it is taken down at the end of the block; the folder with its logs stays.
    """

    def __init__(
        self, where: SandboxPaths, layout: Layout, tools: Programs, ports: Mapping[str, int]
    ):
        """Use :meth:`up` or :meth:`attach`."""
        self.folder = where.folder
        self.places = where
        self.layout = layout
        self.programs = tools
        self._ports = dict(ports)
        self.has_accounting = accounting.PORT in ports
        self._daemons = daemons.Daemons(where, tools, layout.started, self.has_accounting)
        self._finisher: subprocess.Popen[bytes] | None = None

    @classmethod
    def up(
        cls,
        folder: Path,
        layout: Layout = DEFAULT,
        slurm_prefix: Path | None = None,
        options: SandboxOptions = DEFAULT_OPTIONS,
        **times: int,
    ) -> "Sandbox":
        """Start a sandbox in ``folder`` and wait until its nodes are idle.

        ``times``: those of :class:`.SlurmTimes` that are not as usual. Nothing is left running
        when it fails. Raises UsageError for a folder that holds something else or a sandbox that
        is up, HadarError when a part is missing or does not start.
        """
        folder = folder.resolve()
        tools = programs.find(slurm_prefix)
        if options.with_accounting:
            accounting.find(tools)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be made: {error.strerror}") from None
        names = ["", *layout.started, *([accounting.PORT] if options.with_accounting else [])]
        with places.locked(folder), Ports(len(names)) as ports:
            _make_way(folder)
            where = places.choose(folder, max(layout.started, key=len))
            numbers = dict(zip(names, ports.numbers, strict=True))
            box = cls(where, layout, tools, numbers)
            values = conf.Values(
                host=socket.gethostname().split(".")[0],
                user=_user(),
                release=tools.release,
                ports=numbers,
                first_job_id=random.SystemRandom().randrange(1, 9000) * 100 + 1,
                times=SlurmTimes(**times),
            )
            base = options.base_rates
            if base is None:
                base = pacing.shipped_rates(layout.gpu_types)
            content = pacing.pacing_table(layout.node_types(), base, options.seed)
            most = max(sum(group.types.values()) for group in layout.groups)
            try:
                site_text = conf.site_toml(layout, where, tools.bin_dir, options, values.times)
                places.make(where, layout.started, most)
                box._write(values, site_text)
                if not options.outlives:
                    box._finisher = ending.start_finisher(where.record)
                where.true_rates.write_text(json.dumps(content))
                box._start(options.wait_s)
            except BaseException:
                with contextlib.suppress(HadarError):
                    box._stop()
                raise
        return box

    @classmethod
    def attach(cls, folder: Path) -> "Sandbox":
        """The sandbox in ``folder``, running or not. Raises UsageError when there is none."""
        folder = folder.resolve()
        record = _record(folder)
        if record is None:
            raise UsageError(f"{folder} holds no sandbox; start one there first")
        owner = (folder / places.RECORD).stat().st_uid
        if os.geteuid() not in (0, owner):
            raise UsageError(f"the sandbox in {folder} belongs to uid {owner}; ask its owner")
        prefix = Path(record["prefix"]) if record["prefix"] else None
        where = SandboxPaths(folder, Path(record["run"]))
        return cls(
            where, Layout.from_json(record["layout"]), programs.find(prefix), record["ports"]
        )

    def _write(self, values: conf.Values, site_text: str) -> None:
        where, prefix = self.places, self.programs.prefix
        record = {
            "version": 1,
            "prefix": str(prefix) if prefix else None,
            "run": str(where.run),
            "layout": self.layout.to_json(),
            "ports": self._ports,
        }
        where.record.write_text(json.dumps(record))
        etc = where.slurm_conf.parent
        where.slurm_conf.write_text(conf.slurm_conf(self.layout, where, values))
        if self.layout.gpu_types:
            gres = pretend_devices.gres_conf(self.layout, where.devices, values.release)
            (etc / "gres.conf").write_text(gres)
        if self.layout.racks:
            (etc / "topology.conf").write_text(conf.topology_conf(self.layout))
        (etc / "cgroup.conf").write_text(conf.cgroup_conf(values.release))
        if self.has_accounting:
            text = accounting.slurmdbd_conf(where, values.user, values.ports[accounting.PORT])
            where.slurmdbd_conf.touch(0o600)
            where.slurmdbd_conf.write_text(text)
        where.task_prolog.write_text(conf.task_prolog(where.true_rates))
        where.task_prolog.chmod(0o755)
        where.site.write_text(site_text)
        key = where.munge / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)

    def _start(self, wait_s: float) -> None:
        self._daemons.start_munged(wait_s)
        if self.has_accounting:
            self._daemons.start_accounting(_user(), wait_s)
        self._daemons.start_slurmctld(wait_s)
        for node in self.layout.started:
            self._daemons.start_slurmd(node, wait_s)
        self._daemons.wait_idle(self.layout.started, wait_s)

    def __enter__(self) -> "Sandbox":
        """The sandbox itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take it down."""
        self.down()

    @property
    def conf(self) -> Path:
        """slurm.conf."""
        return self.places.slurm_conf

    @property
    def config_path(self) -> Path:
        """The hadar.toml that was written for this sandbox."""
        return self.places.site

    @property
    def exchange(self) -> Path:
        """The exchange folder."""
        return self.places.exchange

    @property
    def true_rates(self) -> Path:
        """The file of true rates. The controller never reads it."""
        return self.places.true_rates

    @property
    def env(self) -> dict[str, str]:
        """SLURM_CONF, HADAR_CONFIG and PATH, to add to an environment."""
        return {
            "SLURM_CONF": str(self.conf),
            paths.ENV: str(self.config_path),
            "PATH": self.programs.path,
        }

    def run(self, *argv: str, text: str = "", timeout_s: float = 30.0) -> str:
        """Run one of Slurm's commands on this sandbox, ``text`` on its standard input.

        Its standard output; raises SlurmError when it fails. For tests and the demo.
        """
        program = self.programs.bin_dir / argv[0]
        env = programs.environment(self.env)
        return programs.run([program, *argv[1:]], env, timeout_s, text)

    def job_state(self, job_id: str) -> str:
        """Slurm's state of one job, such as RUNNING. Raises SlurmError for an unknown job."""
        return self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id).strip()

    def wait_state(
        self, job_id: str, states: Sequence[str] = ("COMPLETED",), timeout_s: float = 60.0
    ) -> str:
        """Wait until a job is in one of ``states``, and return it. Raises SlurmError if not."""
        seen = ""

        def reached() -> bool:
            nonlocal seen
            seen = self.job_state(job_id)
            return seen in states

        if not processes.wait_until(reached, timeout_s, 0.2):
            raise SlurmError(f"job {job_id} is {seen} after {timeout_s:g} s, not {states}")
        return seen

    def down(self, remove: bool = False) -> None:
        """Cancel all jobs and stop everything; ``remove``: delete the folder as well.

        Does nothing where nothing runs. Raises HadarError when a process of ours stays.
        """
        if not self.folder.exists():
            self._stop()
            return
        with places.locked(self.folder):
            self._stop()
        if remove:
            shutil.rmtree(self.folder)

    def _stop(self) -> None:
        self._daemons.stop_all()
        processes.raise_for_left(self.places)
        places.forget_run(self.places)
        if self._finisher is not None:
            ending.stop_finisher(self._finisher)
            self._finisher = None

    def status(self) -> SandboxStatus:
        """What runs now; never raises for a sandbox that is down."""
        parts = self._daemons.running()
        version = self.programs.version
        if not parts["slurmctld"]:
            return SandboxStatus(self.folder, version, parts)
        try:
            nodes = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10).splitlines()
            jobs = self.run("squeue", "-h", "-o", "%T", timeout_s=10).split()
        except SlurmError:
            return SandboxStatus(self.folder, version, parts)
        states = dict(line.split() for line in nodes)
        return SandboxStatus(self.folder, version, parts, states, dict(Counter(jobs)))

    def kill_slurmd(self, node: str) -> None:
        """KILL a node's slurmd (its steps run on)."""
        self._daemons.kill_slurmd(node)

    def start_slurmd(self, node: str, wait_s: float = 60.0) -> None:
        """Start a node's slurmd again and wait until Slurm has it back."""
        self._daemons.start_slurmd(node, wait_s)
        self._daemons.wait_up([node], wait_s)

    def stop_slurmctld(self) -> None:
        """Stop slurmctld; jobs run on."""
        self._daemons.stop_slurmctld()

    def start_slurmctld(self, wait_s: float = 60.0) -> None:
        """Start slurmctld again, with the state that it saved."""
        self._daemons.start_slurmctld(wait_s)


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / places.RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / places.RECORD} cannot be read: {error}") from None
    if not isinstance(record, dict) or record.get("version") != 1:
        raise UsageError(f"{folder / places.RECORD} is of another version of slurm-hadar")
    return record


def _make_way(folder: Path) -> None:
    """Raise UsageError unless ``folder`` is empty or holds a sandbox that is down."""
    record = _record(folder)
    if record is None:
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty and holds no sandbox; name another folder")
        return
    old = SandboxPaths(folder, Path(record["run"]))
    if processes.ours(old):
        raise UsageError(
            f"a sandbox is up in {folder} already; take it down first, or name another folder"
        )
    places.forget_run(old)


def _user() -> str:
    name = users.name_of(os.getuid(), "")
    if not name:
        raise HadarError(
            f"uid {os.getuid()} has no name on this machine, and Slurm needs one for its user"
        )
    return name
