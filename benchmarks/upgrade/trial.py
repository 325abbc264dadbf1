"""One kill: a release's controller dies at a point, and the other release's goes on."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.optin.site import EQUAL, HADAR, Site, site
from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.slurm.cluster import open_cluster

LAYOUT = Layout(
    (NodeGroup("v", 1, "v100", 2), NodeGroup("p", 1, "p100", 2), NodeGroup("k", 1, "k80", 2)),
    (
        PartitionSpec("gpu", default=True),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("p100", ("p",)),
        PartitionSpec("k80", ("k",)),
    ),
)
OWNER, OTHER = "news", "irc"
LEASE_S = 300
"""Longer than a whole trial: a job whose lease is not released does not start in it."""
_STEP = Path(__file__).with_name("step.py")
_HERE = Path(__file__).resolve().parents[2]
_TRAINING = "tests/live/quick_training.py"
_SAMPLES = 5000
"""100 a second: on a busy machine it takes half a minute to submit the jobs beside a training."""
_UNTIL_FINISH = 1_000_000
"""Until its folder has the file: it must still run when all jobs are submitted and the move is
decided, however busy the machine is."""
_LIMIT_MIN = "300"
"""Time limit of a training: what is left of the longest one fits in it on every type. A release
moves no job whose work fits nowhere."""
_LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Release:
    """A checkout. ``leases``: its waiting jobs have begin times."""

    name: str
    root: Path
    leases: bool


@dataclass
class Verdict:
    """What became of the jobs of one trial. ``wrong``: sentences on what should not be."""

    way: str
    point: str
    jobs: int = 0
    leased: int = 0
    released_s: float = 0.0
    """From the first tick of the other release until no job had a lease, s."""
    moves: list[str] = field(default_factory=list)
    restarts: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Trial:
    """One site, and trials on it one after another."""

    def __init__(self, here: Site, before: Release, now: Release) -> None:
        self._site, self.before, self.now = here, before, now
        self._cluster = open_cluster(configuration.load(here.box.config_path).slurm)
        self._number = 0

    # -- the programs of a release ---------------------------------------------------------------

    def cli(self, release: Release, user: str, *words: str) -> str:
        """What ``hadar`` or ``hbatch`` of that release prints, its status aside."""
        program, *rest = words
        module = {"hadar": "main", "hbatch": "hbatch"}[program]
        code = (
            f"import sys; sys.argv[0] = {program!r}\n"
            f"from slurm_hadar.cli.{module} import main\nsys.exit(main())"
        )
        done = self._site.run_as(user, [sys.executable, "-c", code, *rest], self._env(release))
        if re.search("Traceback|internal error|a fault of slurm-hadar", done.stderr):
            raise HadarError(f"{program} of {release.name}: {done.stderr[-2000:]}")
        return done.stdout + done.stderr

    def _env(self, release: Release) -> dict[str, str]:
        found = {"PYTHONPATH": str(release.root), "HADAR_PROGRESS_S": "0.3"}
        return {**found, "PYTHONDONTWRITEBYTECODE": "1"}

    def as_root(self, release: Release, *words: str) -> None:
        """``hadar`` of that release as the admin; ``check`` may find fault. Raises HadarError."""
        code = "from slurm_hadar.cli.main import main; main()"
        # Not in this checkout, whose package Python would take.
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, **self._site.box.env, **self._env(release)},
            cwd=self._site.folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if "Traceback" in done.stderr or (done.returncode and words[0] != "check"):
            raise HadarError(done.stdout + done.stderr)

    def step(self, release: Release, verdict: Verdict, *words: str, dies: bool = False) -> str:
        """Ticks of that release's controller; what they said."""
        done = self._site.run_as(HADAR, [sys.executable, str(_STEP), *words], self._env(release))
        if "Traceback" in done.stderr or done.returncode not in ((-9,) if dies else (0,)):
            verdict.wrong.append(
                f"the controller of {release.name} ended with {done.returncode}: "
                f"{done.stdout[-1500:]}{done.stderr[-1500:]}"
            )
        return done.stdout

    # -- jobs ------------------------------------------------------------------------------------

    def _training(self, release: Release, *words: str, samples: int = _SAMPLES) -> str:
        home = self._site.home(OWNER)
        path = self._script(
            f"#HADAR types=any gpus=1 samples={samples} checkpoint=yes restart_cost=1\n"
            f"exec {sys.executable} {release.root / _TRAINING} {home} {samples} 0\n"
        )
        out = self.cli(
            release, OWNER, "hbatch", "--parsable", "-t", _LIMIT_MIN, "-o", f"{home}/%j.out",
            "--gres=gpu:1", *words, path,
        )  # fmt: skip
        return _number(out)

    def _sleeper(self, release: Release | None, user: str, seconds: float, *options: str) -> str:
        """``release`` None: through sbatch; with a declaration for the plugins where it is
        ``managed``."""
        home = self._site.home(user)
        path = self._script(
            "#HADAR types=any gpus=1\n"
            f"echo begin $SLURM_RESTART_COUNT >> {home}/$SLURM_JOB_ID.log\n"
            f"sleep {seconds:g}\necho end >> {home}/$SLURM_JOB_ID.log\n"
        )
        usual = ["--parsable", "-t", "30", "-o", "/dev/null", *options]
        if not any(option.startswith("--gres") for option in options):
            usual.append("--gres=gpu:1")
        if release is not None:
            return _number(self.cli(release, user, "hbatch", *usual, path))
        done = self._site.run_as(user, [self._site.command("sbatch"), *usual, path])
        if done.returncode:
            raise HadarError(done.stderr)
        return _number(done.stdout)

    def _plain(self, seconds: float, *words: str) -> str:
        home = self._site.home(OTHER)
        path = self._script(
            f"echo begin $SLURM_RESTART_COUNT >> {home}/$SLURM_JOB_ID.log\n"
            f"sleep {seconds:g}\necho end >> {home}/$SLURM_JOB_ID.log\n"
        )
        usual = ["--parsable", "-t", "30", "-o", "/dev/null", *words]
        done = self._site.run_as(OTHER, [self._site.command("sbatch"), *usual, path])
        if done.returncode:
            raise HadarError(done.stderr)
        return _number(done.stdout)

    def _script(self, text: str) -> str:
        self._number += 1
        path = self._site.folder / f"job{self._number}.sh"
        path.write_text(f"#!/bin/bash\n{text}")
        return str(path)

    def _jobs(self) -> dict[str, Job]:
        return {job.id: job for job in self._cluster.read_jobs()}

    # -- a trial ---------------------------------------------------------------------------------

    def carry_out(self, first: Release, then: Release, point: str) -> Verdict:
        """``first`` dies at the point, ``then`` goes on until all jobs have ended."""
        verdict = Verdict(f"{first.name} -> {then.name}", point)
        began = time.monotonic()
        try:
            self._try(first, then, point, verdict)
        except HadarError as error:
            verdict.wrong.append(str(error))
        finally:
            for user in (OWNER, OTHER):
                self._site.box.run("scancel", "-u", user)
            with contextlib.suppress(HadarError):
                self._until(lambda: not self._site.box.run("squeue", "-h").strip(), "the end")
        verdict.seconds = time.monotonic() - began
        return verdict

    def _try(self, first: Release, then: Release, point: str, verdict: Verdict) -> None:
        self.as_root(first, "check", "--write")
        # A heartbeat first: without one nothing is managed.
        self.step(first, verdict, "--ticks", "1")
        self._finish.unlink(missing_ok=True)
        if first.leases:
            mover = self._training(first, "-p", "gpu")
        else:
            mover = self._training(first, "-p", "k80,v100,p100", samples=_UNTIL_FINISH)
        want = self._site.home(HADAR) / "want.json"
        want.write_text(json.dumps({mover: {"k80": 1}}))
        block = [
            self._plain(600.0, "-p", kind, f"--gres=gpu:{count}")
            for kind, count in (("v100", 2), ("p100", 2), ("k80", 1))
        ]

        def started() -> bool:
            self.step(first, verdict, "--want", str(want))
            jobs = self._jobs()
            return all(jobs[job].state is JobState.RUNNING for job in (mover, *block))

        if first.leases:
            self._until(started, "the first jobs running")
        else:
            self._until(
                lambda: all(
                    job in self._jobs() and self._jobs()[job].state is JobState.RUNNING
                    for job in block
                ),
                "the blockers",
            )
            self._until(started, "the first jobs running")
        here = {kind for gpus in self._jobs()[mover].gpus.values() for kind in gpus}
        if here != {"k80"}:
            raise HadarError(f"the training runs on {here}")
        # Of the release before the jobs wait for its word; now Slurm starts what can start, so none
        # of them may use the GPUs that the training is to move to.
        free, one = ("gpu", "v100") if first.leases else ("k80,p100", "p100")
        waiting = [
            self._training(first, "-p", free),
            self._sleeper(first, OWNER, 2.0, "-p", free),
            self._sleeper(first, OTHER, 2.0, "-p", one),
            self._sleeper(first, OWNER, 2.0, "-p", free, "--array=0-2"),
            # Through the Lua files, which are those of the release before all the time.
            self._sleeper(None, OWNER, 2.0, "-p", free),
        ]
        self.step(first, verdict, "--want", str(want), "--ticks", "2")
        # One more, of which no tick knows.
        waiting.append(self._sleeper(first, OTHER, 2.0, "-p", free))
        plain = self._plain(2.0, "-p", "k80", "--gres=gpu:2")
        verdict.leased = len(self._leased())
        if first.leases and verdict.leased < len(waiting):
            verdict.wrong.append(f"{verdict.leased} leases only at the release before")
        # Two v100 are free, which the plain job that waits cannot use.
        self._site.box.run("scancel", block[0])
        want.write_text(json.dumps({mover: {"v100": 1}}))
        self._until(lambda: self._jobs()[block[0]].state is JobState.FINISHED, "free v100")
        self.step(first, verdict, "--want", str(want), "--ticks", "6", "--die", point, dies=True)
        self._site.box.run("scancel", *block[1:])
        # Before anybody has said hadar check --write with the other release.
        waiting.append(self._sleeper(then, OTHER, 2.0, "-p", free))
        self._go_on(then, verdict, [mover, *waiting, plain], mover)

    @property
    def _finish(self) -> Path:
        """The trainings of this release end as soon as it is there."""
        return self._site.home(OWNER) / "finish"

    def _leased(self) -> list[str]:
        now = time.time()
        return [
            job.id
            for job in self._jobs().values()
            if job.state is JobState.PENDING and not job.restarts and job.eligible_s > now + 2
        ]

    def _go_on(self, then: Release, verdict: Verdict, names: Sequence[str], mover: str) -> None:
        began, released = time.monotonic(), None
        said: list[str] = []
        while True:
            said.append(self.step(then, verdict, "--ticks", "2" if said else "1"))
            jobs = self._jobs()
            if not then.leases and released is None and not self._leased():
                released = time.monotonic()
                verdict.released_s = released - began
            ours = [job for job in jobs.values() if _of(job, names)]
            moved = jobs[mover].restarts and jobs[mover].state is JobState.RUNNING
            if moved or time.monotonic() - began > _LONGEST_S / 2:
                self._finish.touch()
            if all(job.state is JobState.FINISHED for job in ours):
                break
            if time.monotonic() - began > _LONGEST_S or verdict.wrong:
                left = [
                    f"{job.id} {job.slurm_state} {job.reason} eligible in "
                    f"{job.eligible_s - time.time():.0f} s, {job.partitions} {job.features}"
                    for job in ours
                    if job.state is not JobState.FINISHED
                ]
                verdict.wrong.append(
                    f"not ended after {_LONGEST_S:g} s: {left}\n{''.join(said)[-1500:]}"
                )
                break
        self.step(then, verdict, "--ticks", "1")
        jobs = self._jobs()
        ours = [job for job in jobs.values() if _of(job, names)]
        verdict.jobs = len(ours)
        if not then.leases and released is None:
            verdict.wrong.append(f"leases were not released: {self._leased()}")
        rows = [json.loads(line) for line in self.step(then, verdict, "--journal").splitlines()]
        for job in ours:
            moves = [row for row in rows if row["kind"] == "move" and row["job"] == job.id]
            self._once(job, verdict, len(moves))
        verdict.moves = [
            f"{row['outcome']}" for row in rows if row["kind"] == "move" and row["job"] == mover
        ]
        open_ = [row for row in rows if row["outcome"] is None and _known(row["job"], names)]
        if open_:
            verdict.wrong.append(f"open in the journal: {open_}")
        if not verdict.moves:
            verdict.wrong.append("no move in the journal")
        verdict.restarts = jobs[mover].restarts

    def _once(self, job: Job, verdict: Verdict, moved: int) -> None:
        """It completed, and began once, and once more for each move at most."""
        if not job.slurm_state.startswith("COMPLETED"):
            verdict.wrong.append(f"job {job.id} ended as {job.slurm_state}")
            return
        for user in (OWNER, OTHER):
            path = self._site.home(user) / f"{job.raw_id}.log"
            by_id = self._site.home(user) / f"{job.id}.log"
            found = next((one for one in (path, by_id) if one.exists()), None)
            if found is not None:
                break
        else:
            verdict.wrong.append(f"job {job.id} has no log")
            return
        events = [line.split() for line in found.read_text().splitlines()]
        begun = [int(event[1]) if len(event) > 1 else 0 for event in events if event[0] == "begin"]
        ends = [event for event in events if event[0] in ("end", "left")]
        if begun != sorted(set(begun)) or len(ends) != len(begun):
            verdict.wrong.append(f"job {job.id} began and ended as {events}")
        if begun[-1:] != [job.restarts] or job.restarts > moved:
            verdict.wrong.append(f"job {job.id} began {begun}, and was moved {moved} times")

    def _until(self, holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                queue = self._site.box.run("squeue", "-o", "%i %T %P %b %r %N %S %j")
                raise HadarError(f"{what} did not come within {timeout_s:g} s\n{queue}")
            time.sleep(0.3)

    # -- what is said once -----------------------------------------------------------------------

    def warnings(self) -> list[str]:
        """What the new release says of the old configuration and Lua files; what is wrong there
        begins with WRONG."""
        text = self.cli(self.now, HADAR, "hadar", "check")
        about = [line for line in text.splitlines() if "[lease]" in line]
        lua = [line for line in text.splitlines() if "begin time from" in line]
        found = [*about, *lua]
        if len(about) != 1:
            found.append(f"WRONG: {len(about)} lines on [lease]:\n{text}")
        if len(lua) != 1 or not all(n in lua[0] for n in ("help.lua", "job_submit.lua")):
            found.append(f"WRONG: the old Lua files are not named:\n{text}")
        return found


def _of(job: Job, names: Sequence[str]) -> bool:
    return job.id in names or str(job.array_job_id) in names


def _known(job: str, names: Sequence[str]) -> bool:
    return job.partition("_")[0] in names


def _number(text: str) -> str:
    found = re.search(r"^(\d+)$", text, re.M)
    if found is None:
        raise HadarError(f"no job was submitted: {text}")
    return found[1]


@contextlib.contextmanager
def upgraded_site(folder: Path, before: Release, now: Release) -> Iterator[Trial]:
    """A site with the configuration and the Lua files of the release before."""
    settings = {
        "guards": {"min_between_moves_s": 0.0, "max_queries_per_minute": 100_000},
        "moving": {"settle_s": 10.0, "commit_s": 15.0, "ack_wait_s": 20.0},
    }
    with site(folder, EQUAL, layout=LAYOUT, settings=settings) as here:
        toml = here.box.config_path
        text = re.sub(
            r"^groups = .*$",
            'steer = ["gpu", "v100", "p100", "k80"]',
            toml.read_text(),
            flags=re.M,
        )
        # Tables that the release before does not know.
        text = re.sub(r"^\[(?:status|web)\]\n(?:[^\[\n].*\n)*", "", text, flags=re.M)
        toml.write_text(f"{text}\n[lease]\nlength_s = {LEASE_S}\n")
        trial = Trial(here, before, now)
        trial.as_root(before, "check", "--write")
        conf = ["--slurm-conf", str(here.box.conf), "--plugin", "job-submit", "--lease", "--apply"]
        trial.as_root(before, "plugins", "install", *conf)
        here.box.run("scontrol", "reconfigure")
        yield trial
