"""What a researcher's own program does with one of the clients of Slurm; ``sbatch`` is on PATH.

``python client_runs.py CLIENT FOLDER``: the same small job three times, unmanaged, declared, and in
the partition that is managed without a declaration. Prints what came back as JSON.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

PARTITION = {"unmanaged": "gpu", "declared": "gpu", "opted": "opted"}
DECLARATION, NONE = "#HADAR types=any gpus=1", "#none"


def square(number):
    """On the node; ``slurm`` tells that it ran in a job. Parsl sends the function alone."""
    import os

    return {"square": number * number, "slurm": "SLURM_JOB_ID" in os.environ}


def modes(client):
    """Of each mode: its name, the partition, the job's name and the line that declares it."""
    for mode, partition in PARTITION.items():
        yield mode, partition, f"{client}-{mode}", DECLARATION if mode == "declared" else NONE


# What stands between "recipe" and "end" is shown in docs/integrations.md, where a test looks.


def use_submitit(folder):
    jobs = {}
    for mode, partition, name, declaration in modes("submitit"):
        # recipe: submitit
        import submitit

        executor = submitit.SlurmExecutor(folder=folder / name)
        executor.update_parameters(
            job_name=name, partition=partition, time=5, additional_parameters={"gres": "gpu:1"}
        )
        executor.update_parameters(setup=[declaration])
        job = executor.submit(square, 6)
        # end
        jobs[mode] = job
    return {mode: job.result() for mode, job in jobs.items()}


def use_dask(folder):
    import dask.config
    from distributed import Client

    # Those of this machine, which a site has in its own configuration of dask.
    dask.config.set({"jobqueue.slurm.interface": "lo"})
    dask.config.set({"jobqueue.slurm.local-directory": str(folder)})
    dask.config.set({"jobqueue.slurm.scheduler-options": {"dashboard_address": None}})
    clusters = {}
    for mode, partition, name, declaration in modes("dask"):
        # recipe: dask-jobqueue
        from dask_jobqueue import SLURMCluster

        cluster = SLURMCluster(
            job_name=name, queue=partition, cores=1, memory="500MB", walltime="00:05:00",
            job_extra_directives=["--gres=gpu:1"], job_script_prologue=[declaration],
        )  # fmt: skip
        cluster.scale(jobs=1)
        # end
        clusters[mode] = cluster
    found = {}
    for mode, cluster in clusters.items():
        with cluster, Client(cluster) as client:
            found[mode] = client.submit(square, 6).result(timeout=120)
    return found


def use_parsl(folder):
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor

    executors = []
    for mode, partition, name, declaration in modes("parsl"):
        # recipe: Parsl
        from parsl.launchers import SimpleLauncher
        from parsl.providers import SlurmProvider

        provider = SlurmProvider(
            partition=partition, walltime="00:05:00", exclusive=False, launcher=SimpleLauncher(),
            scheduler_options=f"#SBATCH --gres=gpu:1 --comment={name}\n{declaration}",
        )  # fmt: skip
        # end
        provider.cmd_timeout, provider.max_blocks = 60, 1
        executors.append(
            HighThroughputExecutor(
                label=mode,
                address="127.0.0.1",
                loopback_address="127.0.0.1",
                max_workers_per_node=1,
                provider=provider,
            )
        )
    config = Config(executors=executors, run_dir=str(folder), usage_tracking=0)
    with parsl.load(config):
        apps = {mode: parsl.python_app(square, executors=[mode]) for mode in PARTITION}
        futures = {mode: app(6) for mode, app in apps.items()}
        return {mode: future.result(timeout=120) for mode, future in futures.items()}


RULE = """
# recipe: Snakemake
rule train:
    output: "train.json"
    resources:
        slurm_partition="gpu", runtime=5, gres="gpu:1",
        slurm_extra="--hadar-types=any"
    shell: "python train.py --out {output}"
# end
"""
SHELL = 'test -n \\"$SLURM_JOB_ID\\"; echo \'{{\\"square\\": 36, \\"slurm\\": true}}\' > {output}'


def use_snakemake(folder):
    rules = ["rule all:\n    input: " + ", ".join(f'"{mode}.json"' for mode in PARTITION)]
    for mode, partition in PARTITION.items():
        rule = RULE.replace("python train.py --out {output}", SHELL)
        rule = rule.replace('="gpu"', f'="{partition}"').replace("train", mode)
        rules.append(rule if mode == "declared" else rule.replace("--hadar-types=any", ""))
    (folder / "Snakefile").write_text("\n".join(rules))
    argv = [sys.executable, "-m", "snakemake", "--executor", "slurm", "--jobs", "3"]
    argv += ["--default-resources", "mem_mb=500", "--slurm-init-seconds-before-status-checks", "5"]
    argv += ["--slurm-status-command", "squeue", "--latency-wait", "30"]
    argv += ["--seconds-between-status-checks", "1", "--slurm-logdir", str(folder / "logs")]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return {mode: json.loads((folder / f"{mode}.json").read_text()) for mode in PARTITION}


PROGRAM = (
    "import json, os; "
    "print(json.dumps({'square': 36, 'slurm': 'SLURM_JOB_ID' in os.environ}), flush=True)"
)


def use_psij(folder):
    """PSI/J writes no line of its user's into its script, so the Comment has the declaration."""
    jobs, outputs = {}, {}
    for mode, partition, name, declaration in modes("psij"):
        declaration = name + (" [hadar1 types=any gpus=1]" if declaration == DECLARATION else "")
        output = outputs[mode] = folder / f"{mode}.json"
        # recipe: PSI/J
        import psij

        spec = psij.JobSpec(sys.executable, ["-c", PROGRAM], name=name, stdout_path=output)
        spec.attributes = psij.JobAttributes(queue_name=partition)
        spec.attributes.custom_attributes = {"slurm.gres": "gpu:1", "slurm.comment": declaration}
        job = psij.Job(spec)
        psij.JobExecutor.get_instance("slurm").submit(job)
        # end
        jobs[mode] = job
    for job in jobs.values():
        job.wait()
    return {mode: json.loads(output.read_text()) for mode, output in outputs.items()}


CHECKS = """
import reframe as rfm
import reframe.utility.sanity as sn

class Check(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs, partition, declaration = ["*"], ["*"], "gpu", ""
    executable, executable_opts = {python!r}, ["-c", {program!r}]

    # recipe: ReFrame
    @run_before("run")
    def declare(self):
        partition = f"--partition={{self.partition}}"
        self.job.options = [partition, "--gres=gpu:1", self.declaration]
    # end

    @sanity_function
    def it_ran(self):
        return sn.assert_found(r'"square": 36, "slurm": true', self.stdout)
"""
CHECK = """
@rfm.simple_test
class reframe_{mode}(Check):
    partition, declaration = {partition!r}, {declaration!r}
"""
SETTINGS = """
site_configuration = {{
    "systems": [{{
        "name": "box", "hostnames": [".*"], "prefix": {folder!r},
        "partitions": [{{"name": "all", "scheduler": "squeue", "launcher": "local",
                        "environs": ["plain"]}}],
    }}],
    "environments": [{{"name": "plain"}}],
    "general": [{{"remote_detect": False}}],
}}
"""


def use_reframe(folder):
    text = CHECKS.format(python=sys.executable, program=shlex.quote(PROGRAM))
    for mode, partition, _, declaration in modes("reframe"):
        text += CHECK.format(mode=mode, partition=partition, declaration=declaration)
    (folder / "checks.py").write_text(text)
    (folder / "settings.py").write_text(SETTINGS.format(folder=str(folder)))
    program = Path(sys.executable).with_name("reframe")
    argv = [str(program), "-C", "settings.py", "-c", "checks.py", "--run"]
    argv += ["--report-file", "report.json", "--exec-policy", "async"]
    # Its log files go to the folder for temporary ones.
    env = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads((folder / "report.json").read_text())["runs"]
    passed = {case["name"]: case["result"] == "pass" for case in run["testcases"]}
    return {mode: {"square": 36, "slurm": passed[f"reframe_{mode}"]} for mode in PARTITION}


USES = {
    "submitit": use_submitit,
    "dask": use_dask,
    "parsl": use_parsl,
    "snakemake": use_snakemake,
    "psij": use_psij,
    "reframe": use_reframe,
}

if __name__ == "__main__":
    place = Path(sys.argv[2])
    place.mkdir()
    os.chdir(place)
    print(json.dumps(USES[sys.argv[1]](place)))
