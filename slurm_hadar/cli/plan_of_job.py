"""``hbatch --hadar-plan``: what would be asked, where the job would go, start and finish per GPU
type. Nothing is submitted. It may be slower than a submit, and import more."""

import math
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_hadar import config as configuration
from slurm_hadar.cli.batch_script import read_handle
from slurm_hadar.cli.handover import is_same, without_pythons_traces
from slurm_hadar.cli.plan_of_job_ask import Asking, Start, copy_of_store, place_in, start_of
from slurm_hadar.cli.plan_of_job_request import ID, Asked, count_option, job_of
from slurm_hadar.cli.plan_of_job_text import PlanRow, SubmitPlan, print_json, print_text
from slurm_hadar.cli.rollout_remark import MAYBE, remark
from slurm_hadar.cli.sbatch_arguments import read_argv
from slurm_hadar.cli.submit import Submit, SubmitOutcome
from slurm_hadar.cli.wrapper_site import controller_is_active
from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import allowed_partitions
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot.constraints import met, readable, with_feature
from slurm_hadar.controller.snapshot.eligibility import (
    ControllerHistory,
    SchedulableJob,
    batch_of,
    profile_key,
)
from slurm_hadar.controller.snapshot.resource_request import ResourceRequest, resource_request
from slurm_hadar.controller.snapshot.view_builder import snapshot_of
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import decode
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import open_cluster

_MOST_ROWS = 24
"""Each costs one question to Slurm."""


def show(submit: Submit, outcome: SubmitOutcome) -> int:
    """Print the plan; returns what ``sbatch --test-only`` returns for the same submit.

    Raises HadarError where Slurm does not answer, UsageError for a wrong configuration.
    """
    if submit.line.unclear:
        print(f"hbatch: there is no plan: {submit.line.unclear}", file=sys.stderr, flush=True)
    if submit.line.unclear or submit.line.refused or submit.header.refused:
        # sbatch answers or refuses this by itself; --test-only, should we be wrong about that.
        submit.line.words.insert(0, "--test-only")
        submit.hand_over()
    if submit.once:
        raise UsageError(f"{outcome.why}; a plan asks Slurm several times: give it a file")
    found = _plan(submit, outcome)
    if "json" in submit.line.asked:
        print_json(found)
    else:
        print_text(found)
    if found.alone.refused:
        sys.stderr.write(found.alone.said)
    return found.alone.code


def _plan(submit: Submit, outcome: SubmitOutcome) -> SubmitPlan:
    ask = _Questions(submit, outcome)
    alone = ask.alone()
    notes = [*outcome.doubts, *(outcome.added.notes if outcome.added else [])]
    if submit.site_trouble:
        notes.append(submit.site_trouble)
    if submit.site is not None and submit.site.rollout is not None and outcome.declaration:
        _, text = remark(submit.site.rollout, submit.held)
        notes += [f"managed {text}" if text == MAYBE else text] if text else []
    config = _config(submit, notes)
    managed = outcome.declaration is not None and not outcome.declaration.off
    why = outcome.why
    if not managed and not why:
        why = "off=yes is declared" if outcome.declaration else "it declares nothing"
    cluster = open_cluster(config.slurm)
    asked = replace(ask.asked, settings=cluster.read_config())
    with copy_of_store(config) as (store, told):
        controller = Asking(
            config,
            cluster,
            store,
            lambda seen, priority: job_of(asked, seen.partitions, seen.now, priority),
        )
        report = controller.plan()
        seen = report.seen
        job = seen.jobs[ID]
        would_be = managed and not alone.refused
        gpus, nodes, reason = place_in(report, ID) if would_be else ({}, (), "")
        rows = [] if alone.refused else _rows(ask, controller, report, job, config, gpus)
        if rows and not told:
            notes.append("only the controller can read measured speeds: these are from the tables")
        if "array" in ask.asked.held:
            notes.append("this plan is for one task of the array")
        return SubmitPlan(
            words=["sbatch", *submit.sbatch_arguments(outcome.added)],
            managed=managed,
            why=why,
            acts=managed
            and submit.site is not None
            and controller_is_active(submit.site, seen.now),
            alone=alone,
            now_s=seen.now,
            interval_s=config.controller.interval_s,
            gpus=gpus,
            nodes=nodes,
            reason=reason,
            rows=rows,
            time_limit_s=job.time_limit_s if job.time_limit_s < math.inf else None,
            notes=notes,
        )


class _Questions:
    """The submit as Slurm is asked about it."""

    def __init__(self, submit: Submit, outcome: SubmitOutcome) -> None:
        self._options = list(outcome.added.options) if outcome.added else []
        self._behind = list(outcome.added.behind) if outcome.added else []
        self._submit = submit
        self._program = submit.program()
        self._environment = without_pythons_traces(submit.environment)
        self._body = _typed_script(submit)
        uid = os.getuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        self.asked = Asked(
            held={
                **dict(read_argv(self._options).options),
                **submit.held,
                **dict(read_argv(self._behind).options),
            },
            # As the job would carry it: the user's own -C and -p stand there too.
            declaration=decode(outcome.added.comment) if outcome.added else None,
            script=submit.name,
            uid=uid,
            user=user,
        )

    def alone(self) -> Start:
        """When Slurm alone would start it. Of a list Slurm tells of the first partition only, even
        where the job starts earlier in another."""
        ours = dict(read_argv(self._behind).options).get("partition") or ""
        found = [self.start([f"--partition={name}"]) for name in ours.split(",") if name]
        found = found or [self.start(())]
        return min(found, key=lambda start: (bool(start.refused), start.start_s))

    def start(self, more: Sequence[str]) -> Start:
        """When Slurm alone would start it with ``more`` options behind all others."""
        line = self._submit.line
        # A quiet sbatch would not say what it is asked.
        typed = [w for w in line.words[: line.end] if w not in ("-Q", "--quiet")]
        words = [*self._options, *typed, *self._behind, *more, *line.words[line.end :]]
        return start_of(self._program, words, self._environment, self._body)


def _typed_script(submit: Submit) -> bytes | None:
    """The script where it comes on standard input; each question needs it anew."""
    if submit.line.script is not None or "wrap" in dict(submit.line.options):
        return None
    return submit.body if submit.name == "stdin" else read_handle(0)


def _config(submit: Submit, notes: list[str]) -> Config:
    """The site's TOML; where there is none that we may read, Slurm as it is on PATH."""
    path = configuration.find()
    try:
        config = configuration.load_believed(path)
    except UsageError as error:
        if os.access(path, os.R_OK):
            raise
        notes.append(f"{error}. Its policy and GPU types are not known here")
        return Config()
    named = submit.environment.get("SLURM_CONF")
    if named and config.slurm.conf and not is_same(named, str(config.slurm.conf)):
        notes.append(f"{path} is ignored: SLURM_CONF names another cluster")
        return Config()
    return config


def _rows(
    ask: _Questions,
    controller: Controller,
    report: TickReport,
    job: Job,
    config: Config,
    chosen: Mapping[str, int],
) -> list[PlanRow]:
    seen, want = report.seen, resource_request(job, Steering())
    if isinstance(want, str):
        return []
    shown = snapshot_of(
        seen,
        config,
        controller.rates,
        ControllerHistory(),
        {ID: SchedulableJob(job, want)},
        {},
        in_limit=False,
    )
    possible = shown.view.jobs.rate[0] > 0
    cells = [
        (kind, count)
        for r, kind in enumerate(shown.view.types)
        for count in _least_and_most(want, possible[r], shown.view.counts)
    ]
    found = []
    for kind, count in cells[:_MOST_ROWS]:
        more = _asked_for(kind, count, ask, seen, config, job, want)
        if more is not None:
            here = chosen == {kind: count}
            found.append(_row(kind, count, ask.start(more), controller, job, here))
    return sorted(found, key=lambda row: row.finish_s or math.inf)


def _least_and_most(
    want: ResourceRequest, possible: Sequence[bool], counts: Sequence[int]
) -> list[int]:
    open_ = [n for n, may in zip(counts, possible, strict=True) if may and n in want.counts]
    return sorted({open_[0], open_[-1]}) if open_ else []


def _asked_for(
    kind: str,
    count: int,
    ask: _Questions,
    seen: Observed,
    config: Config,
    job: Job,
    want: ResourceRequest,
) -> list[str] | None:
    """Options that pin the job to a type and a number of GPUs; None where it may not go there."""
    groups = config.partitions.groups if job.managed else {}
    plain = readable(want.constraint)
    may = {
        node.name
        for node in seen.nodes.values()
        if kind in node.gpus
        and node.name not in job.excluded_nodes
        and (not plain or met(want.constraint, frozenset(node.features)))
    }
    names = [
        partition.name
        for partition in allowed_partitions(job, want.partitions, seen.partitions, groups)
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
        option = count_option(ask.asked.held, count)
        more += [option] if option else []
    return more


def _row(
    kind: str, count: int, start: Start, controller: Controller, job: Job, chosen: bool
) -> PlanRow:
    model, batch, rates = profile_key(job), batch_of(job), controller.rates
    rate = None
    if rates.anchored(model):
        rate = float(rates.rates(model, batch, (kind,), (count,), job.uid)[0][0, 0]) or None
    total = job.declaration.total_samples if job.declaration else 0
    takes = total / rate if rate and total else None
    longest = min(takes, job.time_limit_s) if takes is not None else job.time_limit_s
    return PlanRow(
        gpu_type=kind,
        gpus=count,
        start=start,
        samples_per_s=rate,
        source=rates.source(model, kind, count, batch, job.uid),
        takes_s=takes,
        finish_s=None if start.refused or longest == math.inf else start.start_s + longest,
        in_limit=takes is None or takes <= job.time_limit_s,
        chosen=chosen,
    )
