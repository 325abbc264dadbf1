"""A sandbox whose placements the test dictates, Slurm's commands that fail at will, and trainings
that take no torch."""

import contextlib
import os
import sqlite3
import sys
import time
from itertools import pairwise
from pathlib import Path

from pauses import pauses
from shared_steps import state_of_site, submit_by_hbatch

from benchmarks.faults.plans import complaint
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

TRAINING = Path(__file__).with_name("quick_training.py")
THREE = Layout(
    (NodeGroup("v", 1, "v100", 2), NodeGroup("p", 1, "p100", 2), NodeGroup("k", 1, "k80", 2))
)
"""Three nodes of two GPUs each, of three types."""
COMMANDS = ("squeue", "scontrol", "scancel", "sbatch", "sinfo", "sacctmgr")

WRAPPER = """#!/bin/sh
here={here}
real={real}
echo "{name} $*" >> "$here/calls"
if read -r fault match 2>/dev/null < "$here/{name}.fault"; then
    case "$* " in *"$match"*)
        case $fault in
            garbage) head -c 3000 /dev/urandom; exit 0 ;;
            half) "$real" "$@" > "$here/answer.$$"
                  head -c $(($(wc -c < "$here/answer.$$") / 2)) "$here/answer.$$"
                  rm "$here/answer.$$"; exit 0 ;;
            empty) exit 0 ;;
            fails) echo "{name}: error: Socket timed out on send/recv operation" >&2; exit 1 ;;
            limited) echo "{name}: error: Rate limit exceeded, please retry momentarily" >&2
                     exit 1 ;;
            silence) exec sleep 3600 ;;
            slow) sleep 3 ;;
            other) "$real" "$@" | sed 's/^NodeName=k1 /NodeName=other /'; exit 0 ;;
            dropped) "$real" "$@" | {python} "$here/drop.py"; exit 0 ;;
        esac ;;
    esac
fi
exec "$real" "$@"
"""
DROP = """
import json, sys
answer = json.load(sys.stdin)
answer["jobs"] = []
json.dump(answer, sys.stdout)
"""


def first_on(kind):
    """Words for sbatch: the partition of this GPU type, then those of the others."""
    kinds = [group.gpu_type for group in THREE.groups]
    return ["-p", ",".join(sorted(kinds, key=lambda one: one != kind))]


class Faulty:
    """A folder of Slurm's commands that answer as a test says."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "drop.py").write_text(DROP)

    def wrap(self, bin_dir):
        for name in COMMANDS:
            path = self.folder / name
            values = {"here": self.folder, "real": bin_dir / name, "name": name}
            path.write_text(WRAPPER.format(python=sys.executable, **values))
            path.chmod(0o755)

    def set(self, command, fault, match=""):
        """From now on ``command`` fails so, where ``match`` stands in its words."""
        aside = self.folder / "aside"
        aside.write_text(f"{fault} {match}\n")
        aside.replace(self.folder / f"{command}.fault")

    def mend(self):
        for path in self.folder.glob("*.fault"):
            path.unlink()

    def calls(self):
        """Every command that asked Slurm or changed something, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if "--version" not in line]


class Dictated:
    """A sandbox, and a controller that places jobs as ``want`` says (job -> type -> GPUs)."""

    def __init__(self, folder, settings, layout=THREE, **options):
        self.folder = folder
        self.faulty = Faulty(folder / "bin")
        # With a user's rights what was done to a job is kept as on a site, not in the job. What was
        # requeued waits longer than a slow machine takes for any test.
        settings = {
            "site": {"rights": "user"},
            "moving": {"ack_wait_s": 60.0},
            **settings,
            "slurm": {"bin_dir": str(self.faulty.folder)},
        }
        self.box = Sandbox.up(
            folder / "box",
            layout,
            cred_expire_s=90,
            options=SandboxOptions(mode="act", settings=settings),
            **options,
        )
        self.faulty.wrap(self.box.programs.bin_dir)
        self.config = configuration.load(self.box.config_path)
        write_wrapper_site(self.config, self.box.config_path)
        # What the test itself looks at is not what the controller sees.
        real = self.config.slurm.model_copy(update={"bin_dir": self.box.programs.bin_dir})
        self.slurm = open_cluster(real)
        self.env = {**os.environ, **self.box.env, "HADAR_PROGRESS_S": "0.2"}
        self.want = {}
        self.stores, self.said = [], []
        self.controller = self.another()

    def close(self):
        for store in self.stores:
            store.close()
        self.box.down()
        assert not processes.ours(self.box.places)

    def ended(self, *ids):
        """These jobs are cancelled and gone from their nodes."""
        self.slurm.cancel(ids)
        self.until(lambda: all(self.job(i).state is JobState.FINISHED for i in ids))

    def all_nodes_answer(self):
        """No node is down, or is still left by a job."""
        nodes = self.slurm.read_nodes()
        return all(node.usable and "COMPLETING" not in node.state.upper() for node in nodes)

    def with_settings(self, **sections):
        """The configuration with other values: section=dict of keys."""
        changed = {
            name: getattr(self.config, name).model_copy(update=values)
            for name, values in sections.items()
        }
        return self.config.model_copy(update=changed)

    def another(self, config=None, dictate=True, clock=time.time):
        """One more controller, as after a restart; ``dictate`` False: with the site's policy."""
        config = config or self.config
        store = Store.open(config.site.state_dir)
        self.stores.append(store)
        cluster = open_cluster(config.slurm)
        rates = open_rates(config, store.connection)
        decide = self.dictated if dictate else None
        return Controller(config, cluster, store, rates, os.getuid(), clock=clock, decide=decide)

    def dictated(self, view, state):
        placements = {
            id_: Placement(self.want[id_], reason="dictated by the test")
            for id_ in view.jobs.ids
            if id_ in self.want
        }
        waiting = {id_: "by the test" for id_ in view.jobs.ids if id_ not in placements}
        return Plan(placements, waiting), state

    def submit(
        self, samples=100_000, declared="", linger=0.0, config_path=None, first="", words=()
    ):
        """A training of some 100 samples/s; ``linger``: s that it takes to leave; ``first``: the
        GPU type on which Slurm starts it while one is free, empty: any; ``words``: for sbatch.

        It fits in the time limit even on a slow machine: what does not, once its speed is known, is
        left to Slurm where it waits.
        """
        script = (
            f"#!/bin/bash\n#HADAR types=any gpus=1 samples={samples} checkpoint=yes {declared}\n"
            f"exec {sys.executable} {TRAINING} {self.folder} {samples} {linger}\n"
        )
        env = {**self.env, "HADAR_CONFIG": str(config_path)} if config_path else self.env
        words = [*words, *(first_on(first) if first else [])]
        return submit_by_hbatch(script, words, self.folder, env, self.config.site.exchange_dir)

    def plain(self, *words):
        """An ordinary job on one GPU."""
        options = ["-o", "/dev/null", "--gres=gpu:1", *words]
        return self.slurm.submit("#!/bin/sh\nexec sleep 600\n", options)

    def full(self):
        """Ordinary jobs, so that no GPU is free."""
        ids = [self.plain() for _ in range(self.free_gpus())]
        self.until(lambda: self.free_gpus() == 0)
        # A job that was requeued a moment ago has its GPU again.
        late = [i for i in ids if self.job(i).state is JobState.PENDING]
        self.slurm.cancel(late)
        return [i for i in ids if i not in late]

    def free_gpus(self):
        nodes = self.slurm.read_nodes()
        return sum(sum(n.gpus.values()) - sum(n.gpus_used.values()) for n in nodes)

    def running(self, kind="k80", samples=100_000, **more):
        """A training that runs on a GPU of this type and has reported its progress."""
        # Only where all types are free the first of them is taken.
        self.until(self.all_nodes_answer)
        id_ = self.submit(samples, first=kind, **more)
        self.want[id_] = {kind: 1}
        self.until(lambda: self.patient_tick() and self.trains(id_))
        assert self.where(id_) == {kind}
        return id_

    def trains(self, id_, restarts=0):
        report = read_progress(self.config.site.exchange_dir, id_, os.getuid())
        return report is not None and report.restarts >= restarts and report.samples > 0

    def job(self, id_):
        return self.slurm.read_jobs([id_])[0]

    def where(self, id_):
        return {kind for gpus in self.job(id_).gpus.values() for kind in gpus}

    def until(self, holds, seconds=90.0):
        end, pause = time.monotonic() + seconds, pauses()
        while not holds():
            assert time.monotonic() < end, self.seen()
            time.sleep(next(pause))

    def seen(self):
        """What there was when something did not come about."""
        return state_of_site(self.box, self.folder)

    def patient_tick(self):
        """A tick like one of the daemon: Slurm may be away. What was said is kept."""
        try:
            self.said += self.controller.tick().messages
        except HadarError as error:
            self.said.append(str(error))
        return True

    def moves(self, id_, kind):
        """Tick until the job trains on a GPU of this type."""
        self.want[id_] = {kind: 1}
        self.until(lambda: self.patient_tick() and self.where(id_) == {kind})
        self.until(lambda: self.trains(id_, self.job(id_).restarts))

    def unharmed(self, id_):
        """Neither lost nor held nor in two places at once nor begun twice, and what it is sent is
        what was decided for it."""
        job = self.job(id_)
        assert job.state in (JobState.RUNNING, JobState.PENDING, JobState.COMPLETING), job
        assert not job.held and "JobHeld" not in job.reason
        attempts = self.attempts(id_)
        begun = [restarts for word, restarts, _ in attempts if word == "begin"]
        assert begun == sorted(set(begun)), attempts
        words = [word for word, _, _ in attempts]
        assert all(a != b for a, b in pairwise(words)), attempts
        plan = read_plan(self.config.site.exchange_dir, id_, (self.config.controller_uid,))
        wrong = complaint(plan, job, self.history(id_))
        assert not wrong, wrong
        return job

    def history(self, id_):
        """What the journal that knows the job tells of it, newest first."""
        for store in self.stores:
            with contextlib.suppress(sqlite3.ProgrammingError):
                if found := store.history(id_):
                    return found
        return []

    def attempts(self, id_):
        """What each attempt of a training wrote: (begin or left, restarts, node)."""
        path = self.folder / f"{id_}.log"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(word, int(restarts), node) for word, restarts, node in rows]
