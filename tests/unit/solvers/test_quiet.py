import subprocess
import sys


def test_a_solver_prints_nothing_at_all():
    """HiGHS 1.16 printed a banner to stdout when it was made, before any JSON of a command."""
    program = (
        "from slurm_hadar.solvers.highs import new_solver\n"
        "solver = new_solver()\n"
        "solver.addVar(0.0, 1.0)\n"
        "solver.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "" and done.stderr == ""
