"""A folder of a test that all users can enter, unlike pytest's own, which other tests share."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A new folder below the system's folder for temporary files, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hadar-test-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
