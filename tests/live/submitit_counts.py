"""``python submitit_counts.py FOLDER PARTITIONS STEPS``: a job of submitit's that counts, and that
resumes by submitit's own means. Prints its id, then what it returned."""

import sys
import time
from pathlib import Path

import submitit


class Count:
    """Its state is what submitit pickles when the job is asked to save."""

    def __init__(self):
        self.done = 0

    def __call__(self, folder, steps):
        import os

        with Path(folder, "begun").open("a") as stream:
            stream.write(f"{os.environ['SLURMD_NODENAME']} {self.done}\n")
        # What is left is quick once it was moved.
        pause = 0.01 if os.environ.get("SLURM_RESTART_COUNT") else 0.1
        while self.done < steps:
            time.sleep(pause)
            self.done += 1
            with Path(folder, "steps").open("a") as stream:
                stream.write(f"{self.done}\n")
        return self.done

    def checkpoint(self, folder, steps):
        return submitit.helpers.DelayedSubmission(self, folder, steps)


def main(folder, partitions, steps):
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(
        partition=partitions,
        time=30,
        additional_parameters={"gres": "gpu:1"},
        setup=["#HADAR types=any checkpoint=signal restart_cost=5"],
    )
    job = executor.submit(Count(), folder, int(steps))
    print(job.job_id, flush=True)
    print(job.result(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
