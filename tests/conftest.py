"""What holds for all tests: a slow machine is no failure, and no file is left behind."""

import ctypes
import gc
import getpass
import os
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from in_memory import temporary
from sharing import Sharing, yield_to_live_tests

# numpy and torch start a thread per core when they are imported, here and in each program of a
# test: those of several processes would wait for each other on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of pytest's folders.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", temporary())

# Hypothesis would call 200 ms for one example, and a second for making ten, a fault of the test.
# Each run tries other examples, so one run needs few.
settings.register_profile(
    "any machine",
    settings.default,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
# For ``./install.sh check``, which is run often. What says its own number keeps it.
QUICK = "quick"
settings.register_profile(QUICK, settings.get_profile("any machine"), max_examples=15)
settings.load_profile("any machine")


def pytest_configure(config):
    """For ``./install.sh check`` each process imports the parts of PyTorch that its tests use: a
    test that uses another one fails. ``./install.sh test`` has all of it.

    Each of torch's optimizers makes a folder for compiled kernels, for good; we compile none."""
    is_worker = hasattr(config, "workerinput")
    if is_worker and config.getoption("hypothesis_profile") == QUICK and find_spec("torch"):
        import benchmarks.small_torch  # noqa: F401
    kernels = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    if "PYTEST_XDIST_WORKER" not in os.environ and not kernels.exists():
        config.add_cleanup(lambda: _remove_if_empty(kernels))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Our order, where files are to stay together."""
    return Sharing(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    """A live test waits for daemons that share two cores with other tests: what fails once and
    then passes is named in the summary as RERUN, and is to be looked at.

    Not where a rare failure is what is looked for: tests marked ``once``.
    """
    for item in items:
        if item.get_closest_marker("live") and not item.get_closest_marker("once"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    yield_to_live_tests([item.nodeid for item in items])


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays to the end: the collector of garbage does not look
    through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Shows why a test ran once more: pytest prints the failure of the last attempt only."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first attempt of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def _remove_if_empty(folder):
    with suppress(OSError):
        folder.rmdir()


@pytest.fixture(autouse=True)
def no_other_slurm(request, monkeypatch):
    """Unit tests know the Slurm that they name: neither the caller's, nor that of a live test which
    read it through PySlurm in this process, which has one SLURM_CONF and keeps it."""
    if request.node.nodeid.startswith("tests/unit/"):
        monkeypatch.delenv("SLURM_CONF", raising=False)


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
