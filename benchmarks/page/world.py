"""A controller that answers on its socket without a Slurm: jobs and nodes made by rule."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slurm_hadar import config as configuration
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.service.published import Published
from slurm_hadar.controller.service.server import UserServer
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job, JobState
from slurm_hadar.domain.node import Node, Partition
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.rates import open_rates

TYPES = ("v100", "p100", "k80")
USERS = (("ann", 1000), ("bob", 1001), ("eve", 1002))
"""Names and UIDs of the jobs' owners."""
_SITE = """
[site]
name = "pretend"
rights = "sandbox"
state_dir = "{folder}/state"
exchange_dir = "{folder}/exchange"
[controller]
interval_s = {interval_s}
{more}
[gpu_types.v100]
memory_gb = 16
[gpu_types.p100]
memory_gb = 16
[gpu_types.k80]
memory_gb = 12
"""
_PER_NODE, _PER_JOB = 4, 2
_NAMES = ("resnet50", "bert-large", "übung 训练", "a" * 60)
_DECLARED = Declaration(types=("any",), checkpoint="yes", model="resnet50", samples=1_000_000)


class PretendController:
    """Serves while it is entered; :meth:`tick` publishes what another tick would."""

    def __init__(
        self,
        folder: Path,
        jobs: int,
        nodes: int,
        private: Sequence[str] = (),
        more: str = "",
    ) -> None:
        self.config_path = folder / "hadar.toml"
        self.names: Sequence[str] = _NAMES
        self.users: Sequence[tuple[str, int]] = USERS
        self.site = self._site(folder, more)
        self._jobs, self._nodes, self._private = jobs, nodes, frozenset(private)
        self._began = time.time()
        self._ticks = 0
        self._rates = open_rates(self.site)
        self._server: UserServer | None = None
        self.published = Published(self.site, os.getuid())

    def _site(self, folder: Path, more: str) -> Config:
        for name in ("state", "exchange"):
            (folder / name).mkdir(mode=0o700)
        self.config_path.write_text(_SITE.format(folder=folder, interval_s=60, more=more))
        return configuration.load(self.config_path)

    def __enter__(self) -> Self:
        self.tick()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Answer."""
        self._server = UserServer(
            self.site.status_socket, self.published.answer, self.published.close
        )
        self.published.on_news = self._server.wake
        self._server.__enter__()

    def stop(self) -> None:
        """Answer no more, as a controller that died."""
        if self._server is not None:
            self.published.on_news = lambda: None
            self._server.__exit__(None, None, None)
            self._server = None

    def tick(self) -> float:
        """One job in a hundred that waited has begun since; when that was published, s of
        ``time.monotonic``."""
        self._ticks += 1
        seen = self.seen()
        view = take_snapshot(seen, self.site, self._rates, ControllerHistory())
        waiting = dict.fromkeys(view.schedulable, "no GPU that it can use is free")
        first = next(iter(waiting), None)
        placed = {first: Placement({"v100": 1}, reason="ends soonest there")} if first else {}
        plan = Plan(placed, {id_: why for id_, why in waiting.items() if id_ != first})
        write_heartbeat(self.site.site.exchange_dir, "act", 60.0)
        report = TickReport(seen, view, plan, PlanDiff(()), True, private=self._private)
        now = time.monotonic()
        self.published.publish(report)
        return now

    def moved(self, job: str) -> None:
        """The journal has a move of that job."""
        store = Store.open(self.site.site.state_dir)
        details = {"gpus": {"v100": 2}, "from": {"k3": {"k80": 2}}, "restarts": 0}
        entry = store.begin(job, "move", "asked", time.time() - 3600, details)
        store.end(entry, "moved", time.time() - 3500)
        store.close()

    def seen(self) -> Observation:
        """What this tick sees."""
        now = time.time()
        places = [number for number in range(self._nodes) for _ in range(_PER_NODE // _PER_JOB)]
        begun = min(len(places) * 4 // 5, self._jobs * 4 // 5) + self._ticks * self._jobs // 100
        begun = min(begun, len(places), self._jobs)
        used = [0] * self._nodes
        jobs = {}
        for number in range(self._jobs):
            where = places[number] if number < begun else None
            if where is not None:
                used[where] += _PER_JOB
            found = self._job(number, where, now)
            jobs[found.id] = found
        nodes = {one.name: one for one in (self._node(n, used[n]) for n in range(self._nodes))}
        running = [one for one in jobs.values() if one.state is JobState.RUNNING]
        return Observation(
            now=now,
            jobs=jobs,
            nodes=nodes,
            partitions={"gpu": Partition("gpu", tuple(nodes))},
            progress={one.id: _progress(one, now) for one in running},
        )

    def _node(self, number: int, used: int) -> Node:
        kind = TYPES[number % len(TYPES)]
        usable = number % 10 != 9
        return Node(
            name=_name(number),
            gpus={kind: _PER_NODE},
            gpus_used={kind: used},
            features=(kind,),
            partitions=("gpu",),
            cpus=32,
            cpus_used=used,
            memory_mb=256_000,
            state="MIXED" if usable else "DOWN+NOT_RESPONDING",
            usable=usable,
        )

    def _job(self, number: int, where: int | None, now: float) -> Job:
        user, uid = self.users[number % len(self.users)]
        dice = random.Random(number)
        begin = self._began - dice.uniform(60, 80_000)
        kind = TYPES[(where or 0) % len(TYPES)]
        return Job(
            id=str(1000 + number),
            raw_id=1000 + number,
            uid=uid,
            user=user,
            name=self.names[number % len(self.names)],
            state=JobState.PENDING if where is None else JobState.RUNNING,
            slurm_state="PENDING" if where is None else "RUNNING",
            reason="Priority" if where is None else "",
            account="ai",
            partitions=("gpu",),
            priority=10_000 - number,
            submit_s=begin - 600,
            eligible_s=begin - 600,
            start_s=now + 600 + number if where is None else begin,
            end_s=0.0 if where is None else begin + 200_000,
            time_limit_s=200_000.0,
            nodes=() if where is None else (_name(where),),
            gpus={} if where is None else {_name(where): {kind: _PER_JOB}},
            request=GpuRequest(per_node={UNTYPED: _PER_JOB}),
            declaration=_DECLARED,
        )


def _name(number: int) -> str:
    return f"{TYPES[number % len(TYPES)][0]}{number + 1}"


def _progress(job: Job, now: float) -> Progress:
    return Progress(
        job=job.id, time=now, restarts=0, host=job.nodes[0], pid=1, in_step=True,
        started=job.start_s, model="resnet50", samples=int(now - job.start_s) * 10, rate=10.0,
        window_s=60.0, batch=64, gpus=_PER_JOB,
    )  # fmt: skip
