"""``hadar check``: what was found, and the cure for each problem."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from slurm_hadar import policies
from slurm_hadar.config import Config, wrapper_path
from slurm_hadar.controller.checks.check_access import access_findings
from slurm_hadar.controller.checks.check_cluster import (
    association_findings,
    lost_findings,
    partition_findings,
    type_findings,
)
from slurm_hadar.controller.checks.check_folders import folder_findings
from slurm_hadar.controller.checks.check_options import option_findings
from slurm_hadar.controller.checks.check_plugins import plugin_findings
from slurm_hadar.controller.checks.check_reporting import people_findings, reporting_findings
from slurm_hadar.controller.checks.check_slurm_settings import (
    exchange_findings,
    kill_wait_findings,
    preemption_findings,
    queue_depth_findings,
    requeue_delay_findings,
    version_findings,
)
from slurm_hadar.controller.checks.controller_user import ControllerUser, controller_user
from slurm_hadar.controller.checks.finding import Finding, me
from slurm_hadar.controller.checks.wrapper_site import SlurmNames, is_current, lacks_batches
from slurm_hadar.controller.observation.accounting_limits import NO_SANDBOX
from slurm_hadar.controller.observation.sandbox_detection import is_sandbox
from slurm_hadar.domain.declaration import ANY
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.cluster import Cluster, open_cluster
from slurm_hadar.slurm.database import database_cure, database_message
from slurm_hadar.slurm.limits import enforces_associations

_SERVICE_PATH = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
"""systemd's own, and that of slurm-hadar.cron."""


def findings(config: Config) -> Iterator[Finding]:
    """Everything that is worth knowing before the controller is trusted."""
    for mistake in config.ignored:
        yield Finding(
            "problem",
            f"configuration: {mistake}",
            "correct the file: no controller starts with it; what follows was checked without "
            "that key",
        )
    yield Finding(
        "ok", f"site {config.site.name}, mode {config.site.mode}, policy {config.controller.policy}"
    )
    yield from _libraries(config)
    user = controller_user(config)
    if not user.switches:
        yield Finding(
            "warning",
            f"{me()} may not take the rights of {user.name} here, as in a container: whether "
            f"{user.name} can use the folders, files and programs is not checked",
            f"sudo -u {user.name} hadar check",
        )
    yield from folder_findings(config, user)
    yield from access_findings(config, user)
    yield from reporting_findings(config, user)
    for note in config.notes:
        yield Finding("warning", note, "correct the configuration, then hadar check --write")
    yield from _only_in_this_shell(config)
    yield from _of_the_cluster(config, user)


def _of_the_cluster(config: Config, user: ControllerUser) -> Iterator[Finding]:
    """What Slurm has to be asked for."""
    try:
        cluster = open_cluster(config.slurm)
        major, minor, patch = cluster.slurm_version
        settings = cluster.read_config()
        nodes = cluster.read_nodes()
        jobs = cluster.read_jobs()
        partitions = cluster.read_partitions()
    except SlurmError as error:
        yield Finding(
            "problem",
            f"Slurm does not answer: {error}",
            "start slurmctld, or set slurm.conf and slurm.bin_dir",
        )
        return
    yield Finding(
        "ok", f"Slurm {major}.{minor:02d}.{patch}, read through {cluster.backend}: {cluster.why}"
    )
    yield from _rights(config, cluster, settings, user)
    yield from type_findings(config, nodes)
    yield from lost_findings(nodes, jobs)
    yield from _names(config, user)
    yield from people_findings(config, settings, user)
    yield from partition_findings(config, settings, partitions, nodes)
    yield from exchange_findings(config, settings, cluster)
    yield from requeue_delay_findings(config, settings)
    if config.partitions.groups:
        yield from queue_depth_findings(settings)
        yield from preemption_findings(settings)
        yield from _associations(config, cluster, settings)
    yield from kill_wait_findings(config, settings)
    yield from version_findings(settings, (major, minor))
    yield from _racks(config, cluster, partitions)
    yield from plugin_findings(config, settings)
    if config.backfill.enabled:
        yield from _backfill(config, partitions)


def _only_in_this_shell(config: Config) -> Iterator[Finding]:
    """What leads this process to Slurm, and not a service of systemd or cron."""
    if config.site.rights != "operator":
        return
    conf = os.environ.get("SLURM_CONF")
    if conf and config.slurm.conf is None:
        yield Finding(
            "warning",
            f"SLURM_CONF={conf} is set in this shell only: a service does not have it",
            f'set slurm.conf = "{conf}"',
        )
    found = None if config.slurm.bin_dir else shutil.which("scontrol")
    if found and str(Path(found).parent) not in _SERVICE_PATH:
        yield Finding(
            "warning",
            f"{found} is on the PATH in this shell only: a service does not have its folder",
            f'set slurm.bin_dir = "{Path(found).parent}"',
        )


def _libraries(config: Config) -> Iterator[Finding]:
    """What only a controller needs, which may be on another machine."""
    needed = {"highspy": "most policies need it, so ticks fail once there is something to decide"}
    if config.metrics.port or config.metrics.textfile:
        needed["prometheus_client"] = "[metrics] needs it, so no controller starts"
    for name, why in needed.items():
        if find_spec(name) is None:
            yield Finding(
                "warning",
                f"{name} is not installed here: {why}",
                "where the controller runs: pip install 'slurm-hadar[controller]'",
            )


def _associations(config: Config, cluster: Cluster, settings: dict[str, str]) -> Iterator[Finding]:
    enforced = settings.get("AccountingStorageEnforce", "")
    if config.site.rights == "operator" and enforces_associations(enforced):
        # Another finding says whether the database answers.
        with suppress(SlurmError):
            limits = cluster.read_limits(settings.get("ClusterName", ""))
            yield from association_findings(config, limits)


def wrapper_finding(config: Config, config_path: Path, names: SlurmNames) -> Finding:
    """Whether hbatch sees this configuration, and the names that Slurm goes by: it reads a JSON
    beside the TOML."""
    path = wrapper_path(config_path)
    if config.ignored:
        # Without the keys at fault it would not be what the site means.
        return Finding(
            "problem",
            f"{path} is neither compared nor written while the configuration has mistakes",
            "correct them, then hadar check --write",
        )
    if is_current(config, config_path, names):
        if lacks_batches(config_path):
            return Finding(
                "warning",
                f"{path} would be larger than 1 MiB with the speeds at each batch: hbatch compares "
                "GPU types by those at one batch of each model",
                "leave models or batches out of profiles.tables",
            )
        return Finding("ok", f"{path} is up to date for hbatch")
    what = "is missing: hbatch knows neither this site's GPU types nor its controller"
    if path.exists():
        other = "the configuration"
        if is_current(config, config_path):
            # Only what it says of Slurm is another.
            other = "what Slurm says now (ClusterName, its default partition, partitions of groups)"
        what = f"does not fit {other}: hbatch goes by what it says until it is written again"
    return Finding("problem", f"{path} {what}", "hadar check --write")


def _rights(
    config: Config, cluster: Cluster, settings: dict[str, str], user: ControllerUser
) -> Iterator[Finding]:
    slurm_user = settings.get("SlurmUser", "").split("(")[0]
    rights = config.site.rights
    if rights == "sandbox":
        if is_sandbox(config):
            yield Finding("ok", f"sandbox: the controller runs as {me()}")
        else:
            cure = 'set site.rights = "operator", or "user" for one researcher\'s own jobs'
            yield Finding("problem", NO_SANDBOX, cure)
        return
    if user.uid == 0 or user.name == slurm_user:
        yield Finding(
            "problem",
            f"{user.name} has more rights in Slurm than the controller needs",
            "run it as a user of its own with AdminLevel=Operator",
        )
    if rights == "operator" and not user.is_controllers:
        # Another finding says so; the caller needs no rights.
        return
    if rights == "user":
        yield Finding("ok", f"per-user mode: only jobs of {user.name} are steered")
        return
    if settings.get("AccountingStorageType", "").endswith("/none"):
        yield Finding(
            "problem",
            "this Slurm has no accounting database, so no user can be an operator",
            'set site.rights = "user" and let each researcher run hadar for their own jobs',
        )
        return
    try:
        level = cluster.admin_level(user.name)
    except SlurmError as error:
        what = f"whether {user.name} is an Operator is not known"
        yield Finding("problem", f"{what}: {database_message(error)}", database_cure(error))
        return
    if level == "Operator":
        yield Finding("ok", f"{user.name} is an Operator")
    elif not level:
        yield Finding(
            "problem",
            f"the accounting database does not know {user.name}",
            f"sacctmgr add user {user.name} Account=ACCOUNT AdminLevel=Operator",
        )
    else:
        yield Finding(
            "problem",
            f"{user.name} has AdminLevel {level}, not Operator",
            f"sacctmgr modify user {user.name} set AdminLevel=Operator",
        )


def _backfill(config: Config, partitions: list[Partition]) -> Iterator[Finding]:
    ours = config.backfill.partitions
    if not ours:
        yield Finding(
            "warning",
            "backfill is on, but no partition is named for it",
            "set backfill.partitions",
        )
    there = {partition.name: partition for partition in partitions}
    for name in ours:
        if name not in there:
            yield Finding(
                "problem",
                f"backfill.partitions: there is no partition {name}",
                "correct the name, or add the partition in slurm.conf",
            )
            continue
        partition, nodes = there[name], set(there[name].nodes)
        beside = [
            other.priority_tier
            for other in partitions
            if other.name not in ours and nodes & set(other.nodes)
        ]
        if partition.priority_tier >= min(beside, default=partition.priority_tier + 1):
            yield Finding(
                "problem",
                f"partition {name} is not of a lower tier than all others on its nodes: trainings "
                "there would stand in the way of ordinary jobs",
                "give it a lower PriorityTier than theirs, with PreemptType=preempt/partition_prio",
            )
        elif "REQUEUE" not in partition.preempt_mode.upper():
            yield Finding(
                "problem",
                f"partition {name} has PreemptMode={partition.preempt_mode or 'OFF'}: trainings "
                "there would not be requeued",
                f"set PreemptMode=REQUEUE for partition {name}",
            )
        else:
            yield Finding("ok", f"idle nodes train in partition {name}")


def _names(config: Config, user: ControllerUser | None = None) -> Iterator[Finding]:
    """Names in the configuration that nothing answers to. ``user``: as whom files are read; None:
    see :func:`controller_user`."""
    user = user or controller_user(config)
    name = config.controller.policy
    try:
        policy = policies.find(name)
    except UsageError as error:
        yield Finding(
            "problem", f"controller.policy: {error}", "choose one that hadar policies lists"
        )
    else:
        if policy.preempts and not config.guards.preempt:
            yield Finding(
                "warning",
                f"policy {name} is designed to stop running jobs, and guards.preempt is off: no "
                "running job is stopped",
                "set guards.preempt = true, or choose timetable",
            )
        yield from option_findings(config, policy)
    for table in config.profiles.tables:
        if not user.can(table, os.R_OK):
            yield Finding(
                "problem",
                f"profiles.tables: {table} cannot be read by {user.name}",
                f"correct the path, or let {user.name} read it, and enter the folders above it",
            )
    folder = config.slurm.bin_dir
    if folder and not user.can(folder / "scontrol", os.X_OK):
        yield Finding(
            "problem",
            f"slurm.bin_dir: {user.name} cannot run {folder / 'scontrol'}",
            f"let {user.name} run Slurm's commands and enter the folders above them",
        )
    kinds = config.wrapper.default_types.split(",") if config.wrapper.default_types else []
    for kind in kinds:
        if kind not in (ANY, *config.gpu_types):
            yield Finding(
                "problem",
                f"wrapper.default_types: no type {kind!r} in [gpu_types]",
                f"write any, or a list of {', '.join(config.gpu_types)}",
            )
    if config.site.rights == "operator" and not config.site.controller_user:
        yield Finding(
            "warning",
            "site.controller_user is not set: jobs trust the user who last wrote hbatch's file",
            "name the user that the controller runs as",
        )


def _racks(config: Config, cluster: Cluster, partitions: Sequence[Partition]) -> Iterator[Finding]:
    policy, trait = config.controller.policy, policies.Trait
    try:
        uses = policies.find(policy).uses
    except UsageError:
        # A finding of _names says why.
        return
    other = [one for one in partitions if one.defaults.get("Topology")]
    if trait.RACKS in uses and other:
        named = ", ".join(f"{one.name} ({one.defaults['Topology']})" for one in other)
        yield Finding(
            "warning",
            f"partitions with a Topology of their own: {named}. Only Slurm's default topology is "
            "used, by which nodes that it does not name are in no rack (Slurm's source, not run)",
            "describe the switches of all nodes in the topology with cluster_default: true",
        )
    # One that also looks at CPUs, batches or rounds does without racks as well.
    only_racks = trait.RACKS in uses and uses <= {trait.RACKS, trait.MOVES, trait.ORDER}
    if only_racks and not cluster.read_topology():
        yield Finding(
            "warning",
            f"policy {policy} looks at racks, and Slurm shows no leaf switch (topology/tree): all "
            "nodes count as one rack",
            "describe the switches in Slurm's topology, or choose another policy",
        )
