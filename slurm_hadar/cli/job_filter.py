"""The jobs that ``hadar status`` and ``hadar top`` show, and their order."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from slurm_hadar.cli.common import ConfigOption
from slurm_hadar.cli.filters import ALL, names_of, require_accounts, require_users
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports import status as report
from slurm_hadar.reports.status import Overview
from slurm_hadar.reports.text import StatusRow

_STATES = {"R": "RUNNING", "PD": "PENDING", "S": "SUSPENDED", "CG": "COMPLETING"}


def _natural(id_: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", id_)]


SORTS: dict[str, Callable[[StatusRow], Any]] = {
    "job": lambda row: _natural(row.id),
    "user": lambda row: row.user,
    "account": lambda row: row.account,
    "name": lambda row: row.name,
    "state": lambda row: row.state,
    "type": lambda row: sorted(row.here or row.planned),
    "done": lambda row: row.done or 0.0,
    "speed": lambda row: row.samples_per_s or 0.0,
    "moves": lambda row: row.moves or 0,
}


@dataclass(frozen=True)
class FilterOptions:
    """The options of ``hadar status`` and ``hadar top``."""

    config: ConfigOption = None
    user: Annotated[
        str,
        typer.Option(help="Jobs of these users, or all; default: one's own, an operator's all."),
    ] = ""
    account: Annotated[str, typer.Option(help="Jobs of these accounts.")] = ""
    state: Annotated[str, typer.Option(help="Jobs in these states, such as PD,RUNNING.")] = ""
    gpu_type: Annotated[
        str, typer.Option("--type", help="Jobs on these GPU types, or planned there.")
    ] = ""
    sort: Annotated[
        str, typer.Option(help=f"Order: {', '.join(SORTS)}; with - before it the largest first.")
    ] = "job"

    def choice(self) -> "Choice":
        """The jobs and their order. Raises UsageError."""
        return choice(self.user, self.account, self.state, self.gpu_type, self.sort)


@dataclass(frozen=True)
class Choice:
    """The jobs that are shown: those with these ids, users and so on; empty: any. ``sort``: a name
    of :data:`SORTS`. Raises UsageError."""

    jobs: Sequence[str] = ()
    users: Sequence[str] = ()
    accounts: Sequence[str] = ()
    states: Sequence[str] = ()
    types: Sequence[str] = ()
    sort: str = "job"
    reverse: bool = False

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise UsageError(f"--sort takes one of {', '.join(SORTS)}, with - before it or not")

    def of(self, rows: Sequence[StatusRow], own: str) -> list[StatusRow]:
        """The chosen rows in order. ``own``: the caller's name, whose jobs are shown without
        ``--user``; empty: all."""
        users = self.users or ((own,) if own and not self.jobs else ())
        chosen = [
            row
            for row in rows
            if (not users or ALL in users or row.user in users)
            and (not self.accounts or row.account in self.accounts)
            and (not self.states or row.state.upper() in self.states)
            and (not self.types or not {*row.here, *row.planned}.isdisjoint(self.types))
            and (not self.jobs or not row.names.isdisjoint(self.jobs))
        ]
        return sorted(chosen, key=SORTS[self.sort], reverse=self.reverse)

    def why_none(self, data: Overview, own: str) -> str:
        """The message if none of the jobs counted in ``data`` is chosen; ``own`` as in
        :meth:`of`."""
        if not data.managed:
            return report.NO_JOBS
        if own and not (self.users or self.accounts or self.states or self.types or self.jobs):
            return (
                "No managed jobs of yours to show. Those counted above are other users' "
                "(hadar status --user all)."
            )
        return "No managed jobs to show: none of those counted above is as asked for."

    def require_known(self, data: Overview, site: Config) -> None:
        """Raises HadarError for an unknown job, GPU type, user or account."""
        rows = data.rows
        for job in self.jobs:
            if not any(job in row.names for row in rows):
                raise HadarError(
                    f"no managed job {job} waits or runs that you may see; squeue shows the jobs "
                    "of Slurm"
                )
        # Under PrivateData=nodes a user sees no node.
        kinds = {use.gpu_type for use in data.gpus} or set(site.gpu_types)
        for kind in self.types:
            if kinds and kind not in kinds:
                raise HadarError(
                    f"no node has GPUs of type {kind}; there are {', '.join(sorted(kinds))}"
                )
        require_users({*self.users} - {ALL, *(row.user for row in rows)})
        require_accounts(site, {*self.accounts} - {row.account for row in rows})


def choice(user: str, account: str, state: str, gpu_type: str, sort: str) -> Choice:
    """The choice by the values of the options. Raises UsageError."""
    return Choice(
        users=names_of(user),
        accounts=names_of(account),
        states=_states(state),
        types=names_of(gpu_type),
        sort=sort.removeprefix("-"),
        reverse=sort.startswith("-"),
    )


def _states(value: str) -> list[str]:
    names = [name.upper() for name in names_of(value)]
    known = {*_STATES, *_STATES.values()}
    for name in names:
        if name not in known:
            raise UsageError(f"--state takes {', '.join(_STATES)}, or: "
                             f"{', '.join(_STATES.values())}")  # fmt: skip
    return [_STATES.get(name, name) for name in names]
