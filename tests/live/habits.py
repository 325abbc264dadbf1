"""Jobs whose scripts checkpoint by themselves, in a sandbox whose placements the test dictates."""

import os
import subprocess
import time

from dictated import Dictated, first_on
from shared_steps import HBATCH

from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.progress import read_progress

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 {options}
#HADAR types=any {declared}
cd {folder}
state=$SLURM_JOB_ID.state log=$SLURM_JOB_ID.steps
n=0
if [ -f $state ]; then n=$(cat $state); fi
echo "begin ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $n" >> $SLURM_JOB_ID.log
save() {{ echo $n > $state.new; mv $state.new $state; }}
asked=0
# What is left is quick once it was moved.
pause=0.1
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then pause=0.01; fi
# A step without a process of its own, of which there are thousands: nothing comes from this pipe.
exec 3<> <(:)
{trap}
while [ $n -lt {steps} ]; do
    read -rt $pause <&3
    n=$((n + 1)); echo $n >> $log
    if [ $asked = 1 ]; then {when_asked}; fi
    if [ $((n % {every})) = 0 ]; then save; fi
done
echo "done $n" >> $SLURM_JOB_ID.log
"""


class Habits(Dictated):
    def script(
        self,
        declared,
        options="",
        trap="trap 'asked=1' USR1",
        when_asked=":",
        steps=600,
        every=100_000,
    ):
        path = self.folder / f"job{time.monotonic_ns()}.sh"
        path.write_text(
            SCRIPT.format(
                declared=declared, options=options, trap=trap, when_asked=when_asked,
                steps=steps, folder=self.folder, every=every,
            )
        )  # fmt: skip
        id_ = self.hbatch(path, "-o", str(self.folder / "%j.out"))
        self.until(lambda: len(self.steps(id_)) > 10)
        return id_

    def hbatch(self, path, *words, **environment):
        """Submit it from its own folder, to be started on a k80."""
        write_heartbeat(self.config.site.exchange_dir, "act", 5.0)
        bin_ = f"{self.box.programs.bin_dir}:{os.environ['PATH']}"
        done = subprocess.run(
            [HBATCH, "--parsable", *first_on("k80"), *words, str(path)],
            env={**self.env, "PATH": bin_, **environment},
            cwd=path.parent, capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        id_ = done.stdout.strip()
        self.want[id_] = {"k80": 1}
        return id_

    def lines(self, id_, what):
        path = self.folder / f"{id_}.{what}"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self, id_):
        return [int(line) for line in self.lines(id_, "steps")]

    def begun(self, id_):
        """Where each attempt began: (restarts, node, step)."""
        rows = [line.split() for line in self.lines(id_, "log")]
        return [(int(r[1]), r[2], int(r[3])) for r in rows if r[0] == "begin"]

    def moved(self, id_, kind="v100"):
        self.want[id_] = {kind: 1}
        self.until(lambda: self.patient_tick() and self.where(id_) == {kind})

    def asked(self, id_):
        """Tick until the job was asked to move."""
        self.want[id_] = {"v100": 1}
        self.until(lambda: self.patient_tick() and self.history(id_))

    def ends(self, id_, seconds=150.0):
        self.until(lambda: self.patient_tick() and self.state(id_) is JobState.FINISHED, seconds)
        return self.job(id_).slurm_state

    def report_of(self, id_):
        return read_progress(self.config.site.exchange_dir, id_, os.getuid())

    def account(self, ends):
        """How jobs came to their ends: what they wrote, what the controller did and said."""
        logs = [f"{id_} {end}: {self.lines(id_, 'log')}" for id_, end in ends.items()]
        done = [f"{one}" for id_ in ends for one in reversed(self.history(id_))]
        return "\n".join([self.seen(), *logs, *done, *self.said[-40:]])

    def state(self, id_):
        return self.job(id_).state
