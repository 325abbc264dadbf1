"""Windowed means of what GPUs do. A module stands in for pynvml; one test wants a real GPU."""

import json
import os
import sys
import time
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.profiles.gpu_sampling import (
    GpuReading,
    GpuUse,
    SampledGpu,
    SampleWindow,
    chosen,
    training_use,
)
from slurm_hadar.profiles.gpu_sampling_files import (
    NodeUse,
    new_path,
    parse,
    read_all_uses,
    write_use,
)
from slurm_hadar.profiles.gpu_sampling_nvml import NoNvml, Nvml
from slurm_hadar.profiles.gpu_sampling_watch import SamplingThread
from slurm_hadar.sandbox.processes import wait_until

GPU = SampledGpu("GPU-a", "Pretend", 0)
UID = os.getuid()


def window(readings, window_s=100.0, gap_s=50.0):
    found = SampleWindow(GPU, window_s, gap_s)
    for reading in readings:
        found.add(GpuReading(*reading))
    return found.use()


def test_a_mean_weighs_each_reading_with_its_time():
    use = window([(0, None, 0, 0, 0), (10, 1.0, 100, 300, 1), (40, 0.5, 200, 100, 1)])
    assert use.seconds == 40
    assert use.utilization == pytest.approx((10 * 1.0 + 30 * 0.5) / 40)
    assert use.memory_mb == pytest.approx((10 * 100 + 30 * 200) / 40)
    assert use.most_memory_mb == 200
    assert use.power_w == pytest.approx((10 * 300 + 30 * 100) / 40)
    assert (use.busy_s, use.held_idle_s, use.unused_s) == (40, 0, 0)


def test_held_but_idle_is_distinguished_from_nobody_there():
    use = window([(0, 0, 0, 0, 0), (10, 0.0, 0, 50, 0), (30, 0.0, 900, 60, 1), (35, 0.9, 9, 9, 1)])
    assert (use.busy_s, use.held_idle_s, use.unused_s) == (5, 20, 10)
    # A driver that does not tell processes: held.
    assert window([(0, 0, 0, 0, None), (10, 0.0, 0, 0, None)]).held_idle_s == 10


def test_the_window_forgets_and_cuts_what_reaches_out_of_it():
    use = window([(0, 0, 0, 0, 0), (40, 0.0, 0, 0, 1), (80, 1.0, 0, 0, 1), (120, 1.0, 0, 0, 1)])
    assert use.seconds == 100 and use.busy_s == 80 and use.held_idle_s == 20


def test_time_in_which_nobody_looked_counts_for_nothing():
    use = window([(0, 0, 0, 0, 0), (10, 1.0, 0, 0, 1), (95, 0.0, 0, 0, 1), (100, 1.0, 0, 0, 1)])
    assert use.seconds == 15 and use.held_idle_s == 0


def test_what_a_gpu_does_not_tell_is_left_out_of_the_mean_only():
    use = window([(0, None, None, None, None), (10, 0.5, None, 5, None), (20, None, 7, 5, None)])
    assert use.utilization == 0.5 and use.memory_mb == 7 and use.seconds == 20
    use = window([(0, None, None, None, None), (10, None, None, None, None)])
    assert use.utilization is use.memory_mb is use.most_memory_mb is use.power_w is None


def test_one_reading_says_nothing_and_a_clock_that_stands_still_neither():
    assert window([(5, 1.0, 1, 1, 1)]) is None
    assert window([(5, 1.0, 1, 1, 1), (5, 1.0, 1, 1, 1), (4, 1.0, 1, 1, 1)]) is None


STEPS = st.lists(
    st.tuples(
        st.floats(0.1, 30),
        st.one_of(st.none(), st.floats(0, 1)),
        st.floats(0, 1e5),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=30,
)


@given(STEPS, st.floats(1, 200))
def test_means_lie_within_what_was_read_and_seconds_add_up(steps, window_s):
    now, readings = 0.0, []
    for span, utilization, memory, processes in steps:
        now += span
        readings.append((now, utilization, memory, 1.0, processes))
    use = window(readings, window_s=window_s)
    assert 0 < use.seconds <= min(window_s, now) + 1e-6
    assert use.busy_s + use.held_idle_s + use.unused_s == pytest.approx(use.seconds)
    kept = [u for _, u, _, _, _ in readings[1:] if u is not None]
    if use.utilization is not None:
        assert min(kept) - 1e-9 <= use.utilization <= max(kept) + 1e-9
    assert use.memory_mb <= use.most_memory_mb + 1e-6


def use_of(seconds=10.0, utilization=0.5, power=100.0, held=2.0):
    busy = seconds - held
    return GpuUse("GPU-a", "P", seconds, utilization, 10.0, 20.0, power, busy, held, 0.0)


def test_a_training_and_its_gpus_together():
    found = training_use(50.0, [use_of(), use_of(utilization=1.0, power=300.0, held=0.0)])
    assert found.gpus == 2 and found.utilization == 0.75 and found.power_w == 400
    assert found.joules_per_sample == 8.0 and found.held_idle == 0.1
    assert training_use(50.0, []) is None
    assert training_use(0.0, [use_of(power=None)]).joules_per_sample is None


GPUS = [SampledGpu("GPU-a", "x", 3), SampledGpu("GPU-b", "x", 0), SampledGpu("GPU-c", "x", 1)]


@pytest.mark.parametrize(
    ("environment", "uuids"),
    [
        ({"SLURM_JOB_GPUS": "0,3"}, ["GPU-a", "GPU-b"]),
        ({"SLURM_JOB_GPUS": "0-1"}, ["GPU-b", "GPU-c"]),
        ({"SLURM_JOB_GPUS": "7"}, []),
        ({"SLURM_JOB_GPUS": "x", "CUDA_VISIBLE_DEVICES": "GPU-c"}, ["GPU-c"]),
        ({"SLURM_JOB_GPUS": "0-99999999999"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, []),
        ({}, []),
    ],
)
def test_the_jobs_own_gpus_by_the_number_of_their_device(environment, uuids):
    assert [gpu.uuid for gpu in chosen(GPUS, environment)] == uuids


class Driver(types.ModuleType):
    """A stand-in for pynvml with two GPUs, the second an old one that tells little."""

    NVML_GPU_UTILIZATION_SAMPLES = 1

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.samples, self.energy, self.open = [], 0, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"h{index}"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}".encode() if handle == "h0" else f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle):
        return "Pretend"

    def nvmlDeviceGetMinorNumber(self, handle):
        return {"h0": 1, "h1": 0}[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if handle == "h1":
            raise self.NVMLError("not supported")
        return [types.SimpleNamespace(usedGpuMemory=300 << 20)]

    def nvmlDeviceGetSamples(self, handle, kind, since):
        if handle == "h1":
            raise self.NVMLError("not supported")
        fresh = [s for s in self.samples if s.timeStamp > since]
        return 1, fresh

    def nvmlDeviceGetUtilizationRates(self, handle):
        return types.SimpleNamespace(gpu=25)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle == "h1":
            raise self.NVMLError("not supported")
        return self.energy

    def nvmlDeviceGetPowerUsage(self, handle):
        return 90_000

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(used=500 << 20)


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def sampled(time_us, percent):
    value = types.SimpleNamespace(uiVal=percent)
    return types.SimpleNamespace(timeStamp=time_us, sampleValue=value)


def test_utilization_is_the_mean_of_what_the_driver_sampled_in_between(driver):
    nvml = Nvml()
    driver.samples = [sampled(1, 90)]
    # What was before anybody looked does not count.
    assert nvml.read("GPU-h0").utilization == 0.25
    driver.samples += [sampled(2, 100), sampled(3, 50)]
    assert nvml.read("GPU-h0").utilization == 0.75
    assert nvml.read("GPU-h0").utilization == 0.25
    assert nvml.read("GPU-h1").utilization == 0.25


def test_power_comes_from_the_energy_in_between(driver, monkeypatch):
    clock = iter([10.0, 12.0, 13.0])
    nvml = Nvml()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert nvml.read("GPU-h0").power_w == 90
    driver.energy = 400_000
    assert nvml.read("GPU-h0").power_w == 200
    driver.energy = 0
    # A counter that began anew.
    assert nvml.read("GPU-h0").power_w == 90


def test_gpus_have_their_devices_number_and_memory_is_what_processes_hold(driver):
    nvml = Nvml()
    assert [(gpu.uuid, gpu.minor) for gpu in nvml.gpus()] == [("GPU-h0", 1), ("GPU-h1", 0)]
    assert nvml.read("GPU-h0").memory_mb == 300 and nvml.read("GPU-h0").processes == 1
    assert nvml.read("GPU-h1").memory_mb == 500 and nvml.read("GPU-h1").processes is None
    nvml.close()
    assert driver.open == 0


def test_without_driver_or_library_it_is_said_what_is_missing(driver, monkeypatch):
    def no():
        raise driver.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(driver, "nvmlInit", no)
    with pytest.raises(NoNvml, match="no NVIDIA driver"):
        Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoNvml, match="nvidia-ml-py is not installed"):
        Nvml()


def test_the_library_is_not_imported_before_it_is_used():
    import subprocess

    code = (
        "import sys, slurm_hadar.profiles.gpu_sampling_nvml, slurm_hadar.plugins.on_node\n"
        "heavy = {'pynvml', 'numpy', 'torch', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_watch_fills_its_windows_and_ends(driver):
    nvml = Nvml()
    with SamplingThread(nvml, nvml.gpus(), interval_s=0.01) as watch:
        assert wait_until(lambda: [use for use in watch.uses() if use.seconds > 0.08], 60, 0.01)
    uses = watch.uses()
    assert [use.uuid for use in uses] == ["GPU-h0", "GPU-h1"] and not watch.problem
    assert uses[0].seconds > 0.08


def test_a_driver_that_goes_away_stops_nothing_but_the_watch(driver, monkeypatch):
    nvml = Nvml()
    with SamplingThread(nvml, nvml.gpus(), interval_s=0.01) as watch:
        monkeypatch.setattr(nvml, "read", lambda uuid: 1 / 0)
        assert wait_until(lambda: watch.problem, 60, 0.01)
    assert watch.problem.startswith("ZeroDivisionError")


def node_use(job="7", host="n1", when=5.0, **more):
    usual: dict[str, Any] = {"finished": False, "gpus": (use_of(),)}
    return NodeUse(job, host, 12, when, **usual | more)


def test_files_are_read_back_the_newest_of_each_node(tmp_path):
    for use in (node_use(), node_use(when=9.0), node_use(host="n2"), node_use("8")):
        write_use(new_path(tmp_path, use.job), use)
    found = read_all_uses(tmp_path, {"7": UID, "8": UID + 1, "9": UID})
    assert found == {"7": [node_use(when=9.0), node_use(host="n2")]}
    assert read_all_uses(tmp_path / "nowhere", {"7": UID}) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 5},
        {"gpus": [5]},
        {"gpus": [{}]},
        {"gpus": [{}] * 65},
        {"time": "x"},
        {"host": "a\nb"},
        {"finished": 1},
        {"pid": -1},
    ],
)
def test_a_hostile_file_says_nothing(tmp_path, change):
    path = new_path(tmp_path, "7")
    write_use(path, node_use())
    source = json.loads(path.read_bytes())
    assert parse(source) == node_use()
    assert parse(source | change) is None
    worse = [source["gpus"][0] | {"utilization": 2.0}]
    assert parse(source | {"gpus": worse}) is None


def test_a_real_gpu_is_read():
    try:
        nvml = Nvml()
    except NoNvml as missing:
        pytest.skip(f"NVML has no GPU to read: {missing}")
    gpus = nvml.gpus()
    with SamplingThread(nvml, gpus, interval_s=0.2) as watch:
        time.sleep(1)
    assert [use.uuid for use in watch.uses()] == [gpu.uuid for gpu in gpus] and not watch.problem
    assert all(use.power_w is None or use.power_w > 0 for use in watch.uses())
    nvml.close()


def test_the_real_library_has_every_name_that_is_used():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in vars(Driver):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(pynvml, name), name
