"""What the PySlurm of this environment was built for is asked once for a process, not at each start
of a controller or a command: 0.1 s of CPU time. ``use()`` has the package take that answer.
"""

import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path

from slurm_hadar.slurm import backend_choice

real = backend_choice._probe


@cache
def _answer(timeout_s=120.0):
    with tempfile.TemporaryDirectory() as folder:
        # PySlurm is not imported without one.
        conf = Path(folder, "slurm.conf")
        conf.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
        return real(conf, timeout_s)


def use():
    if importlib.util.find_spec("pyslurm") is not None:
        answer = _answer()
        backend_choice._probe = lambda conf, timeout_s: answer


def back():
    backend_choice._probe = real


if sys.flags.isolated:
    # The process of forks.py, before it starts any program.
    use()
