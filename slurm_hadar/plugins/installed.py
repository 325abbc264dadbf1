"""Which slurm.conf files got plugins of this installation: ``install.sh uninstall`` reads it."""

import sys
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.plugins import changes

RECORD = "slurm-conf-with-plugins"
"""Name of the file in the virtual environment: a path per line."""


def note(conf: Path) -> str:
    """Add ``conf`` to the record; paths of files that are gone are left out.

    Returns what to tell the admin where that cannot be written, else nothing. Without a virtual
    environment (the Debian package) there is no record.
    """
    if sys.prefix == sys.base_prefix:
        return ""
    record = Path(sys.prefix, RECORD)
    try:
        before = changes.read(record)
        known = [line for line in (before or b"").decode(errors="replace").split("\n") if line]
        paths = dict.fromkeys([*(one for one in known if Path(one).exists()), str(conf.absolute())])
        after = "".join(f"{path}\n" for path in paths).encode()
        changes.apply([changes.Change(record, before, after, ours=True)])
    except HadarError as error:
        return f"uninstall will not know of {conf.absolute()}: {error}"
    return ""
