"""What of persons may stand in the log, by ``log.people``."""

import os
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.domain.job import Job
from slurm_hadar.folder_probe import ensure_answers

_LONGEST_NAME, _LONGEST_TEXT = 64, 4000
# An apostrophe within a word opens no quotation; one that nothing closes may have been cut.
_QUOTED = re.compile(
    r"""(?<!\w)[bBuUrR]?'(?:\\.|[^'\\]|'(?=\w))*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\Z)""", re.DOTALL
)
_QUOTED_PATH = re.compile(r"""(['"])~?/(?:(?!\1).)*(?:\1|\Z)""", re.DOTALL)
_PATH = re.compile(r"""(?<![\w/])(?:~\w*)?/[^\s/'"][^\s'"(),;]*""")
_OUR_FILE = re.compile(
    r"/(?:(?:plan|steer)\.[0-9_+]+\.json|heartbeat\.json|hadar\.sqlite(?:\.damaged-\w+)?)[.:]?"
)
"""Files that are named by us alone."""


_NAMED = re.compile(r"\b(account |groups of |user=|account=)[^\s,;]+")
"""For a job that Slurm has forgotten since, whose owner is unknown by now."""


class Privacy:
    """Takes out of a text what stands above the level. Paths and comments always do.

    The site's own folders are named by their key, such as ``site.state_dir``: in per-user mode they
    are in a user's home.
    """

    def __init__(self, config: Config) -> None:
        """``config``: the site's, with its level and its folders."""
        self.people = config.log.people
        self._keys: dict[str, str] = {}
        me, home = _me()
        for key, place in (*_places(config), ("~", home)):
            # What SQLite and the system tell is where a link leads.
            for path in (str(place), _led_to(place, config.site.exchange_dir)):
                if path != "/":
                    self._keys.setdefault(path, key)
        longest = sorted(self._keys, key=len, reverse=True)
        places = "|".join(re.escape(path) for path in longest)
        self._places = re.compile(rf"({places})([^\s'\"(),;]*)")
        # The controller of a site is no person.
        self._me = () if config.site.rights == "operator" else (me,)

    def person(self, job: Job | None) -> dict[str, object]:
        """What of a job's owner may stand beside it."""
        if job is None or self.people == "none":
            return {}
        found: dict[str, object] = {"uid": job.uid}
        if self.people == "names":
            names = {"user": job.user, "name": job.name, "account": job.account}
            found |= {key: value[:_LONGEST_NAME] for key, value in names.items()}
        return found

    def text(self, text: str, jobs: Iterable[Job] = ()) -> str:
        """A sentence that may be about ``jobs`` without paths and, below ``names``, without what
        it quotes and the names of owners and accounts."""
        text = self._places.sub(self._key, text[:_LONGEST_TEXT])
        if self.people == "names":
            return _PATH.sub("...", _QUOTED_PATH.sub("'...'", text))
        text = _NAMED.sub(r"\1...", _PATH.sub("...", _QUOTED.sub("'...'", text)))
        names = {name for job in jobs for name in (job.user, job.account)} | set(self._me)
        words = "|".join(re.escape(name) for name in sorted(names - {""}, key=len, reverse=True))
        return re.sub(rf"(?<!\w)(?:{words})(?!\w)", "...", text) if words else text

    def _key(self, found: re.Match[str]) -> str:
        rest = found[2]
        tells = rest.rstrip(".:") and not _OUR_FILE.fullmatch(rest)
        return self._keys[found[1]] + ("/..." if tells else rest)


def _led_to(place: Path, exchange: Path) -> str:
    """Where a path leads; an exchange folder that does not answer is itself."""
    if place == exchange:
        try:
            ensure_answers(str(place))
        except OSError:
            return str(place)
    return os.path.realpath(place)


def _places(config: Config) -> Iterable[tuple[str, Path]]:
    yield "site.state_dir", config.site.state_dir
    yield "site.exchange_dir", config.site.exchange_dir
    yield "guards.stop_file", config.guards.stop_file
    for key, one in (
        ("slurm.bin_dir", config.slurm.bin_dir),
        ("slurm.conf", config.slurm.conf),
        ("log.file", config.log.file),
    ):
        if one is not None:
            yield key, one
    for table in config.profiles.tables:
        yield "profiles.tables", table
    for table in config.profiles.cpu_tables:
        yield "profiles.cpu_tables", table


def _me() -> tuple[str, Path]:
    with suppress(KeyError):
        found = pwd.getpwuid(os.getuid())
        return found.pw_name, Path(found.pw_dir)
    return "", Path("/")
