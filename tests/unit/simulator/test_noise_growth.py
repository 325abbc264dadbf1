"""A noise scale that grows while a job trains: what a larger batch is worth changes with it."""

import numpy as np
import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.cluster import parse
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.queue.engine import simulate as in_slurms_order
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import native
from slurm_hadar.simulator.workload import Workload

HEAD = "job_id,arrival_s,gpus,samples,model,batch,most_batch,noise_scale,noise_growth\n"
LARGE = 64


def read(row: str) -> Workload:
    return native.read(f"{HEAD}{row}\n", "t.csv", ("v100",), Rates())


def with_large_batch(view: View, state: State) -> tuple[Plan, State]:
    return Plan({id_: Placement(gpus={"v100": 1}, batch=LARGE) for id_ in view.jobs.ids}), state


def test_the_view_has_the_noise_scale_of_the_present() -> None:
    work = read("a,0,1,1e6,ResNet-18,16,64,100,100")
    assert work.noise_growth.tolist() == [100.0]
    seen: list[tuple[float, float]] = []

    def decide(view: View, state: State) -> tuple[Plan, State]:
        assert view.jobs.batches is not None
        done = 1.0 - float(view.jobs.left[0]) / 1e6
        seen.append((done, float(view.jobs.batches.noise[0])))
        return with_large_batch(view, state)

    simulate(work, parse("v100=1", "1"), decide)
    assert len(seen) > 2 and seen[0] == (0.0, 100.0) and seen[-1][0] > 0.5
    for done, noise in seen:
        assert noise == pytest.approx(100.0 * 100.0**done)


def test_a_larger_batch_is_worth_more_the_longer_a_job_has_trained() -> None:
    """The time is the integral of 1 / goodput over the work, in rounds short enough."""
    work = read("a,0,1,1e6,ResNet-18,16,64,10,1000")
    assert work.batches is not None
    rate = float(work.batches.rate[0, 0, 0, work.batches.sizes[0].tolist().index(LARGE)])
    done = (np.arange(10_000) + 0.5) / 10_000
    noise = 10.0 * 1000.0**done
    exact = float((1e6 / rate * (noise + LARGE) / (noise + 16)).mean())
    setting = RoundSetting(clock=Clock(5.0))
    grown = simulate(work, parse("v100=1", "1"), with_large_batch, setting).avg_jct_s
    assert grown == pytest.approx(exact, rel=0.01)
    constant = 1e6 / rate * (10.0 + LARGE) / (10.0 + 16)
    assert grown < 0.7 * constant


def test_in_slurms_order_as_well() -> None:
    def trained_s(growth: int) -> float:
        work = read(f"a,0,1,1e6,ResNet-18,16,64,10,{growth}")
        steering = SteeringSetting(moves=True, min_between_moves_s=0.0, tick_s=5.0)
        setting = SimulationSetting(work, parse("v100=1", "1"), steering=steering)
        return in_slurms_order(setting, with_large_batch).avg_jct_s

    assert trained_s(1000) < 0.7 * trained_s(1)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("a,0,1,1e6,ResNet-18,16,,,10", "most_batch"),
        ("a,0,1,1e6,ResNet-18,16,64,100,0", "noise_growth"),
        ("a,0,1,1e6,ResNet-18,16,64,100,-2", "noise_growth"),
        ("a,0,1,1e6,ResNet-18,16,64,100,much", "noise_growth"),
    ],
)
def test_a_growth_that_means_nothing_is_refused(row: str, word: str) -> None:
    with pytest.raises(UsageError, match=f"line 2.*{word}"):
        read(row)


def test_left_out_it_is_constant() -> None:
    assert read("a,0,1,1e6,ResNet-18,16,64,100,").noise_growth.tolist() == [1.0]
    assert read("b,0,1,1e6,ResNet-18,16,,,").noise_growth.tolist() == [1.0]
