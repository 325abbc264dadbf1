"""Findings of ``hadar check`` about settings of Slurm."""

from collections.abc import Iterator

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.pending import queue_head
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import records
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.waiting_age import AgePriority, age_priority

_EXPEDITES = (25, 11)
_HAS_SEGMENTS, _SHOWS_SEGMENTS = (24, 11), (25, 5)
"""Versions of Slurm with requeue=expedite, with --segment, and that show a job's segment."""


def exchange_findings(
    config: Config, settings: dict[str, str], cluster: Cluster
) -> Iterator[Finding]:
    """Whether ``queue.exchange`` has an effect with the priorities of this Slurm."""
    how = settings.get("PriorityType", "")
    if config.queue.exchange == "none":
        works = config.site.rights == "operator" and how == "priority/multifactor"
        if works and "exchange" not in config.queue.model_fields_set:
            yield Finding(
                "ok",
                "queue.exchange is not set, so no managed job gets another place in the queue; "
                '"association" lets waiting ones of one user, account and QOS exchange theirs',
            )
        return
    if config.site.rights != "operator":
        why = f'site.rights is "{config.site.rights}": only an operator may raise a priority'
    elif how != "priority/multifactor":
        why = f"PriorityType is {how}: it does not go by Nice"
    else:
        yield from _ages(age_priority(settings), cluster)
        return
    what = f'queue.exchange = "{config.queue.exchange}" does nothing: {why}'
    yield Finding("warning", what, 'set queue.exchange = "none"')


def _ages(age: AgePriority, cluster: Cluster) -> Iterator[Finding]:
    """How the ages of waiting jobs limit exchanges of places."""
    gained = age.points(age.period_s)
    if gained < 1:
        return
    try:
        cluster.read_priorities()
    except SlurmError as error:
        yield Finding(
            "warning",
            f"queue.exchange does nothing: sprio does not tell the ages of waiting jobs: {error}",
            "let the controller's user run sprio",
        )
        return
    yield Finding(
        "ok",
        f"waiting jobs gain {gained:.0f} points of priority by age in a PriorityCalcPeriod, so "
        "places are exchanged only where no other job is as near as that; a shorter "
        "PriorityCalcPeriod lets more jobs exchange",
    )


def kill_wait_findings(config: Config, settings: dict[str, str]) -> Iterator[Finding]:
    """Whether ``moving.after_return_s`` is longer than KillWait."""
    words = settings.get("KillWait", "").split()
    after = config.moving.after_return_s
    if words and words[0].isdigit() and int(words[0]) >= after:
        yield Finding(
            "warning",
            f"KillWait={words[0]}: what ran on a node that went down and came back may still be "
            f"leaving after {after:g} s (moving.after_return_s)",
            f"set moving.after_return_s = {int(words[0]) + 10}",
        )


def requeue_delay_findings(config: Config, settings: dict[str, str]) -> Iterator[Finding]:
    """Whether Slurm leaves the controller time before it starts a requeued job."""
    if config.site.rights == "sandbox":
        # A sandbox sets a short time itself, so that a requeued job starts again soon.
        return
    delay = records.option(settings.get("SchedulerParameters", ""), "requeue_delay")
    if delay.isdigit():
        # Slurm 25.11 and later; read from its source and documentation, not run.
        if int(delay) < records.USUAL_CRED_EXPIRE_S:
            yield Finding(
                "warning",
                f"requeue_delay={delay}: a requeued job may start {delay} s later by itself, so a "
                "slow tick finds it started where it was",
                f"set requeue_delay={records.USUAL_CRED_EXPIRE_S} in SchedulerParameters",
            )
        return
    expire = records.option(settings.get("AuthInfo", ""), "cred_expire") or str(
        records.USUAL_CRED_EXPIRE_S
    )
    if expire.isdigit() and int(expire) < records.USUAL_CRED_EXPIRE_S:
        yield Finding(
            "warning",
            f"cred_expire={expire}: a requeued job may start {int(expire) + 1} s later by itself, "
            "so a slow tick finds it started where it was",
            "leave cred_expire at its default of 120 s",
        )


def queue_depth_findings(settings: dict[str, str]) -> Iterator[Finding]:
    """Whether partition lists leave other jobs enough of the queue depth of Slurm's schedulers."""
    options = settings.get("SchedulerParameters", "")
    depth, enough = records.queue_depth(settings), records.USUAL_QUEUE_DEPTH
    most, kept = queue_head.most_records(depth), queue_head.records_with_lists(depth)
    for name, usual in records.QUEUE_DEPTHS.items():
        value = records.option(options, name) or str(usual)
        if value.isdigit() and int(value) < enough:
            yield Finding(
                "warning",
                f"{name}={value}: Slurm looks at so many jobs in a pass, and each partition of a "
                f"list counts as one, so lists name {most} partitions at most, in a burst {kept}; "
                "jobs behind these keep the partition that they ask for",
                f"set {name}={usual} or more in SchedulerParameters",
            )


def preemption_findings(settings: dict[str, str]) -> Iterator[Finding]:
    """Whether preemption hangs on the start of a job, which a move changes."""
    which = {"partitions": "jobs of preemptable partitions", "all": "running jobs"}
    rule = records.preemption(settings)
    found = which.get(rule.whose)
    if found and rule.exempts:
        yield Finding(
            "warning",
            f"PreemptExemptTime: {found} are not moved, as a move begins that time anew and would "
            "keep waiting those that may preempt them",
            "set PreemptExemptTime=0, or expect fewer moves",
        )
    if found and rule.youngest_first:
        yield Finding(
            "warning",
            f"preempt_youngest_first: {found} are not moved, as a move makes a job the youngest, "
            "which Slurm preempts first",
            "leave preempt_youngest_first out of SchedulerParameters, or expect fewer moves",
        )


def version_findings(settings: dict[str, str], version: tuple[int, int]) -> Iterator[Finding]:
    """What is particular to this version and configuration of Slurm."""
    shared = {"shard", "mps"} & set(settings.get("GresTypes", "").split(","))
    if shared:
        names = " and ".join(f"gres/{name}" for name in sorted(shared))
        yield Finding("ok", f"GPUs of which parts are given out ({names}) count as in use")
    if version >= _EXPEDITES:
        yield Finding("ok", "jobs of --requeue=expedite are not moved (Slurm's source, not run)")
    if "topology/block" not in settings.get("TopologyPlugin", ""):
        return
    if version >= _SHOWS_SEGMENTS:
        yield Finding("ok", "jobs in segments of a block are not moved (Slurm's source, not run)")
    elif version >= _HAS_SEGMENTS:
        yield Finding(
            "warning",
            "this Slurm does not show which jobs asked for --segment, so they may be moved as any "
            "other; 25.05 shows it (Slurm's source, not run)",
            "write #HADAR off=yes into the scripts of such jobs, or update Slurm",
        )
