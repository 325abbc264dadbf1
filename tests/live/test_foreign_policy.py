"""The policy of the page for authors, installed as a package of its own, steers a real Slurm."""

import json
import subprocess
import sys

import pytest
from dictated import TRAINING
from policy_page import NAME, install, write
from trainings import MODEL, start_sandbox

from slurm_hadar import policies

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def test_the_package_of_the_page_decides_on_a_cluster(make_sandbox, tmp_path, monkeypatch):
    target = install(write(tmp_path / "source"), tmp_path / "target")
    monkeypatch.syspath_prepend(target)
    policies._found.cache_clear()
    settings = {"controller": {"policy": NAME, "options": {"patience_s": 900.0}}}
    site = start_sandbox(make_sandbox, tmp_path, settings)
    env = {**site.env, "PYTHONPATH": str(target)}
    job = site.hbatch(
        f"#!/bin/bash\n#HADAR model={MODEL} types=any gpus=1 batch=8 samples=100000\n"
        "#HADAR checkpoint=yes restart_cost=1\n"
        f"exec {sys.executable} {TRAINING} {site.folder} 100000 0\n"
    )

    def hadar(*words):
        done = subprocess.run(
            [sys.executable, "-m", "slurm_hadar.cli.main", *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    site.until(site.runs(job))
    site.until(site.trained(job), ticks=False)
    site.tick()
    shown = json.loads(hadar("explain", job, "--json"))["result"]
    assert "keeps what it holds" in json.dumps(shown)
    named = [one for one in json.loads(hadar("check", "--json"))["result"] if NAME in one["what"]]
    assert [one["level"] for one in named] == ["ok"], named
    policies._found.cache_clear()
