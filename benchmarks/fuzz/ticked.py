"""Whole ticks over what users wrote: read, learned, decided, sent, and printed.

The controller is the real one, with its state file and an exchange folder; Slurm's commands answer
from a scene. Whatever one user writes, the tick ends, and the others' jobs take part in it.
"""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz import seeds
from benchmarks.fuzz.hostile import ANN, BOB, EVE, NOW
from slurm_hadar import config, policies
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import (
    event_log,
    job_explanation,
    job_report,
    log_file,
    tick_text,
)
from slurm_hadar.controller.presentation.overview import Sight, Viewer, controller_state, overview
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot import constraints
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.reports import job_report as story_text
from slurm_hadar.reports import status, text
from slurm_hadar.reports.status import STATE_FILE
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.commands import Answer, Commands

BACKFILL = "bftrainer"
"""Not chosen as ``controller.policy``: it has the idle nodes in every tick."""
POLICIES = tuple(name for name in policies.names() if name != BACKFILL)
CONSTRAINTS = (b"(v100|k80)&ib", b"((a|b)&(c|v100))|k80", b"v100")
_KINDS = {"v": "v100", "p": "p100", "k": "k80"}
_SETTINGS = (
    "ClusterName = made\nSlurmUser = slurm(64030)\nAccountingStorageEnforce = none\n"
    "SlurmctldHost[0] = made(10.0.0.1)\n"
)


def constrained(words: str) -> object:
    """The user's own ``-C``: met or not, or Slurm's business; a type laid over it is read alike."""
    if not constraints.readable(words):
        return None
    found = constraints.met(words, frozenset({"v100", "ib"}))
    laid = constraints.with_feature(words, "k80")
    assert not constraints.readable(laid) or not constraints.met(laid, frozenset({"v100"}))
    return found


def scene(policy: str) -> bytes:
    """Two jobs of eve that run, two that wait, one of these with an earlier release's begin time,
    and one of each kind of ann's and bob's."""
    jobs = [
        _job(EVE, "eve", "v1", "model=resnet18 batch=64 samples=1e6 gpus=1-2"),
        _job("2", "eve", "", "model=resnet18 batch=64:256 samples=1e6 fork=1-2 lease=yes"),
        _job(ANN, "ann", "", "model=resnet18 batch=64 samples=1e6"),
        _job(BOB, "bob", "k1", "model=resnet18 batch=64 samples=1e6"),
        _job("5", "eve", "p2", "model=vgg16 batch=64 backfill=yes nodes=1-2", "idle"),
        _job("6", "eve", "", "model=vgg16 batch=64 backfill=yes nodes=1-2", "idle"),
    ]
    progress = Progress(EVE, NOW - 1, 0, "v1", 7, False, NOW - 600, "m", 640, 12.5, 60.0, 64, 1)
    return json.dumps({"policy": policy, "jobs": jobs, "progress": asdict(progress)}).encode()


def _job(id_: str, user: str, node: str, words: str, partition: str = "gpu") -> dict[str, Any]:
    begin = int(NOW) - 1000
    found: dict[str, Any] = {
        "job_id": int(id_), "user_id": os.getuid() if user == "eve" else 4_000_000 + len(user),
        "user_name": user, "name": "train", "partition": partition, "account": "phys",
        "comment": f"[hadar1 types=any checkpoint=yes {words}]", "requeue": True,
        "batch_flag": True, "job_state": "PENDING", "state_reason": "Priority", "priority": 1000,
        "submit_time": begin, "eligible_time": begin, "start_time": 0,
        "time_limit": 120, "cpus": 1, "tasks": 1, "node_count": 1, "tres_per_node": "gres:gpu:1",
    }  # fmt: skip
    if "lease=yes" in words:
        ahead = int(NOW) + 250
        found |= {"state_reason": "BeginTime", "eligible_time": ahead, "start_time": ahead}
    if node:
        found |= {
            "job_state": "RUNNING", "state_reason": "None", "eligible_time": begin,
            "start_time": begin, "end_time": int(NOW) + 6200, "nodes": node,
            "gres_detail": [f"gpu:{_KINDS[node[0]]}:1(IDX:0)"],
        }  # fmt: skip
    return found


def _nodes() -> str:
    used = {"v1": 1, "k1": 1, "p2": 1}
    return "".join(
        f"NodeName={kind}{number} CPUAlloc=0 CPUTot=32 AvailableFeatures={name} Gres=gpu:{name}:2 "
        f"GresUsed=gpu:{name}:{used.get(f'{kind}{number}', 0)}(IDX:N/A) RealMemory=256000 "
        f"AllocMem=0 State=IDLE Partitions=gpu,{name},idle\n"
        for kind, name in _KINDS.items()
        for number in (1, 2)
    )


_PARTITIONS = "".join(
    f"PartitionName={name} MaxTime=UNLIMITED MaxNodes=UNLIMITED MinNodes=0 Nodes={nodes} "
    f"PriorityTier={tier} PreemptMode=REQUEUE State=UP\n"
    for name, nodes, tier in (
        ("gpu", "k[1-2],p[1-2],v[1-2]", 2),
        *((name, f"{kind}[1-2]", 2) for kind, name in _KINDS.items()),
        ("idle", "k[1-2],p[1-2],v[1-2]", 1),
    )
)


@dataclass(frozen=True, slots=True)
class _Answers(Commands):
    """Slurm's commands, answered from what is given; what is sent is taken."""

    shown: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        name: str,
        arguments: Sequence[str] = (),
        *,
        text: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """The answer to a query; nothing, and no complaint, to whatever else."""
        return Answer(0, self.shown.get("".join(arguments[-1:]), ""), "")

    def stream(self, name: str, arguments: Sequence[str], take: Callable[[str], None]) -> Answer:
        """The jobs, which is all that is read this way."""
        take(self.shown["jobs"])
        return Answer(0, "", "")


class _Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)


def ticked(data: bytes, folder: Path) -> list[TickReport]:
    """Two ticks of two controllers on one state file, a minute apart, and all words about them.

    The second one reads what the first one kept.
    """
    trial = json.loads(data)
    for name in ("state", "exchange"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "exchange").mkdir()
    site = _site(folder, trial["policy"])
    (folder / "exchange" / f"progress.{EVE}.aa.json").write_bytes(
        seeds.versioned(trial["progress"])
    )
    slurm = _Answers(
        shown={
            "jobs": json.dumps({"jobs": trial["jobs"]}), "node": _nodes(), "config": _SETTINGS,
            "partition": _PARTITIONS, "--version": "slurm-wlm 22.05.8\n",
            "reservation": "No reservations in the system\n",
        }
    )  # fmt: skip
    reports = [_one(site, slurm, NOW + later) for later in (0.0, 60.0)]
    for report in reports:
        assert not report.snapshot.faults, report.snapshot.faults
        took_part = set(report.snapshot.schedulable)
        assert {ANN, BOB} <= took_part, f"{took_part}: {report.snapshot.excluded}"
    return reports


def _site(folder: Path, policy: str) -> config.Config:
    return config.parse(
        f'[site]\nmode = "act"\nstate_dir = "{folder}/state"\nexchange_dir = "{folder}/exchange"\n'
        f'[controller]\npolicy = "{policy}"\n'
        '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
        "[guards]\npreempt = true\nmin_between_moves_s = 0.0\n"
        f'stop_file = "{folder}/stop"\nmax_queries_per_minute = 100000\n'
        '[backfill]\nenabled = true\npartitions = ["idle"]\n'
        f'[log]\nfile = "{folder}/log"\npeople = "names"\n'
        "[gpu_types.v100]\nmemory_gb = 16\n[gpu_types.p100]\n[gpu_types.k80]\n",
        "made",
    )


def _one(site: config.Config, slurm: Commands, now: float) -> TickReport:
    clock = _Clock(now)
    store = Store.open(site.site.state_dir)
    try:
        controller = Controller(
            site, CommandsCluster(slurm), store, open_rates(site, store.connection), os.getuid(),
            clock, clock.sleep,
        )  # fmt: skip
        report = controller.tick()
        log = log_file.open_log(site)
        assert log is not None
        event_log.write(log, store, report)
        if now > NOW:
            _words(controller, report)
        return report
    finally:
        store.close()


def _words(controller: Controller, report: TickReport) -> None:
    """All that a person or a program may ask after a tick; JSON knows no NaN."""
    lines = [*tick_text.format_tick(report), *tick_text.format_plan(report)]
    for line in [*lines, *tick_text.format_backfill(report)]:
        line.encode()
    sight = Sight(
        report.observation,
        controller.config,
        controller_state(None, report.observation.now),
        STATE_FILE,
        controller.store.decisions.last(),
    )
    found = overview(sight, Viewer(0, everything=True))
    results = [tick_text.summary(report), tick_text.backfill_summary(report)]
    results.append(asdict(found))
    with contextlib.redirect_stdout(io.StringIO()):
        console = text.console()
        for shown in [*status.summary(found, NOW), *status.table(found.rows, 80)]:
            console.print(shown)
        for id_ in (EVE, "2", "5", "6"):
            with contextlib.suppress(UsageError):
                explained = job_explanation.explanation_of(controller, id_)
                results.append(job_explanation.plain(explained))
                console.print(text.explain(explained))
            whole = job_report.of_controller(controller, id_)
            results.append(asdict(whole))
            console.print(story_text.format_report(whole, True))
    for result in results:
        json.dumps(result, allow_nan=False)
