"""A sandbox with a controller, and short paced trainings that run as copies."""

import json
import os
import sys
import time
from pathlib import Path

from pauses import pauses
from shared_steps import state_of_site, submit_by_hbatch

from benchmarks.digits import write_digits
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.runtime import check_lineage, checkpoint
from slurm_hadar.runtime.attempts import attempts_folder
from slurm_hadar.runtime.samples import from_plain
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions, Settings
from slurm_hadar.slurm.cluster import open_cluster

ROOT = Path(__file__).resolve().parents[2]
SMALL_TORCH = f"{sys.executable} {ROOT}/benchmarks/small_torch.py"
"""Runs the training that follows, with less of an import of PyTorch."""
MODEL = "paced"
SPEEDS = {"v100": 160.0, "p100": 80.0, "k80": 40.0}
"""Samples/s of the paced model on one GPU, but for the sandbox's own deviation of up to 25%."""
THREE = Layout(
    (NodeGroup("v", 1, "v100", 1), NodeGroup("p", 1, "p100", 1), NodeGroup("k", 1, "k80", 1))
)
"""Three nodes of one GPU each, of three types."""


def start_sandbox(make_sandbox, folder, settings, layout=THREE, **options):
    """A sandbox in which the model's speeds are known to the profiles, and a controller acts.

    Slurm starts a requeued job by itself long after a slow controller has sent it on.
    """
    table = folder / "speeds.json"
    rows = [[MODEL, kind, 1, 8, speed, None] for kind, speed in SPEEDS.items()]
    table.write_text(json.dumps({"version": 1, "source": "test", "rows": rows}))
    common: Settings = {
        "guards": {"min_between_moves_s": 0.0},
        "profiles": {"tables": (str(table),)},
    }
    box = make_sandbox(
        layout=layout,
        options=SandboxOptions(
            mode="act",
            settings={**common, **settings},
            base_rates={MODEL: {kind: {1: speed} for kind, speed in SPEEDS.items()}},
        ),
        **{"cred_expire_s": 90, **options},
    )
    return Trainings(box, folder)


def digits_file(folder):
    """Where the tests of all of pytest's processes keep the digits; ``folder``: of one test."""
    above = folder.parent
    path = (above.parent if above.name.startswith("popen-") else above) / "digits.npy"
    write_digits(path)
    return path


def consolidated(path):
    """Samples in the newest checkpoint, those behind gaps included."""
    content = checkpoint.read(path)
    state = json.loads(content["state"])
    return state["samples"] + sum(stop - start for start, stop, _ in state["ahead"])


def moves_of(store, id_):
    """A job's moves, newest first. Something else may stand after them in the journal, as where
    Slurm starts the job between a tick's look and what it sends."""
    return [entry for entry in store.history(id_) if entry.kind == "move"]


def until_it_saves(path, seconds=60.0):
    """Wait for the moment in which the checkpoint ``path`` is being written."""
    end = time.monotonic() + seconds
    while not list(attempts_folder(path).glob(f"*/*.{path.name}")):
        assert time.monotonic() < end, "it did not save in time"
        time.sleep(0.0005)


class Trainings:
    """What a test does with the sandbox."""

    def __init__(self, box, folder):
        self.box, self.folder = box, folder
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.store = Store.open(self.config.site.state_dir)
        rates = open_rates(self.config, self.store.connection)
        self.said = []
        self.controller = Controller(self.config, self.cluster, self.store, rates, os.getuid())
        self.env = {**os.environ, **box.env, "HADAR_PROGRESS_S": "0.2", "OMP_NUM_THREADS": "1"}
        self._full_speed = json.loads(box.true_rates.read_text())["rates"]

    def pace(self, factor):
        """Trainings that start from now on have this part of the speeds: one that must not end
        before a test has done something to it is slow until then."""
        content = json.loads(self.box.true_rates.read_text())
        content["rates"] = {
            model: {
                kind: {count: factor * speed for count, speed in speeds.items()}
                for kind, speeds in by_type.items()
            }
            for model, by_type in self._full_speed.items()
        }
        aside = self.box.true_rates.with_suffix(".aside")
        aside.write_text(json.dumps(content))
        aside.replace(self.box.true_rates)

    def hbatch(self, script, *words, alive=True):
        exchange = self.config.site.exchange_dir if alive else None
        return submit_by_hbatch(script, words, self.folder, self.env, exchange)

    def train(self, samples, declared, *words, name="a"):
        """Submit ``train_copies.py``; ``declared``: further keys of its declaration."""
        command = (
            f"{SMALL_TORCH} {ROOT}/examples/train_copies.py --model {MODEL} --batch 8 "
            f"--samples {samples} --round 1 --lr 0.02 --checkpoint {self.folder}/{name}.pt "
            f"--lineage {self.folder}/{name}.json --data {digits_file(self.folder)}"
        )
        script = (
            "#!/bin/bash\n"
            f"#HADAR model={MODEL} types=any batch=8 samples={samples} checkpoint=yes {declared}\n"
            "#SBATCH --ntasks-per-node=1 --gres=gpu:1\n"
            "trap '' USR2\n"
            f"exec {sys.executable} -m slurm_hadar.runtime.copies_launch -- {command}\n"
        )
        return self.hbatch(script, *words)

    def ordinary(self, *words, seconds=600):
        """A job that declares nothing, on GPUs."""
        script = f"#!/bin/bash\nexec sleep {seconds}\n"
        return self.cluster.submit(script, ["-o", "/dev/null", *words])

    def job(self, id_):
        return self.cluster.read_jobs([id_])[0]

    def tick(self):
        write_heartbeat(self.config.site.exchange_dir, "act", 5.0)
        report = self.controller.tick()
        self.said += report.messages
        return report

    def until(self, holds, seconds=100.0, ticks=True):
        end, pause = time.monotonic() + seconds, pauses()
        while not holds():
            assert time.monotonic() < end, self._seen()
            if ticks:
                self.tick()
            time.sleep(next(pause))

    def _seen(self):
        """What there was when something did not come about: queue, nodes, the jobs' own output."""
        return state_of_site(self.box, self.folder, tail=3000)

    def runs(self, id_, *nodes):
        def holds():
            job = self.job(id_)
            return job.state is JobState.RUNNING and (not nodes or set(job.nodes) == set(nodes))

        return holds

    def progress(self, id_):
        """As a controller reads it, without what else one looks at."""
        return read_progress(self.config.site.exchange_dir, id_, os.getuid())

    def trained(self, id_, samples=1, restarts=0):
        def holds():
            found = self.progress(id_)
            return found is not None and found.restarts >= restarts and found.samples >= samples

        return holds

    def plan(self, id_):
        return read_plan(self.config.site.exchange_dir, id_, {os.getuid()})

    def resumed(self, id_):
        """Where each attempt but the first took up the training, samples."""
        return [int(part.split()[0]) for part in self.log(id_).split("resumed at ")[1:]]

    def strands_nothing(self):
        """No job is left held or half gone, and Slurm has all nodes back."""

        def holds():
            states = self.box.run("squeue", "-h", "-t", "all", "-o", "%T %r").splitlines()
            nodes = self.box.run("sinfo", "-h", "-N", "-o", "%T").split()
            bad = [line for line in states if "COMPLETING" in line or "eld" in line]
            return not bad and set(nodes) == {"idle"}

        self.until(holds, 60, ticks=False)

    def log(self, id_):
        path = self.folder / f"{id_}.out"
        return path.read_text() if path.exists() else ""

    def ends_exact(self, id_, samples, name="a", seconds=120.0, ticks=True):
        """The lineage of the finished training; each sample went in exactly once."""
        self.until(lambda: self.job(id_).state is JobState.FINISHED, seconds, ticks)
        assert self.job(id_).slurm_state.startswith("COMPLETED"), self.log(id_)
        lineage = json.loads((self.folder / f"{name}.json").read_text())
        segments = from_plain(lineage["segments"])
        assert check_lineage(segments, lineage["dataset_size"], samples=samples, seed=0) is None
        return segments
