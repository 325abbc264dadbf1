"""``hadar retire`` on a real Slurm: nothing of ours is left in any job."""

import json
import re

import pytest
import typed

from slurm_hadar.sandbox.options import SandboxOptions, Settings

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def hadar(box, *words, command="main", code=0):
    done = typed.hadar(box.env, *words, command=command)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def shown(box, job):
    text = box.run("scontrol", "-o", "show", "job", job)
    found = dict(word.split("=", 1) for word in text.split() if "=" in word)
    comment = re.search(r"\bComment=(.*?) +Std", text)
    return {**found, "Comment": comment[1] if comment else ""}


QUIET = ("-o", "/dev/null")


def test_all_jobs_are_slurms_own_afterwards(make_sandbox, tmp_path):
    # Its one tick counts as alive as long as the commands here may take.
    settings: Settings = {
        "site": {"name": "leaving"},
        "controller": {"interval_s": 60.0},
        "log": {"file": str(tmp_path / "hadar.log")},
    }
    box = make_sandbox(options=SandboxOptions(mode="act", settings=settings))
    hadar(box, "check", "--write")
    hadar(box, "tick")
    plain = box.run(
        "sbatch", "--parsable", *QUIET, "--gres=gpu:2", "-N6", "--wrap", "sleep 600"
    ).strip()
    box.wait_state(plain, ("RUNNING",))
    submit = (
        "--parsable", *QUIET, "--gres=gpu:2", "--hadar-model=lm", "-p", "p100,v100", "--wrap",
        "sleep 600",
    )  # fmt: skip
    jobs = [hadar(box, *submit, command="hbatch") for _ in range(4)]
    hadar(box, "tick")
    steered = {job: shown(box, job) for job in jobs}
    grouped = (
        "--parsable", *QUIET, "--gres=gpu:2", "--hadar-types=v100,p100", "-p", "gpu", "--wrap",
        "sleep 600",
    )  # fmt: skip
    ticked = [hadar(box, *grouped, command="hbatch") for _ in range(2)]
    hadar(box, "tick")
    fresh = [hadar(box, *grouped, command="hbatch") for _ in range(2)]
    for job in (*ticked, *fresh):
        assert set(shown(box, job)["Partition"].split(",")) == {"v100", "p100"}, "the test can fail"
        assert "(asked for: gpu)" in hadar(box, "explain", job)
    for job in (ticked.pop(), fresh.pop()):
        hadar(box, "optout", job)
        assert shown(box, job)["Partition"] == "gpu"
        box.run("scancel", job)
    jobs += [*ticked, *fresh]
    steered |= {job: shown(box, job) for job in jobs}
    assert {job["Partition"] for job in steered.values()} == {"v100,p100"}, "the test can fail"
    # As an earlier release submitted one.
    old = box.run(
        "sbatch", "--parsable", *QUIET, "--gres=gpu:1", "--begin=now+600",
        "--comment=[hadar1 types=any lease=yes]", "--wrap", "sleep 600",
    ).strip()  # fmt: skip

    result = json.loads(hadar(box, "retire", "--dry-run", "--json"))["result"]
    assert (result["changed"], sorted(result["jobs"])) == (False, sorted([old, *jobs]))
    assert {job: shown(box, job)["Comment"] for job in jobs} == {
        job: steered[job]["Comment"] for job in jobs
    }

    result = json.loads(hadar(box, "retire", "--json"))["result"]
    assert (sorted(result["jobs"]), result["refused"]) == (sorted([old, *jobs]), {})
    assert shown(box, plain)["Comment"] == ""
    # Written at once: after it no tick may ever come.
    lines = [json.loads(line) for line in (tmp_path / "hadar.log").read_text().splitlines()]
    left = [line for line in lines if line.get("kind") == "retire"]
    assert sorted(line["job"] for line in left) == sorted([old, *jobs])
    assert {line["outcome"] for line in left} == {"an ordinary job again"}
    for job in (old, *jobs):
        now = shown(box, job)
        assert now["Comment"] == "", "as its owner submitted it"
        assert now["Partition"] == ("gpu" if job in (old, *ticked, *fresh) else "p100,v100")

    hadar(box, "optout", hadar(box, *submit, command="hbatch"))
    assert json.loads(hadar(box, "retire", "--json"))["result"]["jobs"] == []
    assert "0 changes sent" in hadar(box, "tick")
    # Nothing of ours keeps any of them waiting.
    box.run("scancel", plain, *ticked, *fresh)
    for job in (old, jobs[0]):
        box.wait_state(job, ("RUNNING",), 60)


def test_a_requeued_job_that_still_leaves_its_nodes_is_an_ordinary_one_too(make_sandbox, tmp_path):
    box = make_sandbox(options=SandboxOptions(mode="act", settings={"site": {"name": "leaving"}}))
    stays = tmp_path / "stays"
    stays.touch()
    wrap = f"trap '' TERM; while test -e {stays}; do sleep 0.1; done"
    submit = (
        "--parsable",
        *QUIET,
        "--requeue",
        "--gres=gpu:1",
        "--hadar-types=any",
        "--wrap",
        wrap,
    )
    hadar(box, "check", "--write")
    again, ends = (hadar(box, *submit, command="hbatch") for _ in range(2))
    for job in (again, ends):
        box.wait_state(job, ("RUNNING",))
    box.run("scontrol", "requeue", again)
    box.run("scancel", ends)
    for job in (again, ends):
        box.wait_state(job, ("COMPLETING",))
    result = json.loads(hadar(box, "retire", "--json"))["result"]
    assert (result["jobs"], result["refused"]) == ([again], {})
    stays.unlink()
    box.wait_state(again, ("PENDING", "RUNNING"), 60)
    assert shown(box, again)["Comment"] == ""
