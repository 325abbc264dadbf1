"""``hadar retire`` on a real Slurm: nothing of ours is left in any job."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def hadar(box, *words, command="main", code=0):
    argv = [sys.executable, "-m", f"slurm_hadar.cli.{command}", *words]
    done = subprocess.run(
        argv, env=box.env, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def shown(box, job):
    text = box.run("scontrol", "-o", "show", "job", job)
    found = dict(word.split("=", 1) for word in text.split() if "=" in word)
    comment = re.search(r"Comment=(.*?) +Std", text)
    return {**found, "Comment": comment[1] if comment else ""}


def test_all_jobs_are_slurms_own_afterwards(make_sandbox, tmp_path):
    # Its one tick counts as alive, and its leases last, as long as the commands here may take.
    settings = {
        "site": {"name": "leaving"},
        "controller": {"interval_s": 60.0},
        "lease": {"length_s": 600},
        "log": {"file": str(tmp_path / "hadar.log")},
    }
    box = make_sandbox(mode="act", settings=settings)
    hadar(box, "check", "--write")
    hadar(box, "tick")
    plain = box.run(
        "sbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:1", "--wrap", "sleep 600"
    ).strip()
    submit = (
        "--parsable", "-o", "/dev/null", "--gres=gpu:2", "--hadar-types=v100", "--wrap", "sleep 600"
    )  # fmt: skip
    jobs = [hadar(box, *submit, command="hbatch") for _ in range(4)]
    hadar(box, "tick")
    before = {job: shown(box, job) for job in [plain, *jobs]}
    waiting = [job for job in jobs if before[job]["Reason"] == "BeginTime"]
    assert len(waiting) >= 2

    told = json.loads(hadar(box, "retire", "--dry-run", "--json"))["result"]
    assert (told["changed"], sorted(told["jobs"])) == (False, sorted(jobs))
    assert {job: shown(box, job)["Comment"] for job in jobs} == {
        job: before[job]["Comment"] for job in jobs
    }

    told = json.loads(hadar(box, "retire", "--json"))["result"]
    assert (sorted(told["jobs"]), told["refused"]) == (sorted(jobs), {})
    assert shown(box, plain)["Comment"] == ""
    # Written at once: after it no tick may ever come.
    lines = [json.loads(line) for line in (tmp_path / "hadar.log").read_text().splitlines()]
    left = [line for line in lines if line.get("kind") == "retire"]
    assert sorted(line["job"] for line in left) == sorted(jobs)
    assert {line["outcome"] for line in left} == {"an ordinary job again"}
    for job in waiting:
        now = shown(box, job)
        assert "lease" not in now["Comment"] and "off=yes" in now["Comment"]
        # Nothing of ours keeps it waiting any more.
        assert now["Reason"] != "BeginTime" and now["JobState"] in ("PENDING", "RUNNING")
    later = hadar(box, *submit, command="hbatch")
    assert "lease" not in shown(box, later)["Comment"]

    hadar(box, "optout", later)
    assert json.loads(hadar(box, "retire", "--json"))["result"]["jobs"] == []
    assert "0 changes sent" in hadar(box, "tick")
