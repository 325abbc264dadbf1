"""Users, and an admin, who change what waits in the queue, and note what they did."""

import random
import time
from collections.abc import Mapping

from benchmarks.exchanges.records import Act, Record
from benchmarks.optin.site import USERS, Site
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.cluster import Cluster

WAITING = 14
"""So many jobs of theirs are in the queue."""
MANAGED = 0.7
"""Part of the jobs that opted in."""
PARTITION = "v100"
_NICES = (0, 0, 50, 100, 150, 200, 300)
_RUNS_S = (8, 30)
_WORK = (10_000, 50_000, 200_000, 1_000_000)
_ACTS = ("nice",) * 5 + ("admin",) * 3 + ("hold",) * 5 + ("top",)
"""One is drawn. Top is rare, as it sets the Nice of all of a user's jobs, which then stay as they
are."""
_MANAGED = "#!/bin/sh\n#HADAR gpus=1 types=any model=resnet50 batch=64 samples={}\nexec sleep {}\n"
_PLAIN = "#!/bin/sh\nexec sleep {}\n"


class People:
    """All of one run. What they do is drawn from ``seed``."""

    def __init__(self, place: Site, cluster: Cluster, record: Record, seed: int) -> None:
        self._site, self._cluster, self._record = place, cluster, record
        self._drawn = random.Random(seed)
        self._users = list(USERS)[:2]
        self._held: dict[str, float] = {}
        self._count = 0
        self.refused = 0
        """Acts that Slurm refused, as of a job that had begun."""

    def refill(self) -> None:
        """One more job, where fewer than they want to have wait."""
        jobs = self._jobs()
        if len(jobs) >= WAITING:
            return
        user, managed = self._drawn.choice(self._users), self._drawn.random() < MANAGED
        nice, seconds = self._drawn.choice(_NICES), self._drawn.randint(*_RUNS_S)
        text = _MANAGED if managed else _PLAIN
        words = (self._drawn.choice(_WORK), seconds) if managed else (seconds,)
        self._count += 1
        script = self._site.home(user) / f"job{self._count}.sh"
        script.write_text(text.format(*words))
        argv = [self._site.command("hbatch" if managed else "sbatch"), "--parsable"]
        argv += ["-p", PARTITION, "--gres=gpu:1", "-t", "10", "-o", "/dev/null"]
        done = self._site.run_as(user, [*argv, f"--nice={nice}", str(script)])
        if done.returncode:
            raise HadarError(f"a submission failed: {done.stderr.strip()}")
        self._note("submit", done.stdout.strip().partition(";")[0], user, nice)

    def act(self) -> None:
        """One of them changes something. Jobs that were held for long enough are released."""
        now = time.time()
        due = [job for job, until in self._held.items() if until <= now]
        jobs = self._jobs()
        for id_ in due:
            del self._held[id_]
            if id_ in jobs:
                self._do("release", jobs[id_], ["release", id_])
        free = [job for id_, job in jobs.items() if id_ not in self._held]
        if not free:
            return
        job, what = self._drawn.choice(free), self._drawn.choice(_ACTS)
        if what == "hold":
            if self._do("hold", job, ["hold", job.id]):
                self._held[job.id] = now + self._drawn.uniform(5, 40)
        elif what == "top":
            self._top(job)
        else:
            # Slurm lets no owner lower a Nice.
            nice = self._drawn.choice(_NICES) + (job.nice if what == "nice" else 0)
            words = ["update", f"JobId={job.id}", f"Nice={nice}"]
            self._do("nice", job, words, nice, by_admin=what == "admin")

    def _top(self, job: Job) -> None:
        before = self._jobs()
        if not self._do("", job, ["top", job.id]):
            return
        for id_, now in self._jobs().items():
            if id_ in before and before[id_].nice != now.nice:
                self._note("top", id_, job.user, now.nice)

    def _do(
        self, what: str, job: Job, words: list[str], nice: int = 0, by_admin: bool = False
    ) -> bool:
        argv = [self._site.command("scontrol"), *words]
        if by_admin:
            try:
                self._site.box.run("scontrol", *words)
            except HadarError:
                self.refused += 1
                return False
        elif self._site.run_as(job.user, argv).returncode:
            self.refused += 1
            return False
        if what:
            self._note(what, job.id, job.user, nice)
        return True

    def _note(self, what: str, job: str, user: str, nice: int) -> None:
        self._record.acts.append(Act(time.time(), what, job, user, nice))

    def _jobs(self) -> Mapping[str, Job]:
        """Theirs that wait, by id."""
        jobs = self._cluster.read_jobs()
        return {
            job.id: job for job in jobs if job.user in self._users and job.state is JobState.PENDING
        }
