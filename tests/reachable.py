"""Folders of a test that all users can enter, unlike pytest's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_to_all(folder: Path) -> Iterator[Path]:
    """Let all users enter a folder and those above it for a while."""
    above = [one for one in folder.parents if one.stat().st_mode & 0o005 != 0o005]
    modes = [(one, one.stat().st_mode) for one in [folder, *above]]
    for one, mode in modes:
        one.chmod(mode | 0o055)
    yield folder
    for one, mode in modes:
        one.chmod(mode)
