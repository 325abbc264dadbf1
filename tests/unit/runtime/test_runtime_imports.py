import subprocess
import sys


def test_reading_progress_needs_neither_torch_nor_numpy():
    code = (
        "import sys; import slurm_hadar.runtime; "
        "from slurm_hadar.exchange import progress, plan_file, heartbeat, job_side; "
        "from slurm_hadar.runtime import signals; "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
