"""What a researcher's own program does with one of the clients of Slurm; ``sbatch`` is on PATH.

``python client_runs.py CLIENT FOLDER``: the same small job three times, unmanaged, declared, and in
the partition that is managed without a declaration. Prints what came back as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PARTITION = {"unmanaged": "gpu", "declared": "gpu", "opted": "opted"}
DECLARATION = "#HADAR types=any gpus=1"


def square(number):
    """On the node; ``slurm`` tells that it ran in a job. Parsl sends the function alone."""
    import os

    return {"square": number * number, "slurm": "SLURM_JOB_ID" in os.environ}


def use_submitit(folder):
    import submitit

    jobs = {}
    for mode, partition in PARTITION.items():
        executor = submitit.SlurmExecutor(folder=folder / mode)
        executor.update_parameters(
            partition=partition,
            time=5,
            job_name=f"submitit-{mode}",
            additional_parameters={"gres": "gpu:1"},
            setup=[DECLARATION] if mode == "declared" else [],
        )
        jobs[mode] = executor.submit(square, 6)
    return {mode: job.result() for mode, job in jobs.items()}


def use_dask(folder):
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    clusters = {}
    for mode, partition in PARTITION.items():
        clusters[mode] = SLURMCluster(
            queue=partition,
            cores=1,
            memory="500MB",
            walltime="00:05:00",
            interface="lo",
            job_name=f"dask-{mode}",
            job_extra_directives=["--gres=gpu:1", f"--output={folder}/{mode}.out"],
            job_script_prologue=[DECLARATION] if mode == "declared" else [],
            local_directory=str(folder),
            scheduler_options={"dashboard_address": None},
        )
        clusters[mode].scale(jobs=1)
    found = {}
    for mode, cluster in clusters.items():
        with cluster, Client(cluster) as client:
            found[mode] = client.submit(square, 6).result(timeout=120)
    return found


def use_parsl(folder):
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.launchers import SimpleLauncher
    from parsl.providers import SlurmProvider

    def executor(mode):
        options = f"#SBATCH --gres=gpu:1 --comment=parsl-{mode}"
        if mode == "declared":
            options += f"\n{DECLARATION}"
        provider = SlurmProvider(
            partition=PARTITION[mode],
            walltime="00:05:00",
            exclusive=False,
            scheduler_options=options,
            launcher=SimpleLauncher(),
            cmd_timeout=60,
            max_blocks=1,
        )
        return HighThroughputExecutor(
            label=mode,
            address="127.0.0.1",
            loopback_address="127.0.0.1",
            max_workers_per_node=1,
            provider=provider,
        )

    config = Config(
        executors=[executor(mode) for mode in PARTITION],
        run_dir=str(folder),
        usage_tracking=0,
    )
    with parsl.load(config):
        apps = {mode: parsl.python_app(square, executors=[mode]) for mode in PARTITION}
        futures = {mode: app(6) for mode, app in apps.items()}
        return {mode: future.result(timeout=120) for mode, future in futures.items()}


RULE = """
rule {mode}:
    output: "{mode}.json"
    resources: slurm_partition="{partition}", runtime=5, gres="gpu:1"{extra}
    shell:
        "test -n \\"$SLURM_JOB_ID\\";"
        "echo '{{{{\\"square\\": 36, \\"slurm\\": true}}}}' > {{output}}"
"""


def use_snakemake(folder):
    rules = ["rule all:\n    input: " + ", ".join(f'"{mode}.json"' for mode in PARTITION)]
    for mode, partition in PARTITION.items():
        extra = ', slurm_extra="--hadar-types=any"' if mode == "declared" else ""
        rules.append(RULE.format(mode=mode, partition=partition, extra=extra))
    (folder / "Snakefile").write_text("\n".join(rules))
    argv = [sys.executable, "-m", "snakemake", "--executor", "slurm", "--jobs", "3"]
    argv += ["--default-resources", "mem_mb=500", "--slurm-init-seconds-before-status-checks", "5"]
    argv += ["--slurm-status-command", "squeue", "--latency-wait", "30"]
    argv += ["--seconds-between-status-checks", "1", "--slurm-logdir", str(folder / "logs")]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return {mode: json.loads((folder / f"{mode}.json").read_text()) for mode in PARTITION}


USES = {
    "submitit": use_submitit,
    "dask": use_dask,
    "parsl": use_parsl,
    "snakemake": use_snakemake,
}

if __name__ == "__main__":
    place = Path(sys.argv[2])
    place.mkdir()
    os.chdir(place)
    print(json.dumps(USES[sys.argv[1]](place)))
