"""Submits many managed jobs fast: a process of its own, as PySlurm knows one slurm.conf only.

``python -m benchmarks.many_jobs SCRIPT JOBS NODES GPUS PARTITION``, with SLURM_CONF set. 2 ms a
job, sbatch 30. Each asks for so many nodes and GPUs on each of them.
"""

import os
import sys
from pathlib import Path

_MODELS = ("resnet18", "resnet50", "lm", "transformer", "recommendation", "cyclegan", "a3c")


def comment(number: int, gpus: int) -> str:
    """The declaration of a job: models and amounts of work in turn."""
    return (
        f"[hadar1 model={_MODELS[number % len(_MODELS)]} types=any gpus={gpus}-{gpus + number % 4} "
        f"batch=64 samples={20_000 + 4 * number} checkpoint=yes]"
    )


def main(script: str, jobs: str, nodes: str, gpus: str, partition: str) -> None:
    """Submit them one after another."""
    import pyslurm

    all_gpus = int(nodes) * int(gpus)
    for number in range(int(jobs)):
        pyslurm.JobSubmitDescription(
            name="waits",
            partitions=partition,
            script=script,
            gres_per_node={"gpu": int(gpus)},
            nodes=int(nodes),
            ntasks=int(nodes),
            time_limit=24 * 60,
            standard_output="/dev/null",
            working_directory=str(Path(script).parent),
            comment=comment(number, all_gpus),
            is_requeueable=True,
            environment={"PATH": os.environ["PATH"]},
        ).submit()


if __name__ == "__main__":
    main(*sys.argv[1:])
