"""Slurm's states in the terms of the domain, in two tables."""

from collections.abc import Iterable

from slurm_hadar.domain.job import JobState

_JOB: dict[str, JobState] = {
    "PENDING": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "REQUEUED": JobState.COMPLETING,
    "REQUEUE_FED": JobState.COMPLETING,
    "COMPLETED": JobState.FINISHED,
    "CANCELLED": JobState.FINISHED,
    "FAILED": JobState.FINISHED,
    "TIMEOUT": JobState.FINISHED,
    "NODE_FAIL": JobState.FINISHED,
    "PREEMPTED": JobState.FINISHED,
    "BOOT_FAIL": JobState.FINISHED,
    "DEADLINE": JobState.FINISHED,
    "OUT_OF_MEMORY": JobState.FINISHED,
    "REVOKED": JobState.FINISHED,
}
_JOB_REMARKS = frozenset({"LAUNCH_FAILED", "RECONFIG_FAIL", "UPDATE_DB", "EXPEDITING"})
"""Flags that say nothing about what the job is doing."""

_STRONGEST_FIRST = (
    JobState.UNKNOWN,
    JobState.COMPLETING,
    JobState.FINISHED,
    JobState.SUSPENDED,
    JobState.RUNNING,
    JobState.PENDING,
)

_NODE_USABLE = frozenset(
    {
        "IDLE",
        "MIXED",
        "ALLOCATED",
        "COMPLETING",
        "PLANNED",
        "CLOUD",
        "DYNAMIC_NORM",
        "POWERED_DOWN",
        "POWERING_UP",
        "POWER_UP",
    }
)
"""States in which Slurm may start a job on the node: it wakes sleeping ones by itself, and
PLANNED only says that backfill has a plan for it. All others (DOWN, DRAIN, FAIL, MAINTENANCE,
RESERVED, REBOOT_ISSUED, NOT_RESPONDING, POWERING_DOWN, INVAL, FUTURE ...), and those that this
release has not met, make it unusable."""

_NODE_CLOSED = frozenset(
    {
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "MAINT",
        "MAINTENANCE",
        "RES",
        "RESERVED",
        "REBOOT_REQUESTED",
    }
)
"""States in which a node takes no new job of ours while those that it runs go on."""

_NODE_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP", "POWER_UP"})
"""States of a node that has to boot before a job runs there, or boots."""

_NODE_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}


def job_state(names: Iterable[str]) -> JobState:
    """The state of a job from Slurm's base state and flags (in 22.05 one name only).

    A name that is not in the table makes it UNKNOWN, whatever stands beside it.
    """
    found = {
        _JOB.get(name, JobState.UNKNOWN)
        for name in (n.upper() for n in names)
        if name not in _JOB_REMARKS
    }
    return next((state for state in _STRONGEST_FIRST if state in found), JobState.UNKNOWN)


def held(state: JobState, priority: int, reason: str) -> bool:
    """Whether a waiting job is held, by its owner, by an administrator or by Slurm itself.

    Slurm holds by priority 0; the reason alone lags behind.
    """
    return state is JobState.PENDING and (
        priority == 0 or reason in ("JobHeldUser", "JobHeldAdmin")
    )


def node_flags(state: str) -> frozenset[str]:
    """The names in a node's state such as ``IDLE*+DRAIN`` or ``MIXED+CLOUD``."""
    flags = set()
    for word in state.upper().split("+"):
        name = word.strip()
        while name and name[-1] in _NODE_MARKS:
            flags.add(_NODE_MARKS[name[-1]])
            name = name[:-1]
        if name:
            flags.add(name)
    return frozenset(flags)


def node_usable(state: str) -> bool:
    """Whether Slurm may start a job on a node in this state."""
    flags = node_flags(state)
    return bool(flags) and flags <= _NODE_USABLE


def node_asleep(state: str) -> bool:
    """Whether a job that Slurm starts on a node in this state waits until the node has booted."""
    return not _NODE_ASLEEP.isdisjoint(node_flags(state))


def node_keeps_its_jobs(state: str) -> bool:
    """Whether what a node in this state runs goes on there, be the node open to new jobs or not."""
    flags = node_flags(state)
    return bool(flags) and flags <= _NODE_USABLE | _NODE_CLOSED
