"""The policies: each a pure, deterministic function ``decide(view, state) -> (plan, state)`` in a
module of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies.record import Decide, Policy, Trait

__all__ = [
    "Decide",
    "ListedPolicy",
    "Policy",
    "Trait",
    "find",
    "get",
    "listed",
    "makes_copies",
    "names",
    "options_read",
]

_MODULES = {
    "fifo": "slurm_hadar.policies.queues.fifo",
    "gavel_ftf": "slurm_hadar.policies.gavel.ftf",
    "gavel_las": "slurm_hadar.policies.gavel.las",
    "gavel_makespan": "slurm_hadar.policies.gavel.makespan",
    "gavel_throughput": "slurm_hadar.policies.gavel.throughput",
    "gpu_proportional": "slurm_hadar.policies.synergy.proportional",
    "hadar": "slurm_hadar.policies.hadar.policy",
    "hadare": "slurm_hadar.policies.hadare.policy",
    "hare": "slurm_hadar.policies.hare.policy",
    "ones": "slurm_hadar.policies.ones.policy",
    "network": "slurm_hadar.policies.network.policy",
    "network_consolidate": "slurm_hadar.policies.network.consolidate",
    "network_never_wait": "slurm_hadar.policies.network.never_wait",
    "srtf": "slurm_hadar.policies.queues.srtf",
    "synergy_opt": "slurm_hadar.policies.synergy.opt",
    "synergy_tune": "slurm_hadar.policies.synergy.tune",
    "timetable": "slurm_hadar.policies.timetable.policy",
    "tiresias": "slurm_hadar.policies.queues.tiresias",
}


def names() -> tuple[str, ...]:
    """The names of the policies of this package, sorted."""
    return tuple(sorted(_MODULES))


def find(name: str, *, files: bool = False) -> Policy:
    """A policy by its name, of this package or another one, or by ``package.module:decide``.

    ``files``: accept ``path/to/file.py:decide`` too. Raises :class:`UsageError` if there is no such
    policy or it cannot be loaded.
    """
    if files and ":" in name:
        from slurm_hadar.policies import foreign

        return foreign.named(name, files=True)
    return _found(name)


@cache
def _found(name: str) -> Policy:
    if name in _MODULES:
        policy: Policy = import_module(_MODULES[name]).POLICY
        return policy
    # Listing the entry points of all installed packages is slow: skip it for our own policies.
    from slurm_hadar.policies import foreign

    if ":" in name:
        return foreign.named(name, files=False)
    others = foreign.registered()
    if name not in others:
        known = ", ".join(sorted({*_MODULES, *others}))
        raise UsageError(f"there is no policy {name!r}; known: {known}")
    return foreign.load(others[name])


def makes_copies(name: str) -> bool:
    """Whether a policy plans copies of jobs with ``fork``; True if the policy cannot be loaded."""
    try:
        return Trait.COPIES in find(name).uses
    except UsageError:
        return True


def get(name: str) -> Decide:
    """The ``decide`` function of a policy. Name and errors as in :func:`find`."""
    return find(name).decide


def options_read(policy: Policy, options: Mapping[str, object]) -> frozenset[str] | None:
    """The names of the options that a policy reads, with those of the policies that it calls under
    the given ``options``; None if one of them does not declare its options. Raises
    :class:`UsageError` for a value that one of them rejects."""
    known: set[str] = set()
    looked_at: set[str] = set()
    open_ = [policy]
    while open_:
        one = open_.pop()
        if one.options is None:
            return None
        if one.name not in looked_at:
            looked_at.add(one.name)
            known |= one.options.model_fields.keys()
            open_ += [find(other) for other in one.options.read(options).also()]
    return frozenset(known)


@dataclass(frozen=True)
class ListedPolicy:
    """An installed policy. ``source``: the package that provides it, with its version."""

    name: str
    source: str
    policy: Policy | None
    problem: str = ""
    """Why the policy cannot be used; empty if it can."""


def listed(only: str = "") -> Iterator[ListedPolicy]:
    """The installed policies, those of this package first, or ``only`` the one of that name. Each
    is loaded. Raises :class:`UsageError` if the entry points of other packages cannot be read."""
    from slurm_hadar import __version__
    from slurm_hadar.policies import foreign

    for name in names():
        if only in ("", name):
            yield ListedPolicy(name, f"slurm-hadar {__version__}", find(name))
    for name, entries in foreign.registered().items():
        if only not in ("", name):
            continue
        source = " and ".join(sorted({foreign.source_of(entry) for entry in entries}))
        if name in _MODULES:
            yield ListedPolicy(
                name, source, None, "slurm-hadar has a policy of that name, which is used"
            )
            continue
        try:
            yield ListedPolicy(name, source, foreign.load(entries))
        except UsageError as error:
            yield ListedPolicy(name, source, None, str(error))
