"""Domain records made by hand: a small cluster, its jobs, and a tick's decision about them."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from looking import Looking

from slurm_hadar import config as configuration
from slurm_hadar import policies
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.hints import hints
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, PlanDiff, diff
from slurm_hadar.controller.observation.observed import Observation, remember
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.resource_request import ResourceRequest, resource_request
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job, JobState
from slurm_hadar.domain.node import Node, Partition
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.hosts import expand
from slurm_hadar.slurm.interface import Cluster
from slurm_hadar.slurm.traffic import Traffic
from slurm_hadar.slurm.tres import parse_gpus

NOW = 1_000_000.0
SITE = """
[guards]
min_between_moves_s = 0.0
[gpu_types.v100]
memory_gb = 16
[gpu_types.p100]
memory_gb = 16
[gpu_types.k80]
memory_gb = 12
"""


def config(more=""):
    return configuration.parse(more + SITE, "test")


CONFIG = config()
RATES = open_rates(CONFIG)
TYPES = {"v": "v100", "p": "p100", "k": "k80"}


def node(name, gpus=2, **more):
    kind = TYPES[name[0]]
    return Node(
        name=name,
        **{
            "gpus": {kind: gpus},
            "features": (kind,),
            "partitions": ("gpu", kind),
            "cpus": 32,
            "memory_mb": 256_000,
            "state": "IDLE",
            **more,
        },
    )


def nodes(**used):
    """Two nodes of each type with two GPUs; ``v1=1``: so many of that node's GPUs are in use."""
    found = []
    for name in ("v1", "v2", "p1", "p2", "k1", "k2"):
        kind = TYPES[name[0]]
        found.append(node(name, gpus_used={kind: used.get(name, 0)}))
    return found


def job(id_="1", state=JobState.PENDING, **more):
    """A managed job of one untyped GPU that waits for its turn."""
    raw = int(id_.replace("+", "_").partition("_")[0])
    usual = {
        "uid": 1000,
        "user": "ann",
        "name": "train",
        "slurm_state": state.name,
        "partitions": ("gpu",),
        "priority": 1000,
        "submit_s": NOW - 60,
        "time_limit_s": 7200.0,
        "request": GpuRequest(per_node={UNTYPED: 1}),
        "declaration": Declaration(types=("any",), checkpoint="yes"),
    }
    if state is JobState.PENDING:
        usual |= {"reason": "Priority", "eligible_s": NOW - 60, "start_s": 0.0}
    else:
        usual |= {"eligible_s": NOW - 1000, "start_s": NOW - 1000}
    return Job(id=id_, raw_id=raw, state=state, **{**usual, **more})


def ordinary(id_="9", **more):
    """A job outside our management that waits for its turn."""
    usual = {
        "declaration": None,
        "reason": "Priority",
        "eligible_s": NOW - 30,
        "start_s": 0.0,
        "priority": 2000,
        "user": "bob",
        "uid": 1001,
    }
    return job(id_, **{**usual, **more})


def running(id_, where, **more):
    """A managed job that runs; ``where``: node -> type -> GPUs."""
    return job(id_, JobState.RUNNING, gpus=where, nodes=tuple(where), node_count=len(where), **more)


def as_cluster(one: object) -> Cluster:
    """A stand-in that has what a test needs of a cluster."""
    return cast(Cluster, one)


def request_of(job_, steered, site=None) -> ResourceRequest:
    """What a job asks for that can be steered."""
    found = resource_request(job_, steered, site)
    assert isinstance(found, ResourceRequest), found
    return found


def partitions_of(found):
    names = dict.fromkeys(p for n in found for p in n.partitions)
    return [Partition(p, tuple(n.name for n in found if p in n.partitions)) for p in names]


def observation(jobs, found=None, partitions=None, **more):
    found = nodes() if found is None else found
    shown = {j.id: j for j in jobs}
    reports = {j.id: first_report(j) for j in jobs if reports_itself(j)}
    return Observation(
        now=more.pop("now", NOW),
        jobs=shown,
        nodes={n.name: n for n in found},
        partitions={p.name: p for p in partitions or partitions_of(found)},
        steering=more.pop("steering", remember(shown)),
        progress=more.pop("progress", reports),
        **more,
    )


def reports_itself(job_):
    """Whether a job runs with our runtime, which reports as soon as it has loaded."""
    declared = job_.declaration
    return job_.state is JobState.RUNNING and declared is not None and declared.habit == "yes"


def first_report(job_):
    """What a training reports before its first step."""
    return Progress(
        job=job_.id, time=NOW, restarts=job_.restarts, host="v1", pid=1, in_step=False,
        started=job_.start_s, model="", samples=0, rate=0.0, window_s=0.0, batch=0, gpus=1,
    )  # fmt: skip


def look(observed, site=CONFIG, past=None):
    return take_snapshot(observed, site, RATES, past or ControllerHistory())


def dictate(view, want):
    """A plan with these placements: job -> type -> GPUs."""
    placements = {
        id_: want[id_]
        if isinstance(want[id_], Placement)
        else Placement(want[id_], reason="dictated")
        for id_ in view.jobs.ids
        if id_ in want
    }
    return Plan(placements, {id_: "not now" for id_ in view.jobs.ids if id_ not in want})


def decide(observed, want=None, site=CONFIG, moves_left=100, past=None, had=None, refused=None):
    """What a tick would send; ``want`` None: what the site's policy says. ``had``: UID -> moves in
    this hour; ``refused``: see hints."""
    shown = look(observed, site, past)
    if want is None:
        plan, _ = policies.get(site.controller.policy)(shown.view, {})
    else:
        plan = dictate(shown.view, want)
    meant = diff(shown, plan, observed, site, MoveBudget(moves_left, had or {}))
    hinted = hints(shown, plan, HintInput(observed, site, refused or {}))
    return PlanDiff((*hinted, *meant.actions), meant.deferred)


def only(intended, kind=None):
    """The one action of a tick."""
    (action,) = intended.actions
    assert kind is None or action.kind is kind
    return action


def hinted(intended):
    """Job -> the fields that are changed while it waits."""
    return {action.job.id: dict(action.fields) for action in intended.of(Kind.HINT)}


def carried_out(job_, action, now=NOW, reason=None):
    """The job as Slurm shows it after the action: the fields as sent, nothing else."""
    fields = dict(action.fields)
    changes: dict[str, object] = {
        "admin_comment": steering.merge(job_.admin_comment, action.steering)
    }
    request = job_.request
    for key, value in fields.items():
        match key:
            case "Features":
                changes["features"] = value
            case "Partition":
                changes["partitions"] = tuple(value.split(","))
            case "TresPerNode":
                request = replace(request, per_node=parse_gpus(value))
            case "TresPerJob":
                request = replace(request, per_job=parse_gpus(value))
            case "NumNodes":
                changes["node_count"] = int(value.split("-")[0])
            case "NumTasks":
                changes["tasks"] = int(value)
            case "NumCPUs":
                changes["cpus"] = int(value.split("-")[0])
            case "ReqNodeList":
                changes["required_nodes"] = expand(value)
            case "StartTime" if value == "now":
                changes |= {"eligible_s": now, "start_s": 0.0, "reason": reason or "None"}
            case "StartTime":
                begin = float(value.removeprefix("uts"))
                changes |= {"eligible_s": begin, "start_s": begin, "reason": "BeginTime"}
            case _:
                raise AssertionError(f"{key} is not expected here")
    return replace(job_, request=request, **changes)


def after(observed, intended, **more):
    """The cluster as the next tick sees it when Slurm has started nothing yet."""
    jobs = dict(observed.jobs)
    for action in intended.actions:
        if action.kind is not Kind.MOVE:
            jobs[action.job.id] = carried_out(jobs[action.job.id], action, observed.now)
    return observation(
        list(jobs.values()),
        list(observed.nodes.values()),
        list(observed.partitions.values()),
        reservations=observed.reservations,
        now=observed.now + 1,
        **more,
    )


def quiet_slurm():
    """A Slurm without limits and topology; a test itself says what is seen of jobs and nodes."""
    return SimpleNamespace(
        traffic=Traffic(lambda: NOW),
        queries=Counter(),
        read_config=dict,
        read_limits=lambda _: {},
        read_topology=dict,
    )


def that_sees(store, shown, site=CONFIG):
    """A controller that sees ``shown``."""
    controller = Looking(site, quiet_slurm(), store, RATES, 0)
    controller.shown = shown
    return controller
