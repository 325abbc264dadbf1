"""What holds for all tests: a slow machine is no failure, and no file is left behind."""

import ctypes
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis would call 200 ms for one example, and a second for making ten, a fault of the test.
settings.register_profile(
    "any machine",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure(config):
    """Each of torch's optimizers makes a folder for compiled kernels, in /tmp and for good.

    Here all of a run make one, which goes with it. Tests train as other users too.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="hadar-kernels-"))
        folder.chmod(0o1777)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


@pytest.fixture
def closed_to_root_too():
    """What a file's mode closes is closed to root as well: capabilities(7), of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted, inheritable; then the same for the capabilities from 32 on.
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    assert libc.capset(header, fewer) == 0
    yield
    assert libc.capset(header, held) == 0
