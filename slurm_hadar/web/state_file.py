"""The controller's state file, where the page may read it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import HadarError


@contextmanager
def opened(config: Config) -> Iterator[Store]:
    """The open file. Raises HadarError where it cannot be opened or read, as under a service that
    may not write in its folder: SQLite notes readers there."""
    try:
        with closing(Store.open(config.site.state_dir)) as store, store.readable_errors():
            yield store
    except (OSError, sqlite3.Error) as error:
        raise HadarError(
            f"state in {config.site.state_dir} cannot be read ({error}); "
            "let this service write in that folder"
        ) from None
