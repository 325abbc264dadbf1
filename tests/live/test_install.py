"""install.sh for a site and its uninstall, beside a Slurm with a waiting job."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.sandbox.processes import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
INSIDE = (
    "_share/job_templates/pytorch_single.sh.j2",
    "_share/site_configs/smallest.toml",
    "_share/packaging/slurm-hadar.service",
    "profiles/data/gavel.json",
)


def ran(argv, env=None, code=0):
    done = subprocess.run(
        [str(word) for word in argv],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip(), done.stderr


def test_it_comes_whole_and_goes_whole(make_sandbox, tmp_path):
    prefix = tmp_path / "opt"
    # Without a Slurm of its own to fit, no PySlurm is built.
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_CONF": "/nowhere"}
    # What was loaded before is not loaded again, and what is not used here is not compiled: pip
    # takes the second one for the value of "compile".
    bare |= {"PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"), "PIP_NO_COMPILE": "0"}
    # An admin whose own files are closed to others.
    ours = ("sh", "-c", 'umask 077 && exec "$@"', "sh")
    _, said = ran([*ours, "./install.sh", "site", "--prefix", prefix, "--exchange", "/ex"], bare)
    assert f"{prefix}/bin" in said
    closed = [path for path in (prefix, *prefix.rglob("*")) if not path.stat().st_mode & 0o004]
    assert not closed, closed[:5]
    assert (prefix / "share/slurm-hadar/system/prometheus/slurm-hadar.rules.yml").is_file()
    unit = (prefix / "share/slurm-hadar/system/slurm-hadar.service").read_text()
    assert f"ExecStart={prefix}/bin/hadar run" in unit and "ReadWritePaths=/ex" in unit
    (wheel,) = (prefix / "share/slurm-hadar").glob("slurm_hadar-*.whl")
    assert list((prefix / "share/slurm-hadar").glob("slurm_hadar_runtime-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in INSIDE if f"slurm_hadar/{name}" not in names]

    box = make_sandbox(options=SandboxOptions(mode="act"))
    env = {**box.env, "PATH": f"{prefix}/bin:{box.env['PATH']}"}
    # What breaks a Python that looks at its user's environment.
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "signal.py").write_text("raise SystemExit(3)\n")
    env |= {"PYTHONPATH": f"{taken}:", "PYTHONHOME": str(taken)}
    ran(["hadar", "check", "--write"], env)
    ran(["hadar", "tick"], env)
    submit = ["hbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:1", "--hadar-types=any"]
    # It waits for GPUs that others have.
    fill = ["sbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:2", "--wrap", "sleep 600"]
    held = [ran(fill, env)[0] for _ in range(6)]
    assert wait_until(lambda: all(box.job_state(one) == "RUNNING" for one in held), 60, 0.2)
    job, _ = ran([*submit, "--wrap", "true"], env)
    assert box.job_state(job) == "PENDING"

    conf = Path(box.env["SLURM_CONF"])
    before = conf.read_text()
    conf.write_text(f"{before}TaskProlog={prefix}/share/slurm-hadar/task_prolog.sh\n")
    _, said = ran(["./install.sh", "uninstall", "--prefix", prefix], box.env, code=1)
    assert "hadar plugins remove" in said and prefix.exists()
    conf.write_text(before)

    ran(["./install.sh", "uninstall", "--prefix", prefix], box.env)
    assert not prefix.exists()
    box.run("scancel", *held)
    assert box.wait_state(job) == "COMPLETED"
    assert "hadar1" not in box.run("scontrol", "show", "job", job)
    _, said = ran(["./install.sh", "uninstall", "--prefix", prefix], box.env, code=1)
    assert "holds no slurm-hadar" in said
