"""What runs on compute nodes: the plan as environment, and sampling with a stand-in for GPUs."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar.exchange import files
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.plugins import on_node, programs
from slurm_hadar.profiles.gpu_sampling import GpuReading, SampledGpu
from slurm_hadar.profiles.gpu_sampling_files import own_uses, read_all_uses
from slurm_hadar.sandbox.processes import is_alive, wait_until

UID = os.getuid()
OTHER = 65533
"""A user without an account, as nobody's processes are not ours to touch."""


def test_the_plan_becomes_fixed_names_and_plain_values(tmp_path):
    write_plan(tmp_path, JobPlan("7", gpus={"v100": 2}, batch=256, copies=2, shares=(0.25, 0.75)))
    assert on_node.task_output(tmp_path, UID, {"SLURM_JOB_ID": "7"}).splitlines() == [
        "export HADAR_PLAN_GPUS=2",
        "export HADAR_PLAN_TYPE=v100",
        "export HADAR_PLAN_BATCH=256",
        "export HADAR_PLAN_COPIES=2",
        "export HADAR_PLAN_SHARES=0.25:0.75",
        f"export HADAR_EXCHANGE={tmp_path}",
        f"export HADAR_CONTROLLER_UID={UID}",
    ]


def test_an_array_task_has_a_plan_of_its_own(tmp_path):
    write_plan(tmp_path, JobPlan("7_3", gpus={"v100": 1, "p100": 2}))
    of_task = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    lines = on_node.task_output(tmp_path, UID, {**of_task, "HADAR_EXCHANGE": "/other"})
    assert "export HADAR_PLAN_TYPE=mixed\n" in lines and "HADAR_EXCHANGE" not in lines


def test_a_plan_of_somebody_else_is_not_believed(tmp_path, monkeypatch):
    write_plan(tmp_path, JobPlan("7", gpus={"v100": 2}))
    monkeypatch.setattr(os, "getuid", lambda: UID + 1)
    assert on_node.task_output(tmp_path, UID + 1, {"SLURM_JOB_ID": "7"}) == ""


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=30), st.integers(0, 10**6))
def test_no_value_can_become_a_command_of_slurm(tmp_path, kind, count):
    plan = {"job": "7", "time": 1.0, "gpus": {kind: count}, "batch": None, "copies": 1}
    plan |= {"shares": [], "cpus_per_gpu": 1.5, "save": "", "restarts": 0, "reason": kind}
    files.write_json(tmp_path / "plan.7.json", plan)
    for line in on_node.task_output(tmp_path, UID, {"SLURM_JOB_ID": "7"}).splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        assert line.startswith("export HADAR_")
        allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-"
        assert set(value) <= set(allowed + ("/" if name == "HADAR_EXCHANGE" else ""))


def test_the_task_prolog_as_slurm_runs_it(tmp_path):
    write_plan(tmp_path, JobPlan("7", gpus={"v100": 2}, batch=64))
    path = tmp_path / "task_prolog"
    path.write_text(programs.program("task_prolog", Path(sys.executable), tmp_path, UID))
    done = subprocess.run(
        ["sh", path],
        env={"SLURM_JOB_ID": "7", "HADAR_SIGNAL": "USR2"},
        capture_output=True,
        text=True,
    )
    assert "export HADAR_PLAN_BATCH=64\n" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_the_task_prolog_starts_a_watcher_that_ends_with_the_batch_step(tmp_path):
    exchange, saved = tmp_path / "exchange", tmp_path / "a.pt"
    exchange.mkdir()
    saved.write_text("x")
    path = tmp_path / "task_prolog"
    path.write_text(programs.program("task_prolog", Path(sys.executable), exchange, UID))
    step = f"exec -a 'slurmstepd: [7.batch]' sh -c 'sh {path}; echo ready; read x'"
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "7",
        "HADAR_SIGNAL": "USR2",
        "HADAR_CHECKPOINT": f"watch:{saved}",
    }
    with subprocess.Popen(
        ["bash", "-c", step], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert "ready\n" in (daemon.stdout.readline() for _ in range(3))
        end, report = time.monotonic() + 60, None
        while report is None or report.checkpoint is None:
            assert time.monotonic() < end
            report = read_progress(exchange, "7", os.getuid())
            time.sleep(0.1)
        assert Path(f"/proc/{report.pid}").exists()
        # No task of srun gets one.
        more = subprocess.run(["sh", path], env={**env, "SLURM_STEP_ID": "0"}, timeout=60)
        assert more.returncode == 0
        daemon.communicate("\n")
    while Path(f"/proc/{report.pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_its_watcher_reads_the_output_of_the_task_and_not_of_the_prolog(tmp_path):
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    path = tmp_path / "task_prolog"
    path.write_text(programs.program("task_prolog", Path(sys.executable), exchange, UID))
    # As in Slurm, which reads what the prolog prints.
    task = f"sh {path} | cat >/dev/null; for i in $(seq 9999); do echo step=$i; sleep 0.3; done"
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "7",
        "HADAR_SIGNAL": "USR2",
        "HADAR_PROGRESS": "step={step*64}",
    }
    step = ["bash", "-c", f"exec -a 'slurmstepd: [7.batch]' sh -c '{task}'"]
    end, report = time.monotonic() + 60, None
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(step, env=env, stdout=out) as daemon,
    ):
        while report is None or not report.samples:
            assert time.monotonic() < end
            report = read_progress(exchange, "7", os.getuid())
            time.sleep(0.1)
        daemon.kill()
    assert report.samples % 64 == 0 and report.checkpoint is None
    while Path(f"/proc/{report.pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_prolog_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "SECONDS", 1)
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 30\n")
    slow.chmod(0o755)
    (tmp_path / "plan.7.json").touch()
    path = tmp_path / "task_prolog"
    path.write_text(programs.program("task_prolog", slow, tmp_path, UID))
    begin = time.monotonic()
    done = subprocess.run(
        ["sh", path],
        env={"SLURM_JOB_ID": "7", "HADAR_SIGNAL": "USR2"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"") and time.monotonic() - begin < 25


def test_the_entry_point_ends_with_0_for_any_words(capfd):
    for words in ([], ["nonsense"], ["prolog"], ["epilog", "--exchange", "/nowhere"]):
        assert on_node.main(words) == 0


class Pretend:
    """GPUs whose clock goes a second further at each look."""

    def __init__(self, utilization=1.0):
        self.time, self.utilization, self.closed = 0.0, utilization, False

    def gpus(self):
        return [SampledGpu("GPU-a", "Pretend", 0), SampledGpu("GPU-b", "Pretend", 1)]

    def read(self, uuid):
        self.time += 0.001
        return GpuReading(self.time, self.utilization, 100.0, 50.0, 1)

    def close(self):
        self.closed = True


def test_a_sampler_writes_ends_with_its_file_and_says_when_it_is_done(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(on_node, "INTERVAL_S", 0.01)
    monkeypatch.setattr(on_node, "_WRITE_S", 0.05)
    reader = Pretend()

    def take_away():
        while not (found := own_uses(tmp_path, "7", "n1", UID)) or not found[0][1].gpus:
            time.sleep(0.01)
        found[0][0].unlink()

    thread = threading.Thread(target=take_away)
    thread.start()
    on_node.sample(tmp_path, "7", reader, reader.gpus()[:1])
    thread.join()
    assert reader.closed and not own_uses(tmp_path, "7", "n1", UID)


PYNVML = """
import types
class NVMLError(Exception): pass
NVML_GPU_UTILIZATION_SAMPLES = 1
def no(*_): raise NVMLError
nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda i: 'h'
nvmlDeviceGetMinorNumber = lambda h: 2
nvmlDeviceGetUUID = lambda h: 'GPU-x'
nvmlDeviceGetName = lambda h: b'Pretend'
nvmlDeviceGetComputeRunningProcesses = lambda h: []
nvmlDeviceGetSamples = nvmlDeviceGetTotalEnergyConsumption = no
nvmlDeviceGetMemoryInfo = nvmlDeviceGetPowerUsage = no
nvmlDeviceGetUtilizationRates = lambda h: types.SimpleNamespace(gpu=0)
"""


def test_the_epilog_ends_the_sampler_that_the_prolog_left(tmp_path):
    """The real processes, with a module in the place of pynvml."""
    fake = tmp_path / "site"
    fake.mkdir()
    (fake / "pynvml.py").write_text(PYNVML)
    environment = {
        **os.environ,
        "PYTHONPATH": str(fake),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "2",
        "SLURMD_NODENAME": "n1",
    }
    argv = [sys.executable, "-m", "slurm_hadar.plugins.on_node"]
    argv += ["prolog", "--exchange", str(tmp_path)]
    subprocess.run(argv, env=environment, check=True, timeout=60)
    until = time.monotonic() + 60
    while not (found := own_uses(tmp_path, "7", "n1", UID)) and time.monotonic() < until:
        time.sleep(0.05)
    ((_, first),) = found
    assert not first.finished and first.pid > 1
    argv[3] = "epilog"
    subprocess.run(argv, env=environment, check=True, timeout=60)
    # The epilog waits two seconds for that; a busy machine may take longer.
    assert wait_until(lambda: not is_alive(first.pid), 60)
    (last,) = read_all_uses(tmp_path, {"7": UID})["7"]
    assert last.finished and last.host == "n1"
    # Nobody computed on it, and nobody was there.
    assert last.gpus[0].uuid == "GPU-x" and last.gpus[0].unused_s > 0


def test_no_job_can_enter_the_sampler_which_is_outside_of_its_cgroup(tmp_path):
    code = """
import ctypes, os
from slurm_hadar.plugins import on_node
from slurm_hadar.profiles import gpu_sampling_nvml
def look():
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
    raise gpu_sampling_nvml.NoNvml("none")
gpu_sampling_nvml.Nvml = look
on_node.main(["prolog", "--exchange", os.environ["FOLDER"]])
"""
    environment = {**os.environ, "SLURM_JOB_ID": "7", "FOLDER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.skipif(UID != 0, reason="slurmd's prolog runs as root")
@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_a_process_of_the_same_user_attaches_to_no_instruction_of_the_sampler():
    """Prolog and epilog as slurmd runs them, beside a process that seizes whatever it may."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        attach = folder / "attach"
        source = Path(__file__).with_name("attach.c")
        subprocess.run(["gcc", "-O2", "-o", attach, source], check=True, timeout=60)
        python = folder / "python"
        # The interpreter of the tests, with a stand-in for NVIDIA's library.
        (folder / "pynvml.py").write_text(PYNVML)
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); import runpy; "
        code += "name = sys.argv[1]; del sys.argv[1]; "
        code += "runpy.run_module(name, run_name='__main__', alter_sys=True)"
        python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -I -c "{code}" "$@"\n')
        python.chmod(0o755)
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": str(OTHER),
            "SLURM_JOB_GID": str(OTHER),
            "SLURM_JOB_GPUS": "2",
            "SLURM_JOB_COMMENT": "[hadar1 model=m]",
            "SLURMD_NODENAME": "n1",
        }
        for step in ("prolog", "epilog"):
            text = programs.program(step, python, folder, UID)
            text = text.replace("/dev/nvidiactl", "/dev/null").replace("-k 1 3", "-k 1 60")
            (folder / step).write_text(text)
        as_other = ["setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups"]
        attacker = subprocess.Popen(
            [*as_other, attach, "120"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert attacker.stdout.readline() == "ready\n"
            # It does attach where it may.
            subprocess.run([*as_other, "sleep", "0.5"], check=True, timeout=60)
            assert "attached" in attacker.stdout.readline()
            subprocess.run(["sh", folder / "prolog"], env=environment, check=True, timeout=120)
            assert wait_until(lambda: own_uses(folder, "7", "n1", OTHER), 60)
            ((_, first),) = own_uses(folder, "7", "n1", OTHER)
            status = Path(f"/proc/{first.pid}/status").read_text()
            subprocess.run(["sh", folder / "epilog"], env=environment, check=True, timeout=120)
            assert wait_until(lambda: not is_alive(first.pid), 60)
            (last,) = read_all_uses(folder, {"7": OTHER})["7"]
        finally:
            attacker.kill()
            said = attacker.stdout.read()
            attacker.wait()
        assert last.finished
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(lines["Uid"].split()) == set(lines["Gid"].split()) == {str(OTHER)}
        assert not lines["Groups"].split()
        assert {lines[one] for one in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert not [line for line in said.splitlines() if "on_node" in line], said


def test_on_a_node_without_a_gpu_nothing_stays(tmp_path):
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
    fake = tmp_path / "site"
    fake.mkdir()
    (fake / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('no driver')\n"
    )
    argv = [sys.executable, "-m", "slurm_hadar.plugins.on_node"]
    argv += ["prolog", "--exchange", str(tmp_path)]
    done = subprocess.run(
        argv, env={**environment, "PYTHONPATH": str(fake)}, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("gpu.")]
