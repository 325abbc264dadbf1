"""The accounting database of a sandbox: slurmdbd, over a MariaDB of its own.

With it a user can be an operator, and accounts, QOS and limits exist. MariaDB listens only on a
socket that no other user can reach, so it asks for no password; slurmdbd listens on loopback. What
it stores is thrown away with the sandbox, so nothing waits for a disk.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import processes, programs
from slurm_hadar.sandbox.places import SandboxPaths
from slurm_hadar.sandbox.programs import Programs

PORT = "slurmdbd"
"""Key of slurmdbd's port among the sandbox's."""
DAEMONS = ("mariadbd", "slurmdbd")
"""In the order in which they start."""

_CURE = "apt-get install slurmdbd mariadb-server-core mariadb-client-core"
_PLUGINS = ("lib*/slurm", "lib*/slurm-wlm", "lib*/*/slurm", "lib*/*/slurm-wlm")
"""Under the prefix of a Slurm: where its plugins are."""
_SMALL = (
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=4M",
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-innodb-doublewrite",
    "--skip-name-resolve",
)


def find(tools: Programs) -> dict[str, Path]:
    """The programs by name. Raises HadarError, with the cure, for one that is missing, and where
    slurmdbd has no plugin for a database."""
    path = tools.path
    names = ("mariadbd", "mariadb-install-db", "my_print_defaults", "slurmdbd", "setsid")
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        raise HadarError(f"a sandbox with accounting finds no {missing[0]} on PATH; {_CURE}")
    _require_plugin(Path(found["slurmdbd"] or ""))
    return {name: Path(where) for name, where in found.items() if where is not None}


def _require_plugin(slurmdbd: Path) -> None:
    """Raises HadarError where this slurmdbd surely has no plugin for a database: a Slurm that was
    built without MySQL's client library."""
    prefix = slurmdbd.resolve().parent.parent
    folders = [found for pattern in _PLUGINS for found in sorted(prefix.glob(pattern))]
    ours = [folder for folder in folders if (folder / "accounting_storage_slurmdbd.so").exists()]
    if ours and not any((folder / "accounting_storage_mysql.so").exists() for folder in ours):
        raise HadarError(
            f"a sandbox with accounting needs accounting_storage_mysql.so, which {ours[0]} does "
            "not have: on Debian apt-get install slurm-wlm-mysql-plugin, else build Slurm where "
            "MariaDB's client library is (libmariadb-dev)"
        )


def slurm_conf(places: SandboxPaths, port: int) -> list[str]:
    """Lines of slurm.conf."""
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={port}",
        f"AccountingStoragePass={places.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations,limits,qos",
    ]


def slurmdbd_conf(places: SandboxPaths, user: str, port: int) -> str:
    """slurmdbd.conf. It must belong to its user and be closed to others."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={places.munge_socket}",
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={port}",
            "CommunicationParameters=NoInAddrAny",
            f"SlurmUser={user}",
            f"PidFile={places.run}/slurmdbd.pid",
            f"LogFile={places.log}/slurmdbd.log",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def make_database(
    found: Mapping[str, Path], places: SandboxPaths, user: str, wait_s: float
) -> None:
    """An empty database in its folder. Raises HadarError."""
    argv: list[str | Path] = [
        found["mariadb-install-db"],
        "--no-defaults",
        f"--datadir={places.database}",
        _temporary(places),
        f"--user={user}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        *_SMALL,
    ]
    log = places.log / "mariadb-install-db.log"
    try:
        programs.start(argv, programs.environment({}), log, wait_s)
    except HadarError:
        raise HadarError(
            f"the sandbox's database could not be made\n{programs.tail(log)}"
        ) from None


def _temporary(places: SandboxPaths) -> str:
    """A folder of this database's own: one that starts removes the temporary tables of all others
    in a folder that they share, as /tmp (seen)."""
    return f"--tmpdir={places.run}"


def mariadbd_argv(found: Mapping[str, Path], places: SandboxPaths, user: str) -> list[str | Path]:
    """How MariaDB is started, in the background."""
    return [
        found["setsid"],
        "--fork",
        found["mariadbd"],
        "--no-defaults",
        f"--datadir={places.database}",
        _temporary(places),
        f"--user={user}",
        f"--socket={places.database_socket}",
        f"--pid-file={places.run}/mariadbd.pid",
        f"--log-error={places.log}/mariadbd.log",
        "--skip-networking",
        "--skip-grant-tables",
        "--performance-schema=OFF",
        *_SMALL,
    ]


def environment(places: SandboxPaths) -> dict[str, str]:
    """What tells slurmdbd where MariaDB's socket is; its configuration has no word for that."""
    return {"MYSQL_UNIX_PORT": str(places.database_socket)}


def wait_for_socket(places: SandboxPaths, wait_s: float) -> None:
    """Wait until MariaDB listens. Raises HadarError."""
    if not processes.wait_until(places.database_socket.exists, wait_s):
        tail = programs.tail(places.log / "mariadbd.log")
        raise HadarError(f"mariadbd made no socket within {wait_s:g} s\n{tail}")
