"""A site's slurm.conf with what stands beside it, and what is to be done to them."""

import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.plugins import slurm_conf
from slurm_hadar.plugins.changes import Change, read

OURS = "hadar"
"""Name of our folder beside slurm.conf."""
_SAFE = re.compile(r"/[A-Za-z0-9_./:+@-]*")

Files = dict[str, tuple[bytes, int]]
"""Files of our own folder: name -> bytes, mode."""


@dataclass
class FileChanges:
    """What is to be changed, in the order to do it, and what only a person can do."""

    changes: list[Change] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    added: dict[str, str] = field(default_factory=dict)
    """Settings to add to slurm.conf."""
    replaced: dict[int, str] = field(default_factory=dict)
    """Lines of slurm.conf (from 0) to replace."""


class SiteFiles:
    """A slurm.conf as it would be without us, and the paths beside it."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises :class:`UsageError` for one that cannot be used."""
        self.path = path.absolute()
        self.folder = self.path.parent
        self.ours = self.folder / OURS
        if not _SAFE.fullmatch(str(self.path)):
            raise UsageError(
                f"{str(self.path)!r}: Slurm's files cannot name it; take a path of letters, digits "
                "and . _ : + @ -"
            )
        data = read(self.path)
        if data is None:
            raise UsageError(f"there is no slurm.conf at {self.path}; name it with --slurm-conf")
        self.data = data
        self.text = slurm_conf.without_ours(text_of(data))
        self.settings = slurm_conf.settings(self.text, self.path)

    def value(self, name: str) -> str:
        """A setting's value, empty where it is not set."""
        found = self.settings.get(name.lower())
        return found.value if found else ""

    @property
    def plugstack(self) -> Path:
        """plugstack.conf, wherever it is."""
        return self.folder / (self.value("PlugStackConfig") or "plugstack.conf")


def resource(name: str) -> bytes:
    """A file of this package."""
    return resources.files(__package__).joinpath(name).read_bytes()


def text_of(data: bytes) -> str:
    """A file's text, whatever bytes are in it."""
    return data.decode(errors="surrogateescape")


def bytes_of(text: str) -> bytes:
    """The bytes that :func:`text_of` read."""
    return text.encode(errors="surrogateescape")
