"""The plugins as Slurm itself loads them: each alone, all together, broken, and taken back."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from missing import missing
from typed import LOCALE, ran

from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import names_of, write_wrapper_site
from slurm_hadar.domain.declaration import KEYS, Declaration, decode
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.plugins import changes, programs
from slurm_hadar.plugins.install import PLUGINS, InstallRequest, planned, removal
from slurm_hadar.profiles.gpu_sampling_files import read_all_uses
from slurm_hadar.sandbox.processes import is_alive, wait_until

pytestmark = [pytest.mark.live, pytest.mark.each_slurm]

BIN = Path(sys.prefix) / "bin"
WITH_LEASE = Path(__file__).parents[1] / "unit" / "plugins" / "lua_with_lease"
"""The Lua files of a release that gave waiting jobs a begin time."""
FIELDS = ("Features", "TresPerNode", "TresPerJob", "Comment", "Requeue", "Partition")
SCRIPT = "#!/bin/sh\n#HADAR model=resnet18 types=any\n#SBATCH {option}\nenv | grep ^HADAR_\n"


class Site:
    """A site's admin and a user at one sandbox."""

    def __init__(self, box, folder):
        self.box, self.folder = box, folder
        self.etc = box.conf.parent
        prefix = box.programs.prefix
        self.headers = prefix / "include" if prefix else None
        self.modules = prefix / "lib" / "slurm" if prefix else None
        kept = ("HOME", "USER", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | box.env
        toml = box.config_path.read_text().replace('mode = "observe"', 'mode = "act"')
        box.config_path.write_text(toml)
        self.config = configuration.load(box.config_path)
        self.before = self.files()

    def files(self):
        found = {p: p.read_bytes() for p in self.etc.rglob("*") if p.is_file()}
        return {p: data for p, data in found.items() if ".before-hadar-" not in p.name}

    def use(self, *plugins, nodes=False, **wish):
        """Have these plugins and no others, and Slurm know it; ``nodes``: every slurmd as well."""
        wanted = InstallRequest(plugins, include=self.headers, plugin_dir=self.modules, **wish)
        plan = planned(self.box.conf, self.config, wanted)
        changes.apply(plan.changes)
        logs = {path: path.stat().st_size for path in self.box.places.log.glob("slurmd.*.log")}
        self.reconfigure()

        def read_again():
            # It logs something as it reads; Slurm 24.11 then gives its place to a new process.
            new = [path.read_bytes()[size:] for path, size in logs.items()]
            return all(n and (b"SIGHUP" not in n or b"Relinquishing" in n) for n in new)

        if nodes:
            assert wait_until(read_again, 60.0), "a slurmd did not read its configuration again"
        return plan.by_hand

    def remove(self):
        # Once more for the programs that Slurm ran until it had read its file again.
        for _ in range(2):
            changes.apply(removal(self.box.conf).changes)
            self.reconfigure()

    def reconfigure(self):
        self.box.run("scontrol", "reconfigure")

    def touch(self):
        """Slurm loads a script again when its time has changed."""
        path = self.etc / "job_submit.lua"
        os.utime(path, (time.time(), path.stat().st_mtime + 2))

    def run(self, *argv):
        return subprocess.run(
            argv,
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def hadar(self, *words):
        done = ran(words, {**self.env, "LC_ALL": LOCALE}, self.folder)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    def submit(self, *words, program="sbatch"):
        """The job's fields as Slurm has them, and what stderr said. It waits for ever."""
        argv = (program, "--parsable", "-o", "/dev/null", "--hold", *words)
        done = self.run(*argv)
        assert done.returncode == 0, done.stderr
        found = self.show(done.stdout.strip())
        self.box.run("scancel", found["JobId"])
        return found, done.stderr

    def wait_of(self, *words):
        """Seconds from a submit until the job is eligible; the job is cancelled."""
        done = self.run("sbatch", "--parsable", "-o", "/dev/null", *words)
        assert done.returncode == 0, done.stderr
        found = self.show(done.stdout.strip())
        self.box.run("scancel", found["JobId"])
        times = (datetime.fromisoformat(found[key]) for key in ("SubmitTime", "EligibleTime"))
        submitted, eligible = (one.timestamp() for one in times)
        return eligible - submitted

    def checked(self):
        """What ``hadar check`` says of our folder."""
        done = self.hadar("check", "--write", "--json")
        found = json.loads(done.stdout)["result"]
        return next(one for one in found if str(self.etc / "hadar") in one["what"])

    def cure(self, found):
        """Type the cure of a finding, but for copying to nodes."""
        command, _, rest = found["cure"].partition(", copy ")
        folder = self.etc / "hadar"
        assert rest == f"{folder} to all nodes and login nodes, then scontrol reconfigure"
        command += f" --plugin-dir {self.modules}" if self.modules else ""
        done = self.hadar(*command.split()[1:])
        assert done.returncode == 0, done.stderr
        self.reconfigure()

    def show(self, job):
        lines = self.box.run("scontrol", "show", "job", job).splitlines()
        found = {}
        for line in lines:
            for word in [line.strip()] if "Comment=" in line else line.split():
                key, _, value = word.partition("=")
                # Slurm 23.02 and later write gres/gpu where older ones write gres:gpu.
                found[key] = "" if value == "(null)" else value.replace("gres/gpu", "gres:gpu")
        return found


@pytest.fixture(scope="module")
def site(sandbox_each, tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    folder.chmod(0o755)
    here = Site(sandbox_each, folder)
    if any("lua.so" in line for line in here.use("job-submit", "cli-filter")):
        missing("this Slurm has no Lua plugins (Debian: slurm-wlm-basic-plugins)")
    here.remove()
    yield here
    here.remove()


@pytest.fixture(scope="module")
def with_spank(site):
    try:
        programs.build_spank(site.headers)
    except programs.Missing as error:
        # A compiler that finds fault with our source is a failure, not a reason to skip.
        missing(f"SPANK: {error}")


def script(site, option="-t 5"):
    path = site.folder / "train.sh"
    path.write_text(SCRIPT.format(option=option))
    return str(path)


def test_spank_alone_makes_the_options_known_and_changes_no_job(site, with_spank):
    site.use("spank")
    for program in ("sbatch", "srun", "salloc"):
        text = site.run(program, "--help").stdout
        assert all(f"--hadar-{key.replace('_', '-')}" in text for key in KEYS), program
    job, said = site.submit("--hadar-model=m", "--gres=gpu:v100:1", "--wrap", "true")
    assert job.get("Comment", "") == "" and job["TresPerNode"] == "gres:gpu:v100:1"
    assert said == ""
    site.remove()
    done = site.run("sbatch", "--hadar-model=m", "--wrap", "true")
    assert done.returncode != 0 and "hadar-model" in done.stderr


def test_job_submit_alone_reads_the_script_and_explains(site):
    site.use("job-submit", untype=True)
    job, said = site.submit("--gres=gpu:v100:2", "--comment=mine", script(site))
    assert job["TresPerNode"] == "gres:gpu:2"
    assert job["Comment"].startswith("mine [hadar1 ")
    assert decode(job["Comment"]) == Declaration(model="resnet18", types=("any",))
    assert "sbatch: slurm-hadar: the job is managed" in said
    # A job that nobody declared is as its owner wrote it.
    plain = ("--gres=gpu:v100:2", "-C", "v100", "--wrap", "true")
    job, said = site.submit(*plain)
    assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:v100:2", "v100")
    assert job.get("Comment", "") == "" and said == ""


def test_job_submit_with_spank(site, with_spank):
    site.use("job-submit", "spank", untype=True)
    words = ("--hadar-checkpoint=yes", "--hadar-gpu-mem=10G", "--gpus=p100:1")
    job, _ = site.submit(*words, script(site, "--hadar-batch=64:128"))
    assert job["TresPerJob"] == "gres:gpu:1"
    found = decode(job["Comment"])
    assert found.model == "resnet18" and found.checkpoint
    assert found.batch == (64, 128) and found.gpu_mem == 10 * 1024
    job, said = site.submit("--hadar-gpus=many", "--gres=gpu:1", script(site))
    assert job.get("Comment", "") == "" and "--hadar-gpus: gpus=many is not understood" in said
    job, _ = site.submit("--hadar-off", "--gres=gpu:v100:1", script(site))
    assert decode(job["Comment"]).off and job["TresPerNode"] == "gres:gpu:v100:1"


def test_options_in_sbatch_lines_are_the_same_through_hbatch(site, with_spank):
    """With SPANK, whoever submits; without, neither sbatch nor hbatch takes the script."""
    name = script(site, "--hadar-batch=64:128 --hadar-model=other")
    for plugins in (("job-submit", "spank"), ("cli-filter", "spank"), ("spank",)):
        site.use(*plugins)
        programs = ["sbatch", str(BIN / "hbatch")] if len(plugins) > 1 else [str(BIN / "hbatch")]
        for program in programs:
            job, said = site.submit("--hadar-samples=9", "--gres=gpu:1", name, program=program)
            found = decode(job["Comment"])
            assert found.model == "other" and found.batch == (64, 128) and found.samples == 9
            assert found.types == ("any",) and "knows no" not in said
    site.remove()
    plain, ours = (site.run(program, name) for program in ("sbatch", str(BIN / "hbatch")))
    assert plain.returncode == ours.returncode != 0
    assert plain.stderr in ours.stderr and "knows no --hadar-batch" in ours.stderr


def test_cli_filter_with_spank_for_sbatch_srun_and_salloc(site, with_spank):
    site.use("cli-filter", "spank", untype=True)
    words: tuple[str, ...]
    words = ("--hadar-model=m", "--hadar-checkpoint=yes", "--gpus-per-node=v100:1")
    job, said = site.submit(*words, "-C", "v100", "--wrap", "true")
    assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:1", "v100&v100")
    found = decode(job["Comment"])
    assert found == Declaration(model="m", types=("v100",), checkpoint="yes", constraint="v100")
    assert "slurm-hadar: the job is managed" in said
    for program in ("srun", "salloc"):
        words = ("--hadar-types=k80", "--gres=gpu:1", "scontrol", "show", "job", "-o")
        text = site.run(program, *words).stdout
        line = next(one for one in text.splitlines() if "[hadar1 types=k80 part" in one)
        assert "Partition=k80 " in line and "Features=(null)" in line, program


def test_an_opt_in_partition_needs_no_declaration(site):
    partitions = site.config.partitions.model_copy(update={"opt_in": ("gpu",)})
    mine, site.config = site.config, site.config.model_copy(update={"partitions": partitions})
    words: tuple[str, ...]
    try:
        for plugin in ("job-submit", "cli-filter"):
            site.use(plugin, untype=True)
            job, _ = site.submit("-p", "gpu", "--gres=gpu:v100:1", "--wrap", "true")
            found = decode(job["Comment"])
            assert found == Declaration(types=("v100",), partitions=("gpu",), listed=("v100",))
            assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:1", "")
            assert job["Partition"] == "v100"
            job, _ = site.submit("-p", "gpu", "--wrap", "true")
            assert job.get("Comment", "") == ""
            for program in ("srun", "salloc"):
                words = ("-p", "gpu", "--gres=gpu:v100:1", "scontrol", "show", "job", "-o")
                done = site.run(program, *words)
                shown = [one for one in done.stdout.splitlines() if "JobState=RUNNING" in one]
                assert shown, done.stderr
                for one in shown:
                    assert "Partition=gpu " in one and "gpu:v100:1" in one, (plugin, program)
                    assert "[hadar1" not in one, (plugin, program)
        # The default partition counts on every path.
        names = names_of(site.config)
        assert names.default_partition == "gpu"
        write_wrapper_site(site.config, site.box.config_path, names)
        words = ("--gres=gpu:v100:1", "--wrap", "true")
        for plugins, program in (
            (("job-submit",), "sbatch"),
            (("cli-filter",), "sbatch"),
            ((), str(BIN / "hbatch")),
        ):
            site.use(*plugins)
            for more in ((), ("-M", names.cluster))[: 1 if plugins else 2]:
                # Without an accounting database sbatch itself takes no cluster's name.
                if more and site.run("sbatch", *more, "--test-only", *words).returncode:
                    continue
                job, said = site.submit(*more, *words, program=program)
                assert decode(job["Comment"]) == Declaration(types=("v100",)), plugins
                assert said == ""
            job, _ = site.submit("-p", "v100", *words, program=program)
            assert job.get("Comment", "") == ""
    finally:
        site.config = mine
        write_wrapper_site(mine, site.box.config_path)


PIPED = {
    "substituted": '"$0" --parsable -H -o /dev/null <(printf "%s" "$1")',
    "named": 'printf "%s" "$1" >pipe & "$0" --parsable -H -o /dev/null ./pipe',
}


@pytest.mark.parametrize("how", PIPED)
def test_a_pipe_as_the_script_keeps_no_submit_waiting(site, how):
    """And one under the name of a file of the controller's, which any user can make."""
    site.use("cli-filter")
    for name in ("heartbeat.json", "prices.json"):
        (site.box.exchange / name).unlink(missing_ok=True)
        os.mkfifo(site.box.exchange / name)
    os.mkfifo(site.folder / "pipe")
    try:
        for program in ("sbatch", str(BIN / "hbatch")):
            for text in ("#!/bin/sh\ntrue\n", SCRIPT.format(option="-G1")):
                done = site.run("timeout", "50", "bash", "-c", PIPED[how], program, text)
                assert done.returncode == 0, (program, text, done.stderr)
                body = site.box.run("scontrol", "write", "batch_script", done.stdout.strip(), "-")
                assert body.rstrip("\n\0") == text.rstrip("\n")
                comment = site.show(done.stdout.strip()).get("Comment", "")
                # What sbatch has read to its end only hbatch can put back.
                reads = how == "substituted" and "HADAR" in text and program != "sbatch"
                assert ("[hadar1" in comment) is reads
        job, _ = site.submit(script(site, "-G1"))
        assert decode(job["Comment"]).model == "resnet18"
    finally:
        for path in (site.folder / "pipe", *site.box.exchange.glob("*s.json")):
            path.unlink()
        (site.box.exchange / "heartbeat.json").unlink()
        site.box.run("scancel", "--user", str(os.getuid()))


def test_switches_on_several_nodes_pin_the_job(site):
    path = site.folder / "switches.sh"
    path.write_text("#!/bin/sh\n#HADAR model=resnet18 checkpoint=yes\ntrue\n")
    ways = [(name, "sbatch") for name in ("job-submit", "cli-filter")]
    for plugin, program in [*ways, ("", str(BIN / "hbatch"))]:
        site.use(plugin) if plugin else site.remove()
        for words, pins in ((("-N2",), False), (("-N2", "--switches=1@10:00"), True)):
            job, said = site.submit(*words, "--gres=gpu:1", str(path), program=program)
            assert decode(job["Comment"]).pin is pins, (plugin, words)
            assert ("--switches" in said) is pins, (plugin, words)


def test_hbatch_in_front_of_both_declares_once(site):
    site.use("job-submit", "cli-filter", untype=True)
    words = ("--gres=gpu:v100:1", "--comment=mine", script(site))
    job, _ = site.submit(*words, program=str(BIN / "hbatch"))
    assert job["Comment"].count("[hadar1") == 1
    assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:1", "v100")
    job, _ = site.submit("-p", "gpu", *words, program=str(BIN / "hbatch"))
    assert job["Comment"].count("[hadar1") == 1
    assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:1", "")
    assert job["Partition"] == "v100"


def test_both_tell_a_wrong_line_once(site):
    site.use("job-submit", "cli-filter")
    wrong = site.folder / "wrong.sh"
    wrong.write_text("#!/bin/sh\n#HADAR model=m gpus=4-1\ntrue\n")
    job, said = site.submit("--gres=gpu:v100:1", str(wrong))
    assert "Comment" not in job
    assert said.count("the job is not managed") == 1, said


def takes_back(site, job):
    """What a job of ours is once its owner has opted out; it is cancelled."""
    done = site.hadar("optout", job)
    assert done.returncode == 0, done.stderr
    found = site.show(job)
    site.box.run("scancel", job)
    return found["Partition"], found["Features"]


@pytest.mark.parametrize(
    "plugins", [("job-submit",), ("cli-filter",), ("cli-filter", "job-submit")], ids="+".join
)
def test_types_are_a_list_where_a_partition_stands_for_one_per_type(site, plugins):
    site.use(*plugins, untype=True)
    path = site.folder / "two.sh"
    path.write_text("#!/bin/sh\n#HADAR types=v100,p100\nexec sleep 60\n")
    words = ("sbatch", "--parsable", "-o", "/dev/null")
    more: tuple[str, ...]
    for more in (
        ("-p", "gpu", "--gres=gpu:2"),
        ("--gres=gpu:2",),
        ("-p", "gpu", "--gres=gpu:v100:1", "-N1", "-n2"),
        ("-p", "gpu", "--gpus=1"),
    ):
        done = site.run(*words, "--hold", *more, str(path))
        assert done.returncode == 0, done.stderr
        found = site.show(done.stdout.strip())
        assert (found["Partition"], found["Features"]) == ("v100,p100", ""), more
        record = "[hadar1 types=v100,p100 partitions=gpu listed=v100,p100]"
        assert found["Comment"] == record, more
        assert takes_back(site, found["JobId"]) == ("gpu", "v100|p100"), more
    for more in (
        ("--gres=gpu:1", "-N2"),
        ("--gres=gpu:1", "-n2"),
        ("--gpus=2",),
        ("--gres=gpu:1", "--exclusive"),
        ("--gres=gpu:1", "-w", "v1"),
    ):
        found, _ = site.submit("-p", "gpu", *more, str(path))
        assert (found["Partition"], found["Features"]) == ("gpu", "v100|p100"), more
    found, _ = site.submit("-p", "gpu", "--gres=gpu:1", "-C", "v100", str(path))
    assert (found["Partition"], found["Features"]) == ("gpu", "v100")
    # It starts in one of them.
    job = site.run(*words, "-p", "gpu", "--gres=gpu:2", str(path)).stdout.strip()
    site.box.wait_state(job, ("RUNNING",), 60)
    assert site.show(job)["Partition"] in ("v100", "p100")
    site.box.run("scancel", job)


def test_all_together_from_the_submit_to_the_tasks(site, with_spank):
    """A plan of the controller's in the environment of a task, on real nodes."""
    by_hand = site.use(*PLUGINS, nodes=True, untype=True)
    # The sandbox has a task prolog of its own, so the line to add to it is printed.
    (line,) = [one for one in by_hand if "TaskProlog" in one]
    own = site.etc / "task_prolog.sh"
    kept = own.read_text()
    own.write_text(kept + line.rpartition(" ")[2] + "\n")
    out = site.folder / "out"
    words = ("--hold", "-o", str(out), "--gres=gpu:v100:1", script(site))
    job = site.run("sbatch", "--parsable", *words).stdout.strip()
    found = site.show(job)
    assert decode(found["Comment"]).model == "resnet18" and found["TresPerNode"] == "gres:gpu:1"
    try:
        write_plan(site.box.exchange, JobPlan(job, gpus={"v100": 1}))
        site.box.run("scontrol", "release", job)
        # Its nodes have just taken the new configuration, and may have to be asked again.
        site.box.wait_state(job, ("COMPLETED",), 150)
    finally:
        own.write_text(kept)
    lines = out.read_text().splitlines()
    assert "HADAR_PLAN_GPUS=1" in lines and "HADAR_PLAN_TYPE=v100" in lines
    assert "HADAR_PLAN_COPIES=1" in lines
    assert f"HADAR_EXCHANGE={site.box.exchange}" in lines
    assert f"HADAR_CONTROLLER_UID={os.getuid()}" in lines and "HADAR_SIGNAL=USR2" in lines
    # The prolog and the epilog ran, said nothing on nodes without a GPU, and drained none.
    # Slurm 24.11 numbers them: Prolog[0].
    shown = site.box.run("scontrol", "show", "config")
    assert re.search(rf"^Prolog\S* *= {site.etc}/hadar/prolog$", shown, re.M)
    states = site.box.run("sinfo", "-h", "-o", "%T").split()
    assert not any(state.startswith(("drain", "down")) for state in states)
    assert not list(site.box.exchange.glob("gpu.*"))


PYNVML = """
import types
class NVMLError(Exception): pass
NVML_GPU_UTILIZATION_SAMPLES = 1
def no(*_): raise NVMLError
nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 4
nvmlDeviceGetHandleByIndex = nvmlDeviceGetMinorNumber = lambda i: i
nvmlDeviceGetUUID = lambda i: f'GPU-{i}'
nvmlDeviceGetName = lambda i: 'Pretend'
nvmlDeviceGetComputeRunningProcesses = lambda i: [types.SimpleNamespace(usedGpuMemory=1 << 20)]
nvmlDeviceGetSamples = nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetMemoryInfo = no
nvmlDeviceGetPowerUsage = lambda i: 50000
nvmlDeviceGetUtilizationRates = lambda i: types.SimpleNamespace(gpu=0)
"""


ON_NODE = """
import sys
from slurm_hadar.plugins import on_node
on_node.INTERVAL_S, on_node._WRITE_S = 0.1, 0.5
sys.exit(on_node.main())
"""


def test_the_sampler_lives_as_long_as_its_job_and_tells_the_controller(site, tmp_path):
    """slurmd's own prolog and epilog; only NVIDIA's library is a stand-in on this machine."""
    site.use("job-submit", "gpu-sampling", nodes=True)
    (tmp_path / "pynvml.py").write_text(PYNVML)
    # The same program, which looks and writes more often. An epilog knows a sampler by its name.
    program = tmp_path / "slurm_hadar.plugins.on_node"
    program.write_text(ON_NODE)
    python = tmp_path / "python"
    run = f'PYTHONPATH={tmp_path} exec {sys.executable} {program} "$@"'
    python.write_text(f"#!/bin/sh\nshift 3\n{run}\n")
    python.chmod(0o755)
    for name in ("prolog", "epilog"):
        path = site.etc / "hadar" / name
        text = path.read_text().replace("/dev/nvidiactl", "/dev/null")
        path.write_text(text.replace(sys.executable, str(python)))
    declared = site.folder / "sleeps.sh"
    declared.write_text("#!/bin/sh\n#HADAR model=m\nexec sleep 300\n")
    uid, box = os.getuid(), site.box

    def used(job):
        """Once there were two readings."""
        found = read_all_uses(box.exchange, {job: uid}).get(job)
        return found[0] if found and found[0].gpus else None

    words = ("sbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:v100:2")
    job = site.run(*words, str(declared)).stdout.strip()
    box.wait_state(job, ("RUNNING",))
    assert wait_until(lambda: used(job), 60, 0.05)
    first = used(job)
    assert first.host.startswith("v") and not first.finished
    # It is in no process group that slurmd ends with its prolog.
    assert is_alive(first.pid)
    old = box.exchange / "plan.1.json"
    old.touch()
    os.utime(old, (0, 0))
    tick = site.hadar("tick")
    assert tick.returncode == 0 and not old.exists(), tick.stderr
    done = site.hadar("explain", "--json", job)
    now, known = json.loads(done.stdout)["result"]["gpus"]
    assert now[0].startswith("last ") and known[0] == "2 v100"
    assert all("0% busy" in text and "held and idle 100%" in text for _, text in (now, known))
    box.run("scancel", job)
    box.wait_state(job, ("CANCELLED",))
    assert wait_until(lambda: not is_alive(first.pid), 60, 0.05)
    ((last,),) = read_all_uses(box.exchange, {job: uid}).values()
    assert last.finished and [use.uuid for use in last.gpus] == ["GPU-0", "GPU-1"]
    # Both GPUs were held and computed nothing.
    assert all(use.held_idle_s > 0.5 and use.busy_s == 0 for use in last.gpus)
    # A job that nobody declared is not looked at.
    job = site.run(*words, "--wrap", "true").stdout.strip()
    box.wait_state(job)
    assert not read_all_uses(box.exchange, {job: uid})


OF_EACH_SUBMIT = {"JobId", "SubmitTime", "LastSchedEval", "Priority"}


@pytest.mark.parametrize(
    "plugins", [("cli-filter",), ("job-submit",), ("cli-filter", "job-submit")]
)
def test_a_managed_job_is_otherwise_what_sbatch_makes_of_it(site, plugins):
    """Also while a controller is active."""
    write_heartbeat(site.box.exchange, "act", 60.0)
    requests = (("--gres=gpu:v100:1", "-p", "gpu"), ("--gpus=2", "-C", "v100|p100", "-n", "2"))
    site.remove()
    plain = [site.submit(*words, script(site))[0] for words in requests]
    site.use(*plugins)
    for words, job in zip(requests, plain, strict=True):
        ours, said = site.submit(*words, script(site))
        assert "the job is managed" in said and "BeginTime" not in said
        other = {key for key in job.keys() | ours.keys() if job.get(key) != ours.get(key)}
        assert "Comment" in other and other <= {"Comment", *OF_EACH_SUBMIT}
        assert site.wait_of(*words, script(site)) < 10
    assert site.wait_of("--begin=now+1000", "--gres=gpu:1", script(site)) > 900


@pytest.mark.parametrize("plugin", ["cli-filter", "job-submit"])
def test_a_check_names_files_that_add_a_begin_time_and_its_cure_ends_that(site, plugin):
    """Files of the release before stay in force until they are replaced."""
    write_heartbeat(site.box.exchange, "act", 60.0)
    site.use(plugin, untype=True)
    folder = site.etc / "hadar"
    assert site.checked()["level"] == "ok"
    text = (folder / "site.lua").read_text().replace(" --untype", " --untype --lease")
    setting = "untype = true,\n"
    assert text.count(setting) == 1
    old = f"{setting}  lease_s = 300,\n  lease_in_slurmctld = true,\n"
    (folder / "site.lua").write_text(text.replace(setting, old))
    fragment = f"{plugin.replace('-', '_')}.lua"
    for name in (fragment, "declaration.lua", "help.lua"):
        shutil.copy(WITH_LEASE / name, folder / name)
    if plugin == "job-submit":
        site.touch()
    assert site.wait_of("--gres=gpu:1", script(site)) > 200
    found = site.checked()
    names = ", ".join(sorted((fragment, "help.lua", "site.lua")))
    assert (
        found["level"] == "problem" and f"may still get a begin time from {names}," in found["what"]
    )
    site.cure(found)
    assert site.checked()["level"] == "ok"
    assert site.wait_of("--gres=gpu:1", script(site)) < 10


BROKEN = {
    "syntax error at load": ("help.lua", "function ("),
    "runtime error at load": ("declaration.lua", "error('broken')"),
    "nothing in it": ("help.lua", ""),
    "runtime error at a submit": ("help.lua", "{whole}\nhelp.changes = nil\nreturn help"),
    "an endless loop": ("help.lua", "{whole}\nfunction help.changes() while true do end end "
                        "return help"),
    "wrong types": ("site.lua", "return {types = 3, order = {}, opt_in = 7, untype = 'x'}"),
    "wrong types of answers": ("help.lua", "{whole}\nfunction help.changes() return "
                               "{gpus = {{'comment', {}}}, notes = 3} end return help"),
    "the fragment itself": ("job_submit.lua", "local x = "),
    "not there": ("job_submit.lua", None),
}  # fmt: skip


def test_a_broken_fragment_rejects_no_job_and_slurmctld_starts_with_it(site):
    site.use("job-submit", untype=True)
    folder = site.etc / "hadar"
    words = ("--gres=gpu:v100:1", "--comment=mine", script(site))
    job, _ = site.submit(*words)
    assert "hadar1" in job["Comment"]
    for way, (name, text) in BROKEN.items():
        good = (folder / name).read_text()
        if text is None:
            (folder / name).unlink()
        else:
            whole = good.rsplit("return help", 1)[0]
            (folder / name).write_text(text.replace("{whole}", whole))
        site.touch()
        job, _ = site.submit(*words)
        assert job["Comment"].strip() == "mine", way
        assert (job["TresPerNode"], job["Features"]) == ("gres:gpu:v100:1", ""), way
        (folder / name).write_text(good)
    log = (site.box.places.log / "slurmctld.log").read_text()
    assert log.count("slurm-hadar: ") >= len(BROKEN)
    (folder / "help.lua").write_text("function (")
    site.box.stop_slurmctld()
    site.box.start_slurmctld()
    job, _ = site.submit(*words)
    assert job["Comment"].strip() == "mine"


def test_a_broken_filter_stops_no_submit(site):
    site.use("cli-filter", untype=True)
    words = ("--gres=gpu:v100:1", script(site))
    job, _ = site.submit(*words)
    assert "hadar1" in job["Comment"]
    for name, text in (("help.lua", "function ("), ("site.lua", "return 5"), ("help.lua", "")):
        good = (site.etc / "hadar" / name).read_text()
        (site.etc / "hadar" / name).write_text(text)
        job, _ = site.submit(*words)
        assert job.get("Comment", "") == "" and job["TresPerNode"] == "gres:gpu:v100:1"
        (site.etc / "hadar" / name).write_text(good)


def test_the_sites_own_rules_come_first(site):
    own = site.etc / "job_submit.lua"
    site.remove()
    own.write_text(
        "function slurm_job_submit(job, parts, uid)\n"
        "  if job.name == 'no' then slurm.log_user('not here') return slurm.ERROR end\n"
        "  job.comment = 'the site was here'\n  return slurm.SUCCESS\nend\n"
        "function slurm_job_modify(job, rec, parts, uid) return slurm.SUCCESS end\n"
        "return slurm.SUCCESS\n"
    )
    text, conf = own.read_text(), site.box.conf.read_text()
    try:
        # A script that Slurm does not load is not brought into force by us.
        assert any("does not load it" in line for line in site.use("job-submit"))
        site.remove()
        site.box.conf.write_text(conf + "JobSubmitPlugins=lua\n")
        assert not site.use("job-submit")
        job, _ = site.submit("--gres=gpu:1", script(site))
        assert job["Comment"].startswith("the site was here [hadar1 ")
        done = site.run("sbatch", "-J", "no", script(site))
        assert done.returncode != 0 and "not here" in done.stderr
        site.remove()
        assert own.read_text() == text
    finally:
        site.remove()
        own.unlink()
        site.box.conf.write_text(conf)
        site.reconfigure()


def test_a_check_tells_the_very_command_when_the_settings_have_changed(site):
    site.use("job-submit", "cli-filter", untype=True)
    toml = site.box.config_path
    assert site.checked()["level"] == "ok"
    before = toml.read_text()
    assert "[wrapper]" not in before
    toml.write_text(before + '\n[wrapper]\ndefault_types = "any"\n')
    try:
        found = site.checked()
        assert found["level"] == "problem" and found["what"].startswith("site.lua in ")
        site.cure(found)
        assert site.checked()["level"] == "ok"
        text = (site.etc / "hadar" / "site.lua").read_text()
        assert 'default_types = "any",' in text and "untype = true," in text
    finally:
        toml.write_text(before)
        site.hadar("check", "--write")


def test_the_command_shows_does_and_takes_back(site):
    words = ("--slurm-conf", str(site.box.conf))
    hadar = str(BIN / "hadar")
    site.remove()
    assert site.files() == site.before
    shown = site.run(hadar, "plugins", "install", *words)
    assert shown.returncode == 0, shown.stderr
    assert "+JobSubmitPlugins=lua" in shown.stdout and site.files() == site.before
    done = site.run(hadar, "plugins", "install", *words, "--apply", "--plugin", "job-submit")
    assert "kept " in done.stdout and done.returncode == 0
    site.reconfigure()
    job, _ = site.submit("--gres=gpu:1", script(site))
    assert "hadar1" in job["Comment"]
    done = site.run(hadar, "plugins", "remove", *words, "--apply")
    assert done.returncode == 0 and site.files() == site.before
    site.reconfigure()
    job, _ = site.submit("--gres=gpu:1", script(site))
    assert job.get("Comment", "") == ""
    done = site.run(hadar, "plugins", "install", *words, "--plugin", "nothing")
    assert done.returncode == 2 and "there is no plugin 'nothing'" in done.stderr
