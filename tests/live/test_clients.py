"""Programs that submit jobs themselves, with ``sbatch`` a symbolic link to hbatch.

submitit, dask-jobqueue, Parsl, Snakemake, PSI/J and ReFrame at a time, each unmanaged, declared,
and opted in.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from client_runs import PARTITION, USES
from missing import missing
from slurms import need

from slurm_hadar import config
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

LAYOUT = Layout(
    (NodeGroup("v", 2, "v100", 4), NodeGroup("k", 1, "k80", 4)),
    (PartitionSpec("gpu", ("v", "k"), default=True), PartitionSpec("opted", ("v", "k"))),
)
MODULES = {"dask": "dask_jobqueue"}
"""Where a client's module has another name."""
RUNS = Path(__file__).with_name("client_runs.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All clients at once, as they mostly wait: client -> (what its process said, its jobs)."""
    need(None)
    folder = tmp_path_factory.mktemp("clients")
    settings = {"partitions": {"opt_in": ("opted",)}}
    # Clients make sockets there, whose paths must be short.
    short = tempfile.TemporaryDirectory(prefix="clients-", ignore_cleanup_errors=True)
    with (
        short as scratch,
        Sandbox.up(
            folder / "box", LAYOUT, options=SandboxOptions(mode="act", settings=settings)
        ) as box,
    ):
        site = config.load(box.config_path)
        write_wrapper_site(site, box.config_path)
        bin_ = folder / "bin"
        bin_.mkdir()
        venv = Path(sys.executable).parent
        (bin_ / "sbatch").symlink_to(venv / "hbatch")
        # Snakemake's step takes SLURM_CONF away; a site's Slurm finds its slurm.conf without.
        srun = bin_ / "srun"
        conf = box.env["SLURM_CONF"]
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {box.programs.bin_dir}/srun "$@"\n')
        srun.chmod(0o755)
        env = {**os.environ, **box.env}
        env["PATH"] = f"{bin_}:{venv}:{box.programs.bin_dir}:{env['PATH']}"
        # Caches and settings of the clients stay in the folder.
        env |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
        env["TMPDIR"] = scratch
        begun = {}
        there = [one for one in USES if find_spec(MODULES.get(one, one)) is not None]
        for client in there:
            argv = [sys.executable, str(RUNS), client, str(folder / client)]
            log = (folder / f"{client}.err").open("w+")
            begun[client] = (
                log,
                subprocess.Popen(
                    argv, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
                ),
            )
        found = {}
        for client, (log, process) in begun.items():
            try:
                out, _ = process.communicate(timeout=240)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
            log.seek(0)
            found[client] = process.returncode, out, log.read()
            log.close()
        yield found, open_cluster(site.slurm).read_jobs()


@pytest.mark.parametrize("client", USES)
def test_a_client_gets_its_results_and_slurm_the_declarations(runs, client):
    found, jobs = runs
    if client not in found:
        missing(f"{client} is not installed")
    code, out, err = found[client]
    assert code == 0, err[-4000:]
    expected = {"square": 36, "slurm": True}
    assert json.loads(out.splitlines()[-1]) == dict.fromkeys(PARTITION, expected), err
    managed = {}
    for mode in PARTITION:
        names = (f"{client}-{mode}", f"rule_{mode}")
        ours = [
            job
            for job in jobs
            if job.name in (names[0], f"rfm_{client}_{mode}") or names[0] in job.comment
            or (client == "snakemake" and names[1] in job.comment)
        ]  # fmt: skip
        assert len(ours) == 1, (mode, [(job.name, job.comment) for job in jobs])
        managed[mode] = ours[0].managed
    assert managed == {"unmanaged": False, "declared": True, "opted": True}
