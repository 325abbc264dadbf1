"""Runs the demonstration: one workload three times on a sandbox each, one table, one page."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar import templates
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.demo.watch import RunObserver
from slurm_hadar.demo.workload import TYPES, DemoJob, base_rates, trainings
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports import compare, text, timeline
from slurm_hadar.reports.run import Run
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

_TIMEOUT_S = 420.0
_LAYOUT = Layout(groups=tuple(NodeGroup(kind[0], 1, kind, 2) for kind in TYPES))
_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Manner:
    """One way of submitting the workload."""

    key: str
    name: str
    description: str
    command: str
    request: Callable[[DemoJob], Sequence[str]]
    managed: bool = False


MANNERS = (
    Manner(
        "typed",
        "Slurm, as people type it",
        "sbatch --gres=gpu:TYPE:1, each user asks for the type they know",
        "sbatch",
        lambda job: (f"--gres=gpu:{job.usual}:1",),
    ),
    Manner(
        "careful",
        "Slurm, careful user",
        "sbatch --gres=gpu:1 in a partition of all nodes: whichever GPU is free first",
        "sbatch",
        lambda job: (),
    ),
    Manner(
        "hadar",
        "slurm-hadar",
        "hbatch with the same scripts; types=any, checkpoint=yes",
        "hbatch",
        lambda job: (),
        managed=True,
    ),
)


def show(folder: Path, seed: int = 0, quiet: bool = False, scale: float = 1.0) -> dict[str, object]:
    """Run all manners, print the table, write the page; the comparison as plain data.

    Raises HadarError when Slurm does not start or jobs do not end in time.
    """
    say = _Teller(quiet)
    work = trainings(scale)
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for number, manner in enumerate(MANNERS, 1):
        say.line(f"[{number}/{len(MANNERS)}] {manner.name}: {manner.description}")
        runs.append(one_run(folder / manner.key, manner, work, seed, say))
        say.done()
    page = folder / "hadar-demo.html"
    page.write_text(
        timeline.page(
            runs,
            f"{len(work)} trainings on {2 * len(TYPES)} GPUs of three types",
            (
                "Pretend GPUs on one machine: real Slurm, real PyTorch on the CPU, slowed to the "
                "speeds of real GPUs. The true speeds differ from the profile that hadar was given "
                "by up to 25% per model and type.",
            ),
        )
    )
    if not quiet:
        console = text.console()
        console.print(compare.table(runs))
        console.print(compare.verdict(runs))
        console.print(f"The timelines: {page}")
    return {**compare.as_dict(runs), "page": str(page)}


def one_run(
    folder: Path,
    manner: Manner,
    work: Sequence[DemoJob],
    seed: int,
    say: "_Teller",
) -> Run:
    """Submit the workload in one manner on a fresh sandbox and follow it to the end."""
    shutil.rmtree(folder, ignore_errors=True)
    scripts = folder / "jobs"
    scripts.mkdir(parents=True)
    with ExitStack() as stack:
        box = Sandbox.up(
            folder / "slurm",
            layout=_LAYOUT,
            options=SandboxOptions(
                seed=seed,
                base_rates=base_rates(work),
                mode="act" if manner.managed else "observe",
                settings={"controller": {"interval_s": _INTERVAL_S}},
            ),
        )
        stack.callback(box.down)
        site = configuration.load(box.config_path)
        write_wrapper_site(site, box.config_path)
        environment = {
            **os.environ,
            **box.env,
            "HADAR_EXCHANGE": str(site.site.exchange_dir),
            "HADAR_CONTROLLER_UID": str(site.controller_uid),
        }
        check = _nothing_to_check
        if manner.managed:
            check = stack.enter_context(_controller(environment, folder / "hadar.log"))
            address = stack.enter_context(live_page(environment))
            if address:
                say.line(f"    live page while this run lasts: {address}")
        cluster = open_cluster(site.slurm)
        nodes = cluster.read_nodes()
        watch = RunObserver(cluster, site.site.exchange_dir, os.getuid(), time.time())
        for job in sorted(work, key=lambda job: job.arrival_s):
            while time.time() - watch.began < job.arrival_s:
                time.sleep(0.2)
            id_ = _submit(manner, job, scripts, environment)
            watch.submitted[id_] = (job.name, time.time())
        watch.until_done(_TIMEOUT_S, say.progress, check)
        return watch.run(manner.name, manner.description, nodes)


def script(job: DemoJob, folder: Path) -> str:
    """The batch script of a training, the same in every run; its #HADAR lines mean nothing to
    sbatch."""
    return templates.render(
        "pytorch_single",
        {
            "job_name": job.name,
            "output": str(folder / f"{job.name}.out"),
            "time": "30",
            "gres": "gpu:1",
            "command": [
                sys.executable,
                str(_training_script()),
                f"--model={job.model}",
                f"--batch={job.batch}",
                f"--samples={job.samples}",
                f"--checkpoint={folder / job.name}.pt",
                f"--data={folder / 'digits.npy'}",
                "--every=30",
            ],
            "hadar": [
                f"model={job.model}",
                "types=any",
                f"batch={job.batch}",
                f"samples={job.samples}",
                "checkpoint=yes",
                "restart_cost=8",
            ],
        },
    )


def _submit(manner: Manner, job: DemoJob, folder: Path, environment: dict[str, str]) -> str:
    path = folder / f"{job.name}.sh"
    path.write_text(script(job, folder))
    command = str(Path(sys.executable).parent / "hbatch") if manner.managed else manner.command
    done = subprocess.run(
        [command, "--parsable", *manner.request(job), str(path)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise HadarError(f"{manner.command} refused job {job.name}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


@contextmanager
def _controller(environment: dict[str, str], log: Path) -> Iterator[Callable[[], None]]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "slurm_hadar.cli.main", "run"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

        def alive() -> None:
            if process.poll() is not None:
                raise HadarError(f"hadar run ended by itself; see {log}")

        try:
            _wait_for(lambda: "tick:" in log.read_text(), alive)
            yield alive
        finally:
            _end(process, 30)


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]", grace_s: float) -> None:
    """TERM, and KILL where it is there after that time, s."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def live_page(environment: dict[str, str]) -> Iterator[str]:
    """``hadar web`` before the controller of that environment: its address; empty where the extra
    ``web`` is not installed, or it does not start."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        yield ""
        return
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "slurm_hadar.cli.main", "web", "--port", "0"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().removeprefix("hadar web: ").strip()
        finally:
            _end(process, 10)


def _nothing_to_check() -> None:
    """Plain Slurm needs no controller of ours."""


def _wait_for(there: Callable[[], bool], alive: Callable[[], None], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not there():
        alive()
        if time.monotonic() > end:
            raise HadarError("hadar run did not make its first tick in time")
        time.sleep(0.2)


def _training_script() -> Path:
    path = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
    if not path.exists():
        raise HadarError("the demonstration needs the examples of a checkout of slurm-hadar")
    return path


class _Teller:
    """Progress on stderr: one line that renews itself on a terminal, one every 10 s elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._last = 0.0

    def line(self, words: str) -> None:
        """A line that stays."""
        if not self._quiet:
            print(words, file=sys.stderr, flush=True)

    def progress(self, words: str) -> None:
        """Where the run is now."""
        if self._quiet:
            return
        if self._terminal:
            print(f"\r    {words}\033[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last >= 10:
            self._last = time.monotonic()
            print(f"    {words}", file=sys.stderr, flush=True)

    def done(self) -> None:
        """The renewed line is over."""
        if self._terminal and not self._quiet:
            print(file=sys.stderr)
