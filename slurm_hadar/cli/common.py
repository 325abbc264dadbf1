"""What the commands share: the configuration, an open controller, JSON on stdout."""

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar import config as configuration
from slurm_hadar import users
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.state_errors import place_cause
from slurm_hadar.controller.lock import controllers_uid, only_one
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError
from slurm_hadar.domain.job import Job
from slurm_hadar.slurm.cluster import Cluster, Update, open_cluster
from slurm_hadar.slurm.waiting_age import count_again

if TYPE_CHECKING:  # half a second, and most commands do without
    from slurm_hadar.controller.tick import Controller

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Configuration file. Default: $HADAR_CONFIG, then the usual places."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def load(path: Path | None, needed: Collection[str] | None = None) -> Config:
    """The configuration; keys without an effect are reported on stderr. Raises UsageError.

    ``needed``: tables in which a mistake is an error; None: all. One in another table is reported.
    """
    file = path or configuration.find()
    config = configuration.load_believed(file, needed)
    for note in config.notes:
        print(f"hadar: {file}: {note}", file=sys.stderr)
    for mistake in config.ignored:
        message = f"{mistake}; this command takes the defaults of that table; correct the file"
        print(f"hadar: {file}: {message}", file=sys.stderr)
    return config


def load_to_ask(path: Path | None) -> Config:
    """The configuration for commands that only look, or give a job back to its owner: a mistake
    that does not concern them is a warning, so that they work beside a running controller."""
    return load(path, configuration.TO_ASK)


def load_if_any(path: Path | None) -> Config:
    """The configuration where there is one; a simulation needs none. Raises UsageError."""
    if path is not None or configuration.find().exists():
        return load(path)
    return Config()


def cluster_of(config: Config) -> Cluster:
    """The site's Slurm."""
    return open_cluster(config.slurm)


@contextmanager
def controller_of(config: Config, wait_s: float) -> Iterator["Controller"]:
    """A controller that holds the lock. Raises HadarError when another one does."""
    from slurm_hadar.controller.observation.accounting_limits import refuse_root

    refuse_root(config)
    _writable(config.site.state_dir)
    with only_one(config.site.state_dir, wait_s), _opened(config, repair=True) as controller:
        yield controller


@contextmanager
def reader_of(config: Config) -> Iterator["Controller"]:
    """A controller without the lock, to look and plan beside one that ticks; not to tick with.

    Raises HadarError for a user who is not the controller's.
    """
    with _opened(config, repair=False) as controller:
        yield controller


@contextmanager
def _opened(config: Config, repair: bool) -> Iterator["Controller"]:
    from slurm_hadar.controller.journal.store import Store
    from slurm_hadar.controller.tick import Controller
    from slurm_hadar.profiles.rates import open_rates

    owned(config)
    store = Store.open(config.site.state_dir, repair)
    try:
        yield Controller(
            config,
            cluster_of(config),
            store,
            open_rates(config, store.connection),
            os.getuid(),
        )
    finally:
        store.close()


def _writable(folder: Path) -> None:
    try:
        is_own = folder.stat().st_uid == os.getuid()
    except OSError:
        return
    if is_own and not os.access(folder, os.W_OK | os.X_OK):
        cause = place_cause(folder) or f"run: chmod 700 {folder}"
        raise HadarError(f"state folder {folder} cannot be written: {cause}")


def is_controllers_user(config: Config) -> bool:
    """Whether the state folder is the caller's, or would be made by them."""
    folder = config.site.state_dir
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        if config.site.rights == "operator" and os.getuid() == 0:
            return False
        above = next((one for one in folder.parents if os.access(one, os.F_OK)), folder)
        return os.access(above, os.W_OK)


def owned(config: Config) -> None:
    """Raises HadarError for a user who is not the controller's."""
    folder = config.site.state_dir
    try:
        owner = folder.stat().st_uid
    except OSError:
        return
    if owner == os.getuid():
        return
    name = _for_sudo(owner)
    raise HadarError(
        f"state in {folder} is owned by {name}; run: sudo -u {name} hadar ... For your own jobs "
        "run: hadar status, hadar explain JOB, or hadar doctor JOB"
    )


def root_asks_as(config: Config) -> str:
    """The user as whom root reads the controller's state; empty where that is root, and for all
    other callers."""
    uid = controllers_uid(config) if os.getuid() == 0 else 0
    return _for_sudo(uid) if uid else ""


def _for_sudo(uid: int) -> str:
    return users.name_of(uid, f"#{uid}")


def keep_ages(cluster: Cluster, sent: Sequence[tuple[Job, Update]]) -> None:
    """Make Slurm count the age of jobs whose partitions a command has changed; see
    :mod:`slurm_hadar.slurm.waiting_age`. ``sent``: the jobs as they were, with what was sent."""

    def say(ids: Sequence[str]) -> None:
        said = "waiting up to 30 s until Slurm counts the age of"
        print(f"hadar: {said} {_named(ids)} again", file=sys.stderr)

    try:
        left = count_again(cluster, sent, say)
    except SlurmError as error:
        # What was asked for is done.
        print(f"hadar: whether Slurm counts each job's age is unknown: {error}", file=sys.stderr)
        return
    if left:
        said = "Slurm counts its age again when it next computes priorities (PriorityCalcPeriod)"
        print(f"hadar: {_named(left)}: {said}", file=sys.stderr)


def _named(ids: Sequence[str]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"


def check_writable(path: Path | None) -> None:
    """Better to fail before the work than behind it. Raises UsageError.

    None: nothing is to be written.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: this user may not; name a file elsewhere")


def print_json(command: str, result: object) -> None:
    """The one form of all machine-readable output."""
    typer.echo(json.dumps({"version": 1, "command": command, "result": result}))
