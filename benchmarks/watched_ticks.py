"""How much slower ticks are with everything that watches them: for :mod:`benchmarks.tick`."""

import json
import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.notified_owners import FILE
from slurm_hadar.controller.metrics.export import MetricsExporter
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.service import client
from slurm_hadar.controller.service.published import Published
from slurm_hadar.controller.service.server import UserServer
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse, new_path, write_use


def watched(controller: Controller, site: Config, pairs: int) -> dict[str, object]:
    """Medians in CPU-seconds, with those of Slurm's commands, of ``pairs`` ticks without and with
    what watches, in turn, and the median of what a pair differs by, as a share of the one without;
    the same in seconds of the clock, which other programs of the machine lengthen."""
    text = site.site.state_dir / "hadar.prom"
    alerts = site.alerts.model_copy(
        update={"enabled": True, "preempt_held_idle_s": 3600.0, "held_idle_s": 3600.0}
    )
    metrics = site.metrics.model_copy(update={"textfile": text})
    full = site.model_copy(update={"alerts": alerts, "metrics": metrics})
    exporter, published = MetricsExporter(full), Published(full, os.getuid())
    alone, with_all, shares = [], [], []
    note = controller.gpus.owners.note
    sampled = 0
    published.publish(controller.tick())
    with UserServer(full.status_socket, published.answer, published.close) as server:
        published.on_news = server.wake
        asking = _Top(full)
        for _ in range(pairs):
            controller.gpus.owners.note = lambda jobs, now: None  # type: ignore[method-assign]
            controller.config = site
            began = _now()
            report = controller.tick()
            alone.append(_since(began))
            controller.gpus.owners.note = note  # type: ignore[method-assign]
            controller.config = full
            with _samples(full, report.observation) as sampled:
                asking.ask.set()
                began = _now()
                report = controller.tick()
                exporter.learn(report, controller.store, controller.backoff.interval_s)
                published.publish(report)
                with_all.append(_since(began))
            shares.append([b / a - 1 for a, b in zip(alone[-1], with_all[-1], strict=True)])
        answers = asking.end()
    cpu, clock = ([row[n] for row in shares] for n in range(2))
    return {
        "alone_cpu_s": statistics.median(row[0] for row in alone),
        "watched_cpu_s": statistics.median(row[0] for row in with_all),
        "share_cpu": statistics.median(cpu),
        "share_clock": statistics.median(clock),
        "shares": shares,
        "sampled": sampled,
        "answers": answers,
    }


def _now() -> list[float]:
    """CPU-seconds of this process and of the commands that it ran, and the clock."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return [sum(one.ru_utime + one.ru_stime for one in used), time.perf_counter()]


def _since(began: list[float]) -> list[float]:
    return [now - then for now, then in zip(_now(), began, strict=True)]


class _Top:
    """Asks the socket as ``hadar top`` does, once when ``ask`` is set."""

    def __init__(self, site: Config) -> None:
        self.ask, self._stop, self.answers = threading.Event(), threading.Event(), 0
        self._site = site
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.ask.wait(0.1):
                self.ask.clear()
                question: dict[str, object] = {"version": 1, "command": "status"}
                # What it makes of the answer is the work of another process.
                found = client.ask_for_text(self._site.status_socket, os.getuid(), question)
                self.answers += found is not None

    def end(self) -> int:
        """How many answers there were."""
        self._stop.set()
        self._thread.join()
        return self.answers


@contextmanager
def _samples(site: Config, seen: Observation) -> Iterator[int]:
    """Inside: a file of samples for each running managed job, and owners who know that their jobs
    are idle; how many. As the one who ticks: the jobs are theirs."""
    folder, now = site.site.exchange_dir, time.time()
    use = GpuUse("G", "P", 600.0, 0.5, 1000.0, 2000.0, 250.0, 500.0, 100.0, 0.0)
    paths, first = [], {}
    for job in seen.jobs.values():
        if not (job.managed and job.state is JobState.RUNNING and job.nodes):
            continue
        path = new_path(folder, str(job.raw_id))
        write_use(path, NodeUse(str(job.raw_id), job.nodes[0], 1, now + 1, False, (use,)))
        paths.append(path)
        first[f"{job.user}|held_idle|{job.id}"] = now
    notified = site.site.state_dir / FILE
    notified.write_text(json.dumps({"first": first, "looked_s": now, "idle": {}}))
    try:
        yield len(paths)
    finally:
        notified.unlink()
        for path in paths:
            path.unlink()
