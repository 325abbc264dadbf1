"""slurmctld limits the rate of requests (``rl_enable``, its defaults: 30 at once, then 2 in a
second): a controller that it limits delays no start."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import people
import pytest
from in_memory import temporary
from people import ADA
from slurms import SECOND

from benchmarks.soak.liveness import Liveness, Look, backfill_cycles, idle_since
from slurm_hadar import config as configuration
from slurm_hadar.domain.job import JobState
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TYPES = ("v100", "p100", "k80")
LAYOUT = Layout(
    tuple(NodeGroup(kind[0], 2, kind, 2) for kind in TYPES),
    (
        PartitionSpec("gpu", tuple(kind[0] for kind in TYPES), default=True),
        *(PartitionSpec(kind, (kind[0],)) for kind in TYPES),
    ),
)
JOBS, SECONDS = 70, 12
TOO_MANY = f"RPC rate limit exceeded by uid {pwd.getpwnam(ADA).pw_uid} "


@pytest.fixture
def site():
    """A Slurm with the limit, and Ada's own controller: root and the SlurmUser are not limited."""
    if not os.environ.get(SECOND):
        pytest.skip(f"{SECOND} names no Slurm of 23.02 or later, and older ones have no rl_enable")
    people.need()
    folder = Path(tempfile.mkdtemp(prefix="hadar-rate-", dir=temporary()))
    folder.chmod(0o755)
    own = {name: folder / name for name in ("state", "exchange")}
    who = pwd.getpwnam(ADA)
    for path in own.values():
        path.mkdir(mode=0o700)
        os.chown(path, who.pw_uid, who.pw_gid)
    try:
        box = Sandbox.up(
            folder / "box",
            LAYOUT,
            Path(os.environ[SECOND]),
            options=SandboxOptions(
                mode="act",
                settings={
                    "site": {
                        "rights": "user",
                        "controller_user": ADA,
                        "state_dir": str(own["state"]),
                        "exchange_dir": str(own["exchange"]),
                    },
                    "status": {"socket": str(own["state"] / "hadar.sock")},
                    "slurm": {"backend": "cli"},
                    "partitions": {"groups": {"gpu": TYPES}},
                    "guards": {"min_between_moves_s": 0.0},
                },
            ),
        )
        try:
            box.stop_slurmctld()
            text = box.conf.read_text()
            limited = text.replace("preempt_send_user_signal", "preempt_send_user_signal,rl_enable")
            assert limited != text
            box.conf.write_text(limited)
            box.start_slurmctld()
            yield people.Site(box, folder)
        finally:
            box.down()
            assert not processes.ours(box.places)
    finally:
        shutil.rmtree(folder)


def test_a_limited_controller_delays_no_start(site):
    box = site.box
    site.admin("hadar", "check", "--write")
    script = f"#!/bin/sh\n#HADAR types=any gpus=1\nsleep {SECONDS}\n"
    words = ("-o", "/dev/null", "-J", "any", "-t2", "-p", "gpu")
    # Root submits for her: her own requests would be limited before the controller's are.
    cluster = open_cluster(configuration.load(box.config_path).slurm)
    who = pwd.getpwnam(ADA)
    for _ in range(JOBS):
        site(None, "hbatch", *words, f"--uid={who.pw_uid}", f"--gid={who.pw_gid}", text=script)
    log = site.homes[ADA] / "run.log"
    alive = Liveness()
    with log.open("wb") as stream:
        running = subprocess.Popen(
            [people.BIN / "hadar", "run", "--interval", "1"],
            env={**box.env, "HOME": str(site.homes[ADA]), "LC_ALL": "C.UTF-8"},
            cwd=site.homes[ADA],
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=[],
            stdout=stream,
            stderr=stream,
        )
    try:
        end = time.monotonic() + 60 + SECONDS * JOBS / 4
        while True:
            jobs = cluster.read_jobs()
            since = idle_since(box.run("scontrol", "-a", "-o", "show", "node"))
            cycles = backfill_cycles(box.run("sdiag"))
            nodes = cluster.read_nodes()
            alive.look(Look(time.monotonic(), time.time(), jobs, nodes, since, cycles), ["any"])
            if all(job.state is JobState.FINISHED for job in jobs):
                break
            assert time.monotonic() < end, site.seen() + log.read_text()
            assert running.poll() is None, log.read_text()
            time.sleep(0.5)
    finally:
        running.terminate()
        assert running.wait(90) == 0, log.read_text()
    assert TOO_MANY in (box.places.log / "slurmctld.log").read_text(), (
        "nothing was limited, so this shows nothing"
    )
    steered = re.findall(r"update job \d+: Partition=", log.read_text())
    assert len(steered) > 10, log.read_text()
    assert alive.looks > 20 and not alive.wrong
