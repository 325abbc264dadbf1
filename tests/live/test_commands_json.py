"""The commands that change something tell machines what they did."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

HBATCH, HADAR = (str(Path(sys.executable).parent / name) for name in ("hbatch", "hadar"))


def run(env, *words, text=None):
    done = subprocess.run(
        words, env=env, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answered(env, *words):
    answer = json.loads(run(env, HADAR, *words, "--json"))
    assert answer["version"] == 1
    return answer["command"], answer["result"]


def test_a_sandbox_and_changes_of_a_job(slurm_prefix, tmp_path):
    folder = tmp_path / "box"
    where = ["--slurm", str(slurm_prefix)] if slurm_prefix else []
    command, up = answered(dict(os.environ), "sandbox", "up", str(folder), *where)
    try:
        assert command == "sandbox up" and up["folder"] == str(folder)
        assert set(up["environment"]) == {"SLURM_CONF", "HADAR_CONFIG", "PATH"}
        env = {**os.environ, **up["environment"]}
        script = "#!/bin/sh\n#HADAR types=any gpus=1\ntrue\n"
        job = run(env, HBATCH, "--parsable", "--hold", text=script).strip()
        array = run(env, HBATCH, "--parsable", "--hold", "-a1-2", text=script).strip()

        command, result = answered(env, "pin", job)
        assert command == "pin"
        assert result == {
            "job": job,
            "declared": {job: {"types": "any", "gpus": "1", "pin": "yes"}},
            "undo": f"hadar set {job} pin=no",
        }
        command, result = answered(env, "set", f"{array}_2", "gpus=2")
        assert command == "set" and result["declared"][f"{array}_2"]["gpus"] == "2"
        assert answered(env, "set", array, "model=m")[1]["declared"].keys() == {
            f"{array}_1",
            f"{array}_2",
        }
        # What hbatch wrote for types=k80 is not the owner's.
        script = "#!/bin/sh\n#HADAR types=k80 gpus=1\ntrue\n"
        narrow = run(env, HBATCH, "--parsable", "--hold", text=script).strip()
        features = ["squeue", "-h", f"--jobs={narrow}", "--format=%f"]
        assert run(env, *features).strip() == "k80"
        assert answered(env, "set", narrow, "types=any")[1]["declared"][narrow]["types"] == "any"
        assert run(env, *features).strip() == "(null)"
        # A task is also called by its own job ID, as its script knows it.
        shown = run(
            env, "squeue", "--noheader", "--all", f"--jobs={array}_2", "--format=%A"
        ).strip()
        assert shown != array
        assert answered(env, "explain", shown)[1]["row"]["id"] == f"{array}_2"
        assert answered(env, "doctor", shown)[1]["id"] == f"{array}_2"
        for words in (["pin", shown], ["set", shown, "pin=no"], ["optout", shown]):
            assert answered(env, *words)[1]["declared"].keys() == {f"{array}_2"}
        command, result = answered(env, "optout", job)
        assert command == "optout" and result["declared"][job]["off"] == "yes"
    finally:
        command, down = answered(dict(os.environ), "sandbox", "down", str(folder))
    assert command == "sandbox down" and down == {"folder": str(folder), "running": False}
