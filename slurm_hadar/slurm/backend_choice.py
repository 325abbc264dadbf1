"""Which back end a site gets, and why."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from slurm_hadar import config
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.commands import Commands, clean_environment
from slurm_hadar.slurm.interface import Cluster

_USUAL_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))

_CALLED = (
    "Job.get_resource_layout_per_node",
    "Job.modify",
    "Job.release",
    "JobSubmitDescription",
    "Jobs.load",
    "Partitions.load",
    "RPCError",
)
"""What the back end needs of PySlurm. 22.5.3 and 23.2.2 are the first of their release to have it
all."""

_PROBE = """
import operator
import sys
import pyslurm
api = getattr(pyslurm, "slurm_api_version", None)
print(api() if api else pyslurm.__version__)
for name in sys.argv[1:]:
    try:
        operator.attrgetter(name)(pyslurm)
    except AttributeError:
        print("lacks", name)
"""

_bound: Path | None = None
"""The slurm.conf that this process's PySlurm reads, once it is imported."""


def open_cluster(settings: config.Slurm) -> Cluster:
    """See :func:`slurm_hadar.slurm.cluster.open_cluster`."""
    if settings.conf and not os.path.isfile(settings.conf):  # noqa: PTH113
        # Without it Slurm's commands look for a server of configurations until the time is up.
        raise SlurmError(f"slurm.conf = {settings.conf} is not a file; correct or remove it")
    commands = Commands(settings.bin_dir, settings.conf, settings.timeout_s)
    plain = CommandsCluster(commands)
    if settings.backend == "cli":
        plain.why = "slurm.backend = cli"
        return plain
    conf = find_conf(settings.conf)
    obstacle = pyslurm_obstacle(plain, conf)
    if obstacle:
        if settings.backend == "pyslurm":
            raise SlurmError(
                f"slurm.backend = pyslurm, but {obstacle}; set it to auto or correct that"
            )
        plain.why = obstacle
        return plain
    assert conf is not None
    global _bound
    _bound = conf.resolve()
    os.environ["SLURM_CONF"] = str(conf)
    from slurm_hadar.slurm.backend_pyslurm import PySlurmCluster

    version = ".".join(map(str, plain.slurm_version))
    return PySlurmCluster(plain, f"PySlurm fits Slurm {version}")


def find_conf(named: Path | None) -> Path | None:
    """The slurm.conf that PySlurm would read; None where there is none."""
    given = os.environ.get("SLURM_CONF")
    places = [named] if named else [Path(given)] if given else list(_USUAL_CONFS)
    return next((path for path in places if path.is_file()), None)


def pyslurm_obstacle(plain: CommandsCluster, conf: Path | None) -> str:
    """Why PySlurm cannot be used, empty where it can.

    It is tried in a process of its own: without a readable slurm.conf its import ends the
    process, and its package version need not be that of the Slurm it was built with.
    """
    if importlib.util.find_spec("pyslurm") is None:
        return "PySlurm is not installed"
    if conf is None:
        return "PySlurm needs a slurm.conf and none was found; set slurm.conf"
    if _bound is not None and _bound != conf.resolve():
        return f"PySlurm in this process already reads {_bound}"
    try:
        done = _probe(conf, plain.commands.timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"PySlurm could not be tried: {error}"
    output = done.stdout.decode(errors="replace")
    numbers = re.findall(r"\d+", output.partition("lacks ")[0])
    if done.returncode != 0 or len(numbers) < 2:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        return f"PySlurm cannot be imported: {said[0][:200]}"
    built, site = (int(numbers[0]), int(numbers[1])), plain.slurm_version[:2]
    if built != site:
        return f"PySlurm is for Slurm {built[0]}.{built[1]:02}, the site has {site[0]}.{site[1]:02}"
    lacking = re.findall(r"^lacks (\S+)$", output, re.MULTILINE)
    if lacking:
        return f"this PySlurm is too old: it lacks {', '.join(lacking)}; install a later one"
    return ""


def _probe(conf: Path, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """What :data:`_PROBE` prints. Raises OSError and subprocess.TimeoutExpired."""
    isolated = ["-I"] if sys.flags.isolated else []
    return subprocess.run(
        [sys.executable, *isolated, "-c", _PROBE, *_CALLED],
        capture_output=True,
        timeout=timeout_s,
        env=clean_environment(None, conf),
        check=False,
    )
