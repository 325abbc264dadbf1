"""A real Slurm for the live tests, started and stopped by the sandbox itself.

conftest.py takes the fixtures and the hook from here: there are two modules of that name, and
which of them ``import conftest`` finds depends on what pytest has collected before.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import probed_once
import pytest
from missing import missing

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import processes, programs
from slurm_hadar.sandbox.cluster import Sandbox

SECOND = "HADAR_TEST_SLURM"
"""Environment variable that names the prefix of a second Slurm."""
ALL = "HADAR_TEST_SLURM_ALL"
"""Set: each test that can runs on both Slurms, else only those marked ``each_slurm``."""


def slurm_prefixes() -> list[Path | None]:
    """The Slurms to test with: the one on PATH (None), and the second one where it is named."""
    second = os.environ.get(SECOND)
    return [None, Path(second)] if second else [None]


def need(prefix: Path | None) -> None:
    """Skip without Slurm, saying what is missing."""
    try:
        programs.find(prefix)
    except HadarError as error:
        missing(str(error))


def _name(prefix: Path | None) -> str:
    return prefix.name if prefix else "path"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Which Slurms a test runs on. One of them is the same for all tests of a file, since they
    may share a sandbox; the names of the files spread them."""
    if "slurm_prefix" in metafunc.fixturenames:
        found = slurm_prefixes()
        if not os.environ.get(ALL) and not metafunc.definition.get_closest_marker("each_slurm"):
            found = [found[crc32(metafunc.module.__name__.encode()) % len(found)]]
        metafunc.parametrize("slurm_prefix", found, ids=_name, scope="module", indirect=True)


@pytest.fixture(scope="module")
def slurm_prefix(request: pytest.FixtureRequest) -> Path | None:
    """One Slurm, or each in turn."""
    prefix: Path | None = request.param
    need(prefix)
    return prefix


@pytest.fixture(scope="module", autouse=True)
def pyslurm_probed_once() -> Iterator[None]:
    """What PySlurm fits is not asked again for each cluster that is opened in this process."""
    probed_once.use()
    yield
    probed_once.back()


@pytest.fixture(scope="session", autouse=True)
def no_output_of_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job of the tests may write into the folder that they are run from."""
    here = request.config.invocation_params.dir
    before = set(here.glob("slurm-*.out"))
    yield
    left = set(here.glob("slurm-*.out")) - before
    assert not left, "a test submits without --output"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One sandbox of the default layout for all tests of a module."""
    need(None)
    box = Sandbox.up(tmp_path_factory.mktemp("sandbox") / "box")
    yield box
    _take_down(box)


@pytest.fixture(scope="module")
def sandbox_each(
    slurm_prefix: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """Like ``sandbox``, on the Slurms of ``slurm_prefix``."""
    box = Sandbox.up(tmp_path_factory.mktemp("sandbox") / "box", slurm_prefix=slurm_prefix)
    yield box
    _take_down(box)


@pytest.fixture
def make_sandbox(tmp_path: Path) -> Iterator[Callable[..., Sandbox]]:
    """Start sandboxes with ``Sandbox.up``'s arguments; all are taken down after the test."""
    need(None)
    made: list[Sandbox] = []

    def make(**options: Any) -> Sandbox:
        box = Sandbox.up(tmp_path / f"box{len(made)}", **options)
        made.append(box)
        return box

    yield make
    for box in made:
        _take_down(box)


def _take_down(box: Sandbox) -> None:
    box.down()
    assert not processes.ours(box.places)
