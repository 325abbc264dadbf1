"""Two login nodes, each with a controller and a state folder of its own, one exchange folder."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import SETTLE_S
from slurm_hadar.controller.tick import Controller
from slurm_hadar.exchange.heartbeat import NAME
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can give a process another host name"),
]

BIN = Path(sys.executable).parent
ONE, TWO, TWIN = "login1", "login2", "twin"
"""The twin has the name of the first host, and another state folder."""
SCRIPT = "#!/bin/sh\n#HADAR types=any gpus=1\nsleep 600\n"
ASKED, PREFERRED = "k80,v100", "v100,k80"
"""The partitions as a job asks for them, and in the order in which it runs fastest."""


class LoginNodes:
    """The same site seen from two hosts; a host is a name of its own and its own state folder."""

    def __init__(self, box, folder):
        self.box, self.folder = box, folder
        text = box.config_path.read_text()
        for host in (ONE, TWO, TWIN):
            state = str(box.places.hadar_state)
            (folder / f"{host}.toml").write_text(text.replace(state, f"{folder}/{host}"))
        # In a per-user configuration the check finds fault with a test that runs as root.
        self.run(ONE, "hadar", "check", "--write", code=1)

    def start(self, host, *words, text=""):
        config = self.folder / f"{host}.toml"
        name = ONE if host == TWIN else host
        named = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$0" "$@"']
        return subprocess.Popen(
            [*named, str(BIN / words[0]), *words[1:]],
            env={**os.environ, **self.box.env, "HADAR_CONFIG": str(config)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, host, *words, text="", code=0):
        process = self.start(host, *words)
        out, err = process.communicate(text, timeout=120)
        assert process.returncode == code, out + err
        return out

    def tick(self, host):
        return self.run(host, "hadar", "tick")

    def submit(self):
        words = ("--parsable", "-o", "/dev/null", "-p", ASKED)
        return self.run(ONE, "hbatch", *words, text=SCRIPT).strip()

    def asked(self, job):
        return self.box.run("squeue", "-h", "-o", "%P", "-j", job).strip()

    def ago(self, seconds):
        """The last heartbeat was that long ago."""
        path = self.box.exchange / NAME
        beat = json.loads(path.read_text())
        path.write_text(json.dumps({**beat, "time": time.time() - seconds}))

    def beat(self):
        return json.loads((self.box.exchange / NAME).read_text())["host"]


@pytest.fixture
def nodes(make_sandbox, tmp_path):
    box = make_sandbox(
        layout=Layout((NodeGroup("v", 2, "v100", 2), NodeGroup("k", 1, "k80", 2))),
        options=SandboxOptions(
            mode="act", settings={"site": {"rights": "user"}, "controller": {"interval_s": 60.0}}
        ),
    )
    # No GPU is free, so that jobs wait.
    fill = box.run(
        *("sbatch", "--parsable", "-o", "/dev/null", "-N3", "--gres=gpu:2", "--wrap", "sleep 600")
    )
    box.wait_state(fill.strip(), ("RUNNING",), 60)
    return LoginNodes(box, tmp_path)


def test_the_second_steps_back_and_takes_over(nodes):
    nodes.tick(ONE)
    first = nodes.submit()
    watched = nodes.tick(TWO)
    assert "a controller on login1 is active" in watched and "0 changes sent" in watched
    assert nodes.asked(first) == ASKED and nodes.beat() == ONE
    twin = nodes.tick(TWIN)
    assert "login1 (this host, another state folder; its process" in twin and ") is active" in twin
    assert nodes.asked(first) == ASKED and "0 changes sent" in twin
    assert f"update job {first}: Partition={PREFERRED}" in nodes.tick(ONE)
    assert nodes.asked(first) == PREFERRED

    # The first one is gone, for longer than three intervals and 30 s.
    second = nodes.submit()
    nodes.ago(150)
    assert "0 changes sent" in nodes.tick(TWO), "not yet"
    nodes.ago(300)
    said = nodes.tick(TWO)
    assert f"update job {second}: Partition={PREFERRED}" in said and first not in said
    assert nodes.asked(second) == PREFERRED
    output = nodes.run(TWO, "hadar", "explain", first)
    assert f"(asked for: {ASKED})" in output, "what the first one did is known"

    # And comes back.
    third = nodes.submit()
    back = nodes.tick(ONE)
    assert "a controller on login2 is active" in back and "0 changes sent" in back
    assert nodes.asked(third) == ASKED and nodes.beat() == TWO


def test_of_two_that_take_over_in_the_same_moment_the_earlier_steps_back(nodes):
    nodes.tick(ONE)
    job = nodes.submit()
    nodes.ago(3600)
    slept = []

    def meanwhile(seconds):
        # The other one, which saw the same old heartbeat, writes its own after ours.
        slept.append(seconds)
        path = nodes.box.exchange / NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": TWO}))

    config = configuration.load(nodes.box.config_path)
    store = Store.open(config.site.state_dir)
    rates = open_rates(config, store.connection)
    cluster = open_cluster(config.slurm)
    controller = Controller(config, cluster, store, rates, os.getuid(), sleep=meanwhile)
    report = controller.tick()
    store.close()
    assert slept == [SETTLE_S] and not report.acted
    assert "took over at the same time" in " ".join(report.messages)
    assert nodes.asked(job) == ASKED
    # Where nobody else does, it acts.
    nodes.ago(3600)
    assert f"update job {job}: Partition={PREFERRED}" in nodes.tick(ONE)
