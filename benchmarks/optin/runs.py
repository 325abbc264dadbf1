"""One run: a site comes up, users send their jobs at their times, the site goes down."""

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.optin.records import RunRecord
from benchmarks.optin.site import LAYOUT, MULTIFACTOR, Site, site
from benchmarks.optin.watch import Watch
from benchmarks.optin.workload import Spec, base_rates
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox.layout import Layout
from slurm_hadar.sandbox.options import Settings

_DRAIN_S = 1500.0
_CYCLE_S = 30.0
"""bf_interval."""
_PASSES_LOGGED = "SlurmctldDebug=debug"
"""A line of slurm.conf: slurmctld logs each pass of its main scheduler."""


class Stopped(Exception):
    """A signal ends the benchmark."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is sent. ``sent``: in the order of their arrivals, each with whether it goes through
    hbatch; ``priorities``: lines of slurm.conf; ``settings``: of the site's configuration."""

    label: str
    seed: int
    share: float
    sent: Sequence[tuple[Spec, bool]]
    priorities: Sequence[str] = MULTIFACTOR
    settings: Settings | None = None
    layout: Layout = LAYOUT

    @property
    def file_name(self) -> str:
        """Of its record."""
        return f"{self.label.replace(' ', '_').replace('%', '')}_seed{self.seed}.json"


def mixed(
    label: str, seed: int, share: float, specs: Sequence[Spec], layout: Layout = LAYOUT
) -> Run:
    """The mixed workload, with this part of it (0 to 1) through hbatch: with a larger share the
    same jobs and more. Jobs of one arrival time are sent in another order in each run: else those
    that get a slow GPU would be much the same in all plain runs, and in no other."""
    dice = random.Random(f"{label}/{seed}/order")
    sent = sorted(specs, key=lambda spec: (spec.arrival_s, dice.random()))
    return Run(label, seed, share, [(spec, spec.rank < share) for spec in sent], layout=layout)


def carry_out(run: Run, keep: Path | None, stop: threading.Event) -> RunRecord:
    """Carry it out; its record. ``keep``: a folder for the record, the logs and the journal; all
    else is gone at the end. Raises HadarError, and Stopped once ``stop`` is set."""
    with (
        _folder() as folder,
        site(
            folder, (*run.priorities, _PASSES_LOGGED), run.seed, base_rates(),
            run.layout, run.settings or {},
        ) as here,
    ):  # fmt: skip
        try:
            record = _send(here, run, stop)
        finally:
            if keep is not None:
                here.stop_controller()
                _keep(here, keep / run.file_name.removesuffix(".json"))
    if keep is not None:
        record.write(keep / run.file_name)
    return record


def _send(here: Site, run: Run, stop: threading.Event) -> RunRecord:
    if any(managed for _, managed in run.sent):
        here.start_controller()
    # Each run begins at another point of Slurm's cycles, or two of them would be too much alike.
    stop.wait(random.Random(f"{run.label}/{run.seed}").uniform(0, _CYCLE_S))
    left = list(run.sent)
    began = time.time()
    watch = Watch(here, run.sent, began)

    def step() -> None:
        if stop.is_set():
            raise Stopped
        here.check()
        while left and time.time() - began >= left[0][0].arrival_s and not stop.is_set():
            spec, managed = left.pop(0)
            submit(here, spec, managed)
            watch.submitted[spec.name] = time.time()

    last = max(spec.arrival_s for spec, _ in run.sent)
    watch.follow(step, last + _DRAIN_S)
    return watch.record(run.label, run.seed, run.share)


def submit(here: Site, spec: Spec, managed: bool) -> None:
    """Send it as its owner. Raises HadarError where it is refused."""
    home = here.home(spec.user)
    path = here.folder / f"{spec.name}.sh"
    path.write_text(spec.script(home))
    command = here.command("hbatch" if managed else "sbatch")
    done = here.run_as(
        spec.user, [command, "--parsable", *spec.words(), str(path)], {"HADAR_PROGRESS_S": "2"}
    )
    if done.returncode:
        raise HadarError(f"{spec.name} was refused: {done.stderr.strip()[-300:]}")
    if managed and "not managed" in done.stderr:
        raise HadarError(f"{spec.name}: {done.stderr.strip()[-300:]}")


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hadar-optin-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(here: Site, folder: Path) -> None:
    """What tells why: the daemons' logs, the controller's, and its journal."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in [here.controller_log, *here.box.places.log.glob("slurmctld.log")]:
        if path.exists():
            shutil.copy(path, folder)
    for path in (here.folder / "state").glob("hadar.sqlite*"):
        shutil.copy(path, folder)
    shutil.copy(here.box.config_path, folder)
