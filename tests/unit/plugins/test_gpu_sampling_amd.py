"""GPUs of AMD's through amdsmi, on a stand-in for its Python package, and the choice of a driver.

The stand-in answers as amdsmi 7.0.2 does: dicts, "N/A" for what a GPU does not give, exceptions of
its own.
"""

import sys
import time
import types

import pytest

from slurm_hadar.profiles import gpu_sampling_nvml, gpu_sampling_watch
from slurm_hadar.profiles.gpu_sampling import NoGpuDriver, SampledGpu, chosen
from slurm_hadar.profiles.gpu_sampling_amd import AmdSmi, NoAmdSmi
from slurm_hadar.profiles.gpu_sampling_watch import SamplingThread

MB = 1 << 20


class Driver(types.ModuleType):
    class AmdSmiException(Exception):
        pass

    def __init__(self):
        super().__init__("amdsmi")
        self.energy, self.open, self.handles = 0, 0, ["h0", "h1"]

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return self.handles

    def amdsmi_get_gpu_device_uuid(self, handle):
        return f"uuid-{handle}"

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "Pretend MI300X", "num_compute_units": 304}

    def amdsmi_get_gpu_enumeration_info(self, handle):
        return {"drm_render": {"h0": 128, "h1": 130}[handle], "hip_id": 0}

    def amdsmi_get_gpu_activity(self, handle):
        return {"gfx_activity": 50 if handle == "h0" else "N/A", "umc_activity": 3}

    def amdsmi_get_gpu_process_list(self, handle):
        if handle == "h1":
            raise self.AmdSmiException("not supported")
        held = [300 * MB, 0]
        return [{"pid": pid, "mem": 7, "memory_usage": {"vram_mem": at}}
                for pid, at in enumerate(held)]  # fmt: skip

    def amdsmi_get_gpu_vram_usage(self, handle):
        return {"vram_total": 196_592, "vram_used": 500}

    def amdsmi_get_energy_count(self, handle):
        if handle == "h1":
            raise self.AmdSmiException("not supported")
        return {"energy_accumulator": self.energy, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_power_info(self, handle):
        if handle == "h1":
            return {"current_socket_power": "N/A", "average_socket_power": 90}
        return {"current_socket_power": 140, "average_socket_power": "N/A"}


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setitem(sys.modules, "amdsmi", found)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return found


def test_gpus_and_their_figures(driver):
    amd = AmdSmi()
    assert amd.gpus() == [
        SampledGpu("uuid-h0", "Pretend MI300X", 0, 128),
        SampledGpu("uuid-h1", "Pretend MI300X", 1, 130),
    ]
    first, second = amd.read("uuid-h0"), amd.read("uuid-h1")
    assert (first.utilization, first.memory_mb, first.power_w) == (0.5, 300, 140)
    # Only the process that holds some of its memory is on it.
    assert first.processes == 1
    assert (second.utilization, second.memory_mb, second.power_w) == (None, 500, 90)
    assert second.processes is None
    with pytest.raises(KeyError):
        amd.read("uuid-h2")
    amd.close()
    assert driver.open == 0


def test_power_comes_from_the_energy_in_between(driver, monkeypatch):
    clock = iter([10.0, 12.0, 13.0])
    amd = AmdSmi()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert amd.read("uuid-h0").power_w == 140
    driver.energy = 1e8
    # 1e8 counts of 15.3 uJ in 2 s.
    assert amd.read("uuid-h0").power_w == pytest.approx(765)
    driver.energy = 0
    # A counter that began anew.
    assert amd.read("uuid-h0").power_w == 140


def test_older_releases_name_the_energy_otherwise_and_do_not_enumerate(driver, monkeypatch):
    clock = iter([10.0, 11.0])
    monkeypatch.delattr(Driver, "amdsmi_get_gpu_enumeration_info")
    monkeypatch.setattr(
        Driver,
        "amdsmi_get_energy_count",
        lambda self, _: {"power": self.energy, "counter_resolution": 10.0},
    )
    amd = AmdSmi()
    assert [gpu.render for gpu in amd.gpus()] == [None, None]
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    amd.read("uuid-h0")
    driver.energy = 1e7
    assert amd.read("uuid-h0").power_w == pytest.approx(100)


def test_a_job_has_its_gpus_by_place_or_by_render_node(driver):
    gpus = AmdSmi().gpus()
    for text, uuids in (("1", ["uuid-h1"]), ("128,130", ["uuid-h0", "uuid-h1"]), ("2", [])):
        assert [gpu.uuid for gpu in chosen(gpus, {"SLURM_JOB_GPUS": text})] == uuids


def test_what_is_missing_is_said(driver, monkeypatch, capsys):
    def no():
        raise driver.AmdSmiException("no amdgpu")

    monkeypatch.setattr(driver, "amdsmi_init", no)
    with pytest.raises(NoAmdSmi, match="no amdgpu; this machine has no AMD driver"):
        AmdSmi()
    with pytest.raises(NoGpuDriver, match="nvidia-ml-py is not installed; amdsmi does not start"):
        gpu_sampling_watch.open_gpus()
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(NoAmdSmi, match="amdsmi of ROCm is not installed"):
        AmdSmi()


def test_a_package_without_its_library_prints_nothing(driver, monkeypatch, tmp_path, capsys):
    # As amdsmi 7.0.2 does without libamd_smi.so.
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so')\n{}['libamd_smi']\n")
    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoAmdSmi, match="cannot be loaded"):
        AmdSmi()
    assert capsys.readouterr().out == ""


def test_the_driver_that_has_gpus_is_taken(driver, monkeypatch):
    reader = gpu_sampling_watch.open_gpus()
    assert isinstance(reader, AmdSmi)
    with SamplingThread(reader, reader.gpus(), interval_s=0.01) as watch:
        time.sleep(0.05)
    assert [use.name for use in watch.uses()] == ["Pretend MI300X"] * 2 and not watch.problem
    reader.close()

    class Empty:
        closed = False

        def gpus(self):
            return []

        def close(self):
            Empty.closed = True

    # A node whose NVIDIA driver is there and has no GPU.
    monkeypatch.setattr(gpu_sampling_nvml, "Nvml", Empty)
    assert isinstance(gpu_sampling_watch.open_gpus(), AmdSmi) and Empty.closed
    driver.handles = []
    with pytest.raises(NoGpuDriver, match="Empty shows no GPU; AmdSmi shows no GPU"):
        gpu_sampling_watch.open_gpus()
