"""What a managed job may be given, read from its request and its declaration."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.snapshot.constraints import (
    OpaqueConstraint,
    allows,
    readable,
    with_feature,
)
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.declaration_values import MOST_COUNTS, CountList
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.profiles.specs import lookup
from slurm_hadar.slurm.tres import parse_gpus


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What the owner asked for, before we changed anything.

    ``form`` is how GPUs are counted: per node (``--gres``), per job (``--gpus``) or per task.
    ``counts`` are the GPU counts of the whole job that it can get, rising: those that its script
    can run with, or, where the job may not be moved, that of its submit.
    ``types`` empty means any. ``most_nodes`` bounds how far it may spread.
    """

    form: Literal["node", "job", "task"]
    count: int
    counts: tuple[int, ...]
    types: tuple[str, ...]
    nodes: int
    most_nodes: int
    constraint: str
    partitions: tuple[str, ...]
    copies: tuple[int, int] = (1, 1)
    """Least and most nodes on which it may run as copies, with ``count`` GPUs on each; (1, 1) for
    a script that cannot."""
    whole: bool = False
    """It has its nodes alone, with all of their GPUs: each of ``counts`` is that of ``nodes`` whole
    nodes (:mod:`slurm_hadar.controller.snapshot.whole_nodes`), and the request stays as it is."""
    by_type: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Where ``whole``: GPU type -> those of ``counts`` that whole nodes of the type have."""

    @property
    def of_one_type(self) -> bool:
        """Whether Slurm can only run it on GPUs of one type, whatever partition it is in: on one
        node, or with one GPU. Else partitions of one type each would narrow its request. One with
        whole nodes keeps the partition that its owner named."""
        if self.whole:
            return False
        on_one_node = self.form == "node" and self.nodes == 1 and self.most_nodes == 1
        return on_one_node or (self.count == 1 and self.most_nodes == 1)

    @property
    def mixable(self) -> bool:
        """Whether GPUs of several types could serve it: --gpus, on more than one node."""
        return self.form == "job" and self.most_nodes > 1 and len(self.types) != 1


def resource_request(
    job: Job, steered: Steering, config: Config | None = None
) -> ResourceRequest | str:
    """The job's request, or a sentence on why it cannot be steered.

    ``config``: the site's, of which the partitions that stand for others and the features of the
    GPU types count; None: it has neither.
    """
    declaration = job.declaration or Declaration()
    groups = config.partitions.groups if config is not None else {}
    constraint = _constraint(job, steered, config)
    request = _original(job.request, steered.was)
    if request.per_task:
        form, gpus, times = "task", request.per_task, job.tasks
    elif request.per_job:
        form, gpus, times = "job", request.per_job, 1
    elif request.per_node:
        form, gpus, times = "node", request.per_node, job.node_count
    else:
        return "it asks for no GPU"
    if why_not := _why_not(job, steered, constraint):
        return why_not
    nodes = typed_nodes(job, steered)
    copies = _copies(declaration) if form == "node" else (1, 1)
    if copies[1] > 1:
        # Its script runs on any number of nodes; see also as_submitted.
        nodes = 1
    if form != "node" and not declaration.nodes and (nodes > 1 or job.tasks > 1):
        # Slurm spreads these over as many nodes as it likes; a plan for one node may never fit, and
        # one for fewer nodes than asked for would break the script.
        return "it asks for GPUs by job or by task, for several nodes or tasks"
    if job.whole_nodes and (copies[1] > 1 or declaration.backfill or declaration.nodes):
        return "it asks for whole nodes (--exclusive) and declares fork, nodes or backfill"
    if form == "node":
        times = nodes
    count = sum(gpus.values()) * times
    named = tuple(kind for kind in gpus if kind != UNTYPED)
    if len(named) > 1:
        return "it names several GPU types itself"
    kinds = named or tuple(kind for kind in declaration.types if kind != ANY)
    elastic = declaration.gpus is not None and not named and form != "task" and nodes == 1
    # Only a move changes the number.
    elastic = elastic and copies[1] == 1 and declaration.may_move
    counts = _counts(declaration.gpus) if elastic and declaration.gpus else (count,)
    spread = declaration.nodes[1] if declaration.nodes and form == "job" else nodes
    return ResourceRequest(
        form=form,  # type: ignore[arg-type]
        count=count,
        counts=counts,
        types=kinds,
        nodes=nodes,
        most_nodes=max(spread, nodes),
        constraint=constraint,
        partitions=_partitions(job, steered, groups),
        copies=copies,
        whole=job.whole_nodes,
    )


def _why_not(job: Job, steered: Steering, constraint: str) -> str:
    """Why a job cannot be steered, whatever it asks for; empty where it can."""
    if job.required_nodes and "ReqNodeList" not in steered.was:
        return "it names its nodes itself"
    if job.reservation:
        return "it runs in a reservation"
    if job.exclusive and not job.whole_nodes:
        return "it keeps other users off its nodes (--exclusive=user, mcs or topo)"
    return "" if readable(constraint) else "only Slurm can read its constraint"


def as_submitted(job: Job, steered: Steering, want: ResourceRequest) -> ResourceRequest:
    """``want``, of a job that waits for Slurm to start it: until it runs, one with ``fork`` is on
    as many nodes as its owner typed."""
    nodes = typed_nodes(job, steered)
    if want.copies[1] == 1 or nodes == 1:
        return want
    count = want.count * nodes
    return replace(want, nodes=nodes, most_nodes=nodes, count=count, counts=(count,), copies=(1, 1))


def keeps_partition(job: Job, steered: Steering, config: Config) -> bool:
    """Whether a waiting job keeps the partition that its owner typed since it may run as copies,
    which may be on nodes of several types; where the policy makes none, one on several nodes."""
    several = typed_nodes(job, steered) > 1 or policies.makes_copies(config.controller.policy)
    return may_have_copies(job) and several


def typed_nodes(job: Job, steered: Steering) -> int:
    """Nodes that the owner asked for, the least of a range."""
    return int(steered.was.get("NumNodes", str(job.node_count)).partition("-")[0])


def accepts(job: Job, want: ResourceRequest, kind: str, config: Config) -> bool:
    """Whether the owner accepts a GPU type, by its name and its memory."""
    by_name = not want.types or kind in want.types
    return by_name and _is_large_enough(job.declaration or Declaration(), kind, config)


def declares(declaration: Declaration, kind: str, config: Config) -> bool:
    """As :func:`accepts`, of a job whose request names no type, by what its owner declares."""
    by_name = not declaration.types or declaration.accepts(kind)
    return by_name and _is_large_enough(declaration, kind, config)


def excludes(features: str, kinds: Collection[str], config: Config) -> bool:
    """Whether these features keep a job from all of some GPU types."""
    all_ = {gpu.feature for gpu in config.gpu_types.values()}
    try:
        return features != "" and not any(
            allows(features, config.gpu_types[kind].feature, all_)
            for kind in kinds
            if kind in config.gpu_types
        )
    except OpaqueConstraint:
        return False


def _is_large_enough(declaration: Declaration, kind: str, config: Config) -> bool:
    least = declaration.gpu_mem / 1024
    return not least or _memory_gb(kind, config) >= least


def cpus_asked(job: Job) -> int:
    """CPUs that the job needs; of one with whole nodes Slurm shows all that these have while it
    runs."""
    return job.tasks * job.cpus_per_task if job.whole_nodes else job.cpus


def memory_asked_mb(job: Job) -> int:
    """MB that the job needs on all of its nodes, with the CPUs of :func:`cpus_asked`."""
    return job.mem_per_node_mb * job.node_count or job.mem_per_cpu_mb * cpus_asked(job)


def cpus_per_copy(job: Job) -> int:
    """CPUs of each task; copies have one task each."""
    return max(1, -(-job.cpus // job.tasks))


def may_have_copies(job: Job) -> bool:
    """Whether its owner says that it may run as copies."""
    return job.declaration is not None and _copies(job.declaration)[1] > 1


def _copies(declaration: Declaration) -> tuple[int, int]:
    """``fork``; where idle nodes are meant ``nodes`` says the same."""
    if declaration.fork[1] == 1 and declaration.backfill and declaration.nodes:
        return declaration.nodes
    return declaration.fork


def _constraint(job: Job, steered: Steering, config: Config | None) -> str:
    """The user's own -C, as it was submitted or as it was changed since. What hbatch or a plugin
    wrote from ``types`` and ``gpu_mem`` is none: those say it already."""
    declaration = job.declaration or Declaration()
    if "Features" in steered.foreign:
        return job.features
    submitted = steered.was.get("Features", job.features)
    if submitted == declaration.constraint or job.by_partition:
        return submitted
    # Of most jobs there is nothing to compute.
    return declaration.constraint if submitted in _submitted(declaration, config) else submitted


def _submitted(declaration: Declaration, config: Config | None) -> set[str]:
    """The features with which hbatch or a plugin may have submitted the job, ``hadar set`` may have
    given it since, or we may have where its list of partitions was taken back."""
    own = declaration.constraint
    found = {own, declaration.added or own}
    if config is None:
        return found
    for chosen in _of_types(declaration, config):
        several = f"({chosen})" if "|" in chosen else chosen
        found |= {f"{several}&{own}", with_feature(own, several)} if own else {chosen}
    return found


def _of_types(declaration: Declaration, config: Config) -> set[str]:
    """The features that hbatch and the plugins write for ``types`` and ``gpu_mem``."""
    if not declaration.gpu_mem and (not declaration.types or ANY in declaration.types):
        return set()
    types, least = config.gpu_types, declaration.gpu_mem / 1024
    named = [kind for kind in types if not declaration.types or declaration.accepts(kind)]
    # They take a type of unknown memory where none is known to have enough.
    large = [kind for kind in named if types[kind].memory_gb >= least]
    unknown = [kind for kind in named if not types[kind].memory_gb]
    accepted = [kind for kind in named if declares(declaration, kind, config)]
    found = {features_of(kinds, config) for kinds in (large or unknown, accepted)}
    return found - {""}


def features_of(kinds: Iterable[str], config: Config) -> str:
    """The constraint that allows these GPU types."""
    return "|".join(dict.fromkeys(config.gpu_types[kind].feature for kind in kinds))


def _partitions(
    job: Job, steered: Steering, groups: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """The owner's partitions. Of a job that runs Slurm shows only the one in which it does."""
    if "Partition" in steered.was:
        return tuple(steered.was["Partition"].split(","))
    if job.state is not JobState.PENDING and set(job.partitions) <= {*steered.listed}:
        return steered.listed
    declared = job.declaration.partitions if job.declaration else ()
    if job.state is JobState.PENDING or not declared or "Partition" in steered.foreign:
        return job.partitions
    # Which of them it may have, :func:`access.allowed_partitions` says.
    reached = {*declared, *(name for one in declared for name in groups.get(one, ()))}
    return declared if set(job.partitions) <= reached else job.partitions


def believed_partitions(
    job: Job, steered: Steering, groups: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """The partitions that the job's declaration says its owner asked for; empty where Slurm did not
    accept them.

    A Comment is its owner's to write, and an operator's update bypasses what Slurm checks at
    submission. So only one of the site's ``groups`` is believed, of a job in that partition or in
    members of it; or what names no partition but those that Slurm shows.
    """
    declared = job.declaration.partitions if job.declaration else ()
    shown = steered.was["Partition"].split(",") if "Partition" in steered.was else job.partitions
    if set(declared) <= {*shown}:
        return declared
    if len(declared) != 1 or not shown:
        return ()
    return declared if {*shown} <= {*groups.get(declared[0], ())} else ()


def _original(request: GpuRequest, was: Mapping[str, str]) -> GpuRequest:
    if "TresPerJob" in was:
        return GpuRequest(per_job=parse_gpus(was["TresPerJob"]))
    if "TresPerNode" in was:
        return GpuRequest(per_node=parse_gpus(was["TresPerNode"]))
    return request


def may_have(declaration: Declaration | None, count: int, asked: bool) -> bool:
    """Whether ``gpus`` allows a number of GPUs; without ``gpus`` it is that which is ``asked``."""
    span = declaration.gpus if declaration is not None else None
    if span is None:
        return asked
    return count in span if isinstance(span, CountList) else span[0] <= count <= span[1]


def _counts(span: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(span, CountList):
        return tuple(span)
    least, most = span
    if most - least < MOST_COUNTS:
        return tuple(range(least, most + 1))
    powers = [1 << bit for bit in range(20) if least < 1 << bit < most]
    return (least, *powers[-(MOST_COUNTS - 2) :], most)


def _memory_gb(kind: str, config: Config) -> float:
    """GB of one GPU: what the site declares, else the data sheet; 0 where neither has it."""
    said = config.gpu_types[kind].memory_gb if kind in config.gpu_types else 0.0
    known = lookup(kind)
    return said or (known.memory_gb if known else 0.0)
