"""Steps that several live tests take: submit by hbatch, wait for a training's progress, and print
the site's state where something did not come about."""

import os
import subprocess
import sys
import time
from pathlib import Path

from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.sandbox import programs

HBATCH = str(Path(sys.executable).parent / "hbatch")


def submit_by_hbatch(script, words, folder, env, exchange=None):
    """The job's id. ``exchange``: the folder that gets the heartbeat of a controller that acts
    first; None: no controller seems to act."""
    if exchange is not None:
        write_heartbeat(exchange, "act", 5.0)
    path = folder / f"job{time.monotonic_ns()}.sh"
    path.write_text(script)
    done = subprocess.run(
        [HBATCH, "--parsable", "-o", str(folder / "%j.out"), *words, str(path)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sbatch(box, script, environment):
    """The job's id. ``environment``: what its variables are beside ours. Not by ``--export``, with
    which Slurm has the job's user log in, by a shell that reads all its files, at each start."""
    env = programs.environment({**box.env, **environment})
    return programs.run([box.programs.bin_dir / "sbatch", "--parsable"], env, text=script).strip()


def state_of_site(box, folder, tail=1500):
    """The queue, the nodes and the end of each job's output."""
    logs = [f"{path.name}:\n{path.read_text()[-tail:]}" for path in folder.glob("*.out")]
    queue = box.run("squeue", "-t", "all", "-o", "%i %T %r %N %S")
    nodes = box.run("sinfo", "-N", "-o", "%N %T %E %G")
    return "\n".join(["it did not come about in time", queue, nodes, *logs])


def wait_for_progress(run, what, restarts, seconds, over=("FAILED", "CANCELLED", "TIMEOUT")):
    """The progress of an attempt once ``what`` holds of it. ``run``: has ``box``, ``id`` and
    ``out``, the job's output; ``over``: states in which none comes any more."""
    until = time.monotonic() + seconds
    found, looked = None, 0.0
    while (now := time.monotonic()) < until:
        found = read_progress(run.box.exchange, run.id, os.getuid())
        if found is not None and found.restarts == restarts and what(found):
            return found
        # Slurm is asked less often than the file is read.
        if now > looked + 0.5:
            looked = now
            if run.box.job_state(run.id) in over:
                break
        time.sleep(0.05)
    raise AssertionError(f"no such progress in {seconds} s: {found}; output:\n{run.out}")
