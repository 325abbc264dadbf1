import json
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.job_side import node_gpus
from slurm_hadar.runtime import meter as meters
from slurm_hadar.runtime.emulation import emulation
from slurm_hadar.runtime.meter import Meter
from slurm_hadar.sandbox import gpu_emulation as paces
from slurm_hadar.sandbox.gpu_emulation import job_gpus, job_nodes, true_rate

RATES = {"m": {"v100": {"1": 1000.0, "2": 1800.0, "4": 3000.0}, "k80": {"1": 200.0, "4": 800.0}}}
TYPES = {"v1": ["v100"] * 4, "v2": ["v100"] * 4, "k1": ["k80"] * 4}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ({"v100": 1}, 1000.0),
        ({"v100": 2}, 1800.0),
        ({"v100": 3}, 2700.0),
        ({"v100": 8}, 6000.0),
        ({"v100": 1, "k80": 2}, 600.0),
    ],
)
def test_true_rate(gpus, expected):
    assert true_rate(RATES, "m", gpus) == pytest.approx(expected)


def test_names_are_compared_as_people_write_them():
    assert true_rate({"ResNet-18": {"v100": {"1": 7.0}}}, "resnet18", {"v100": 1}) == 7.0


def test_what_the_file_lacks_is_reported():
    with pytest.raises(HadarError, match="no emulated GPU"):
        true_rate(RATES, "m", {})
    with pytest.raises(HadarError, match="node z9"):
        job_gpus([("z9", ["0"])], ["z9"], TYPES)


def test_gpus_of_the_job():
    assert node_gpus({"CUDA_VISIBLE_DEVICES": "0,1,3"}) == ["0", "1", "3"]
    assert node_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "2"}) == ["2"]
    assert node_gpus({}) == []
    assert job_nodes({"SLURM_JOB_NODELIST": "v[1-2],k1"}) == ["k1", "v1", "v2"]
    assert job_nodes({"SLURM_JOB_NODELIST": "v1"}) == ["v1"]
    assert job_nodes({}) == []
    one = [("v1", ["0", "1"])]
    assert job_gpus(one, ["v1"], TYPES) == {"v100": 2}
    assert job_gpus(one, ["v1", "v2"], TYPES) == {"v100": 4}
    assert job_gpus(one, ["v1", "k1"], TYPES, {"v100": 2, "k80": 1}) == {"v100": 2, "k80": 1}
    assert job_gpus(one, ["v1", "k1"], TYPES, {"v100": 1, "k80": 1}) == {"v100": 2, "k80": 2}
    # Several processes: each tells its own node; the same GPU counts once.
    seen = [("v1", ["0", "1"]), ("v1", ["0", "1"]), ("k1", ["2"])]
    assert job_gpus(seen, ["v1", "k1"], TYPES, {"v100": 9}) == {"v100": 2, "k80": 1}


@pytest.fixture
def paced(tmp_path, monkeypatch):
    path = tmp_path / "true_rates.json"
    content = {"version": 1, "time_scale": 2.0, "nodes": TYPES, "rates": RATES}
    path.write_text(json.dumps(content))
    monkeypatch.setenv("HADAR_TRUE_RATES", str(path))
    monkeypatch.setenv("HADAR_EMULATION", "slurm_hadar.sandbox.gpu_emulation")
    monkeypatch.setenv("SLURMD_NODENAME", "v1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "v1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return path


class Clock:
    """Wakes sleepers late, as a busy machine does, by ``late`` s."""

    def __init__(self, late=0.0):
        self.now, self.late = 1000.0, late

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.late


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    pretend_time = SimpleNamespace(monotonic=found.monotonic, sleep=found.sleep)
    monkeypatch.setattr(paces, "time", pretend_time)
    monkeypatch.setattr(meters, "time", pretend_time)
    return found


@pytest.mark.parametrize("late", [0.0, 0.004])
def test_throughput_is_the_true_rate(paced, clock, late):
    pace: Any = emulation("m")
    assert pace is not None and pace.rate == 3600.0 and dict(pace.gpus) == {"v100": 2}
    begin, clock.late = clock.now, late
    pace.start()
    done = 0
    while done < 3600:
        clock.now += 0.004  # what the network itself would need
        pace.hold(60, lambda: False)
        done += 60
    assert clock.now - begin == pytest.approx(1.0, abs=0.01)


def test_a_cut_sleep_is_owed_and_paid_by_the_next_attempt(paced, clock):
    pace = emulation("m")
    assert pace is not None
    pace.start()
    pace.hold(3600, lambda: True)
    assert pace.owed == pytest.approx(3600)
    begin = clock.now
    pace.start(owed=1080)
    pace.hold(720, lambda: False)
    assert clock.now - begin == pytest.approx(0.5)


def test_a_pause_is_not_caught_up(paced, clock):
    pace = emulation("m")
    assert pace is not None
    pace.start()
    clock.now += 0.3
    pace.shift(0.3)
    begin = clock.now
    pace.hold(1080, lambda: False)
    assert clock.now - begin == pytest.approx(0.3)


def test_it_sleeps_in_real_time(paced):
    pace = emulation("m")
    assert pace is not None
    begin = time.monotonic()
    pace.start()
    pace.hold(1080, lambda: False)
    assert time.monotonic() - begin >= 0.3


def test_no_pace_without_the_file(paced, monkeypatch):
    paced.write_text("{}")
    with pytest.raises(HadarError, match="cannot be used"):
        emulation("m")
    monkeypatch.delenv("HADAR_TRUE_RATES")
    assert emulation("m") is None


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("", "the training names no model"),
        ("x", "it has no rate for model 'x'"),
        ("only-k80", "it has no rate for model 'only-k80' on v100"),
    ],
)
def test_a_model_without_a_rate_runs_as_fast_as_it_can_and_says_so(paced, model, why):
    content = json.loads(paced.read_text())
    content["rates"]["only-k80"] = {"k80": {"1": 5.0}}
    paced.write_text(json.dumps(content))
    pace = emulation(model)
    assert pace is not None and dict(pace.gpus) == {"v100": 2}
    assert why in pace.note and "not held back" in pace.note
    begin = time.monotonic()
    pace.start(owed=100.0)
    pace.hold(10**9, lambda: False)
    pace.shift(0.1)
    assert pace.owed == 0 and time.monotonic() - begin < 5
    assert emulation("m").note == ""


def test_a_hook_that_cannot_be_used_is_named_and_none_is_needed(paced, monkeypatch):
    for name in ("slurm_hadar.nowhere", "json", ".."):
        monkeypatch.setenv("HADAR_EMULATION", name)
        with pytest.raises(HadarError, match=rf"HADAR_EMULATION={re.escape(name)} cannot be used"):
            emulation("m")
    monkeypatch.delenv("HADAR_EMULATION")
    assert emulation("m") is None


def test_meter(clock):
    meter = Meter()
    assert meter.rate() == (0.0, 0.0)
    begin = clock.now
    meter.add(500)
    for _ in range(60):
        clock.now += 0.02
        meter.add(10)
    clock.now += 0.2
    meter.skip(0.2)
    meter.add(10)
    rate, window = meter.rate()
    assert 0.5 <= window <= clock.now - begin
    assert rate == pytest.approx(500, rel=0.05)
    assert meter.step_s == pytest.approx(0.02, rel=0.05)
