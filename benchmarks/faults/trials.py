"""Many trials, several sandboxes at a time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from benchmarks.faults.trial import Found, Trial, sandbox


@dataclass(frozen=True)
class Case:
    """Where the controller dies (0: nowhere), when another ticks, and a fault in that one."""

    at: int = 0
    then: str = "never"
    plant: str | None = None


def run_all(folder: Path, cases: Sequence[Case], side_by_side: int) -> list[tuple[Case, Found]]:
    """Run every case; the answers in the order of the cases."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    waiting: SimpleQueue[tuple[int, Case]] = SimpleQueue()
    for number, case in enumerate(cases):
        waiting.put((number, case))
    answers: dict[int, Found] = {}

    def work(worker: int) -> None:
        mine = folder / f"w{worker}"
        mine.mkdir()
        box = sandbox(mine / "box")
        try:
            while not waiting.empty():
                number, case = waiting.get()
                trial = Trial(box, mine / f"t{number}")
                answers[number] = trial.run(case.at, case.then, case.plant)
        finally:
            box.down()

    workers = min(side_by_side, len(cases))
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, worker) for worker in range(workers)]:
            done.result()
    return [(case, answers[number]) for number, case in enumerate(cases)]
