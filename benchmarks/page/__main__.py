"""How soon an open page shows what a tick changed: ``python -m benchmarks.page [--json]``.

A controller that is pretended answers for 5,000 jobs and 2,000 nodes; ``hadar web`` serves it, and
``--viewers`` streams of server-sent events are open, a part of them on the map. Each tick changes
50 jobs. An update takes from the moment that the tick is published to the event's last byte
(``shown``); ``work`` is the part of it after ``hadar web`` has asked for the tick. The CPU times of
an update, of the controller's answers and of ``hadar web`` for all viewers, hang least on what else
the machine does.
"""

import argparse
import gc
import json
import os
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import numpy as np

from benchmarks.page.world import PretendController
from slurm_hadar.controller.service.server import Unchanged

_HADAR = Path(sysconfig.get_path("scripts")) / "hadar"


@dataclass(frozen=True, slots=True)
class Result:
    """Times in s, CPU times of one update; memory in MB: the most that ``hadar web`` had."""

    jobs: int
    nodes: int
    viewers: int
    updates: int
    shown_p50_s: float
    shown_p95_s: float
    work_p50_s: float
    work_p95_s: float
    answer_cpu_s: float
    page_cpu_s: float
    memory_mb: float


class _Viewer(threading.Thread):
    """An open page: when each event came that has another version."""

    def __init__(self, path: Path, query: str, came: "Queue[float]") -> None:
        super().__init__(daemon=True)
        self._path, self._query, self._came = path, query, came

    def run(self) -> None:
        """Reads until the server ends."""
        with socket.socket(socket.AF_UNIX) as page:
            page.connect(str(self._path))
            page.sendall(f"GET /events?{self._query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            # An event ends with an empty line; a large one comes in pieces.
            with page.makefile("rb") as lines:
                for line in lines:
                    if line.startswith(b"data:"):
                        self._came.put(time.monotonic())


class _Asked(PretendController):
    """Notes when the page first asks for what a tick brought."""

    asked_s = 0.0
    cpu_s = 0.0

    def watch(self) -> None:
        """From now on."""
        answer = self.published.answer

        def noted(uid: int, line: bytes) -> bytes | Unchanged:
            if not self.asked_s and b"cluster" in line:
                self.asked_s = time.monotonic()
            began = time.thread_time()
            try:
                return answer(uid, line)
            finally:
                self.cpu_s += time.thread_time() - began

        self.published.answer = noted  # type: ignore[method-assign]


def measure(jobs: int, nodes: int, viewers: int, updates: int) -> Result:
    """Runs it."""
    with tempfile.TemporaryDirectory() as folder:
        world = _Asked(Path(folder), jobs, nodes)
        world.watch()
        # As hadar run does before it answers.
        gc.collect()
        gc.freeze()
        with world:
            argv = [str(_HADAR), "web", "--config", str(world.config_path)]
            page = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
            assert page.stdout is not None
            page.stdout.readline()
            try:
                return _measured(world, page.pid, viewers, updates, (jobs, nodes))
            finally:
                page.terminate()
                page.wait()
                page.stdout.close()


def _measured(world: _Asked, pid: int, viewers: int, updates: int, size: tuple[int, int]) -> Result:
    came: Queue[float] = Queue()
    queries = ("view=queue", "view=nodes", "view=queue&sort=done", "view=nodes&colour=type")
    for number in range(viewers):
        _Viewer(world.site.web_socket, queries[number % len(queries)], came).start()
    for _ in range(viewers):
        came.get(timeout=120)
    shown, work = [], []
    before, world.cpu_s = _cpu_s(pid), 0.0
    for _ in range(updates):
        world.asked_s = 0.0
        published = world.tick()
        last = [came.get(timeout=120) for _ in range(viewers)]
        shown += [one - published for one in last]
        work += [one - world.asked_s for one in last]
        time.sleep(1.5)
    cpu = (world.cpu_s / updates, (_cpu_s(pid) - before) / updates)
    status = Path(f"/proc/{pid}/status").read_text()
    most = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return Result(
        *size,
        viewers,
        updates,
        shown_p50_s=float(np.percentile(shown, 50)),
        shown_p95_s=float(np.percentile(shown, 95)),
        work_p50_s=float(np.percentile(work, 50)),
        work_p95_s=float(np.percentile(work, 95)),
        answer_cpu_s=cpu[0],
        page_cpu_s=cpu[1],
        memory_mb=int(most.split()[1]) / 1024,
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints one line, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--viewers", type=int, default=12)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.jobs, given.nodes, given.viewers, given.updates)
    if given.json:
        print(json.dumps(asdict(found)))
    else:
        for name, value in asdict(found).items():
            print(f"{name:14} {value:.3f}" if isinstance(value, float) else f"{name:14} {value}")


if __name__ == "__main__":
    main()
