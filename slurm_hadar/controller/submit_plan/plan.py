"""Where a submit would go: Slurm's answer to it, the policy's, and a row per GPU type."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import allowed_partitions
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.constraints import met, readable, with_feature
from slurm_hadar.controller.snapshot.eligibility import (
    ControllerHistory,
    SchedulableJob,
    batch_of,
    profile_key,
)
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    as_submitted,
    resource_request,
)
from slurm_hadar.controller.snapshot.sources import Sources
from slurm_hadar.controller.snapshot.view_builder import snapshot_of
from slurm_hadar.controller.snapshot.whole_nodes import WholeNodes
from slurm_hadar.controller.submit_plan.hypothetical_job import (
    ID,
    Asked,
    Asking,
    copy_of_store,
    count_option,
    job_of,
    place_in,
)
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.slurm.cluster import open_cluster
from slurm_hadar.slurm.expected_start import Start

_MOST_ROWS = 24
"""Each costs one question to Slurm."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit that is not sent. ``start``: when Slurm alone would start it, with more options of
    sbatch behind all others; ``listed``: the partitions that hbatch would name.

    ``words``: what sbatch would get; ``why``: it is not ``managed`` for this reason; ``notes``:
    what its owner should know.
    """

    asked: Asked
    start: Callable[[Sequence[str]], Start]
    listed: Sequence[str]
    words: Sequence[str]
    managed: bool
    why: str
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A GPU type and a number of them. Times in s since the epoch, ``takes_s`` in s.

    ``samples_per_s`` and ``takes_s`` are None where the model's speed is unknown, or how much
    there is to do; ``finish_s`` is then the latest that the time limit allows, if it has one.
    """

    gpu_type: str
    gpus: int
    start: Start
    samples_per_s: float | None
    source: str
    takes_s: float | None
    finish_s: float | None
    in_limit: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """All that is shown. ``gpus``, ``nodes``, ``reason``: where the policy expects it to start now.
    ``controller_active``: a controller acts, one tick every ``interval_s``."""

    words: Sequence[str]
    managed: bool
    why: str
    controller_active: bool
    alone: Start
    now_s: float
    interval_s: float = 0.0
    gpus: Mapping[str, int] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    reason: str = ""
    rows: Sequence[PlanRow] = ()
    time_limit_s: float | None = None
    notes: Sequence[str] = ()


def plan_submit(submission: Submission, config: Config) -> SubmitPlan:
    """Ask Slurm and the policy about it. ``controller_active`` is left open.

    Raises HadarError where Slurm does not answer.
    """
    alone = _alone(submission)
    notes = [*submission.notes]
    cluster = open_cluster(config.slurm)
    asked = replace(submission.asked, settings=cluster.read_config())
    with copy_of_store(config) as (store, copied):
        controller = Asking(
            config,
            cluster,
            store,
            lambda observation, priority: job_of(
                asked, observation.partitions, observation.now, priority
            ),
        )
        report = controller.plan()
        job = report.observation.jobs[ID]
        would_be = submission.managed and not alone.refused
        gpus, nodes, reason = place_in(report, ID) if would_be else ({}, (), "")
        rows: list[PlanRow] = []
        want = resource_request(job, Steering(), config)
        if isinstance(want, ResourceRequest):
            want = as_submitted(job, Steering(), want)
            want = WholeNodes(report.observation).fitted(job, want)
        if not alone.refused and not isinstance(want, str):
            question = _Question(
                submission, config, report.observation, controller.rates, job, want
            )
            rows = _rows(question, gpus, alone)
    if rows and not copied:
        notes.append("only the controller can read measured speeds: these are from the tables")
    if "array" in asked.held:
        notes.append("this plan is for one task of the array")
    return SubmitPlan(
        words=submission.words,
        managed=submission.managed,
        why=submission.why,
        controller_active=False,
        alone=alone,
        now_s=report.observation.now,
        interval_s=config.controller.interval_s,
        gpus=gpus,
        nodes=nodes,
        reason=reason,
        rows=rows,
        time_limit_s=job.time_limit_s if job.time_limit_s < math.inf else None,
        notes=notes,
    )


def _alone(submission: Submission) -> Start:
    """When Slurm alone would start it. Of a list Slurm tells of the first partition only, even
    where the job starts earlier in another."""
    found = [submission.start([f"--partition={name}"]) for name in submission.listed]
    found = found or [submission.start(())]
    return min(found, key=lambda start: (bool(start.refused), start.start_s))


@dataclass(frozen=True, slots=True)
class _Question:
    """The job of a submit among all others, and what it wants."""

    submission: Submission
    config: Config
    observation: Observation
    rates: Rates
    job: Job
    want: ResourceRequest


def _rows(question: _Question, chosen: Mapping[str, int], alone: Start) -> list[PlanRow]:
    """``chosen``: the GPUs by type that the policy chose; ``alone``: as in :class:`SubmitPlan`."""
    nothing = ControllerHistory()
    sources = Sources(
        question.observation, question.config, question.rates, nothing, in_limit=False
    )
    shown = snapshot_of(sources, {ID: SchedulableJob(question.job, question.want)}, {})
    possible = shown.view.jobs.rate[0] > 0
    cells = [
        (kind, count)
        for r, kind in enumerate(shown.view.types)
        for count in counts_shown(
            [n for n, may in zip(shown.view.counts, possible[r], strict=True) if may],
            question.want,
            _most_on_a_node(kind, question.observation),
            chosen.get(kind, 0) if len(chosen) == 1 else 0,
        )
    ]
    cells.sort(key=lambda cell: chosen != {cell[0]: cell[1]})
    found = []
    for kind, count in cells[:_MOST_ROWS]:
        more = _asked_for(kind, count, question)
        if more is not None:
            start = question.submission.start(more)
            same = (start.nodes, start.partition) == (alone.nodes, alone.partition)
            if same and count == question.want.count and not start.refused:
                # Slurm's answer is of the moment: asked twice, it may name two times for one place.
                start = alone
            found.append(_row(kind, count, start, question, chosen == {kind: count}))
    return sorted(found, key=lambda row: row.finish_s or math.inf)


def counts_shown(
    possible: Sequence[int], want: ResourceRequest, most: int, chosen: int
) -> list[int]:
    """The least and the most of the numbers of GPUs that are ``possible``, and the ``chosen`` one
    (0: none). ``most``: GPUs of the largest node; a job on one node has no more."""
    open_ = [count for count in possible if count in want.counts]
    if want.most_nodes == 1:
        open_ = [count for count in open_ if count <= most] or open_[:1]
    return sorted({*open_[:1], *open_[-1:], *({chosen} & {*possible})})


def _most_on_a_node(kind: str, observation: Observation) -> int:
    return max((node.gpus.get(kind, 0) for node in observation.nodes.values()), default=0)


def _asked_for(kind: str, count: int, question: _Question) -> list[str] | None:
    """Options that pin the job to a type and a number of GPUs; None where it may not go there."""
    config, observation, job, want = (
        question.config,
        question.observation,
        question.job,
        question.want,
    )
    groups = config.partitions.groups if job.managed else {}
    plain = readable(want.constraint)
    may = {
        node.name
        for node in observation.nodes.values()
        if kind in node.gpus
        and node.name not in job.excluded_nodes
        and (not plain or met(want.constraint, frozenset(node.features)))
    }
    names = [
        partition.name
        for partition in allowed_partitions(job, want.partitions, observation.partitions, groups)
        if may.intersection(partition.nodes)
    ]
    if not names:
        return None
    more = []
    if set(names) != set(job.partitions):
        more.append("--partition=" + ",".join(names))
    if not job.request.typed and plain:
        feature = config.gpu_types[kind].feature if kind in config.gpu_types else kind
        more.append(f"--constraint={with_feature(want.constraint, feature)}")
    if count != want.count:
        each = count // want.nodes if want.whole else count
        option = count_option(question.submission.asked.held, each)
        more += [option] if option else []
    return more


def _row(kind: str, count: int, start: Start, question: _Question, chosen: bool) -> PlanRow:
    job, rates = question.job, question.rates
    model, batch = profile_key(job), batch_of(job)
    rate = None
    if rates.anchored(model):
        rate = float(rates.rates((job.uid, model, batch), (kind,), (count,))[0][0, 0]) or None
    total = job.declaration.total_samples if job.declaration else 0
    takes = total / rate if rate and total else None
    limit_s = chaining.longest(job, question.config, chaining.NONE).time_limit_s
    longest = min(takes, limit_s) if takes is not None else job.time_limit_s
    return PlanRow(
        gpu_type=kind,
        gpus=count,
        start=start,
        samples_per_s=rate,
        source=rates.source((job.uid, model, batch), (kind, count)),
        takes_s=takes,
        finish_s=None if start.refused or longest == math.inf else start.start_s + longest,
        in_limit=takes is None or takes <= limit_s,
        chosen=chosen,
    )
