"""What works without the extras, and what the others say."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
for name in ("highspy", "prometheus_client", "pynvml", "starlette", "uvicorn", "textual"):
    sys.modules[name] = None
from slurm_hadar.cli.main import main
main()
"""


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("policy", ["timetable", "gavel_las"])
def test_a_policy_that_needs_the_solver_says_what_to_install(policy: str) -> None:
    done = ran("simulate", "jobs", "trace_120", "--policy", policy)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("pip install 'slurm-hadar[controller]'\n")
    assert "Traceback" not in done.stderr


def test_what_reads_needs_no_extra() -> None:
    code = WITHOUT.replace(
        "from slurm_hadar.cli.main import main\nmain()\n",
        "import slurm_hadar.controller.tick, slurm_hadar.cli.plan_of_job, slurm_hadar.cli.hbatch\n"
        "import slurm_hadar.cli.status, slurm_hadar.cli.doctor, slurm_hadar.cli.jobs\n",
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "timetable" in ran("policies").stdout
