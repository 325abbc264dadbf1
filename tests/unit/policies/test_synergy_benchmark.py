"""The benchmark's own workload, cut short: nobody is below his fair share in any round."""

import pytest

from benchmarks import synergy


@pytest.mark.parametrize("order", synergy.ORDERS)
@pytest.mark.parametrize("policy", ["gpu_proportional", "synergy_tune", "synergy_opt"])
def test_no_job_is_below_its_fair_share_in_any_round(policy: str, order: str) -> None:
    found = synergy.run(policy, order, 0.5, 1.1, jobs=40)
    assert found.slowest >= 1.0 - 1e-6
    assert found.rounds >= 40


def test_the_mixes_are_what_they_say() -> None:
    for share in synergy.SHARES:
        work = synergy.workload(share, 1.0)
        hungry = sum(model in synergy.HUNGRY for model in work.models)
        assert hungry == round(share * synergy.JOBS)
        gpu_s = float((work.request * work.total).sum())
        span = float(work.arrival_s.max())
        assert gpu_s / span / (synergy.SERVERS * synergy.GPUS) == pytest.approx(1.0)
    two = [synergy.workload(0.5, load) for load in (0.5, 1.0)]
    assert two[0].models == two[1].models and (two[0].total == two[1].total).all()


def cell(load: float, proportional: float, tune: float, opt: float, slowest: float) -> synergy.Cell:
    runs = [
        synergy.Run(name, "fifo", 0.8, load, 600, jct_h, 1.0, 0, slowest, 1, 1.0)
        for name, jct_h in (("p", proportional), ("t", tune), ("o", opt))
    ]
    return synergy.Cell("fifo", 0.8, load, *runs)


def test_what_was_asked_is_reported_with_its_worst_and_best_cells() -> None:
    found = [cell(0.9, 30.0, 10.0, 10.0, 1.0), cell(1.1, 30.0, 15.0, 14.0, 1.0)]
    assert synergy.best_words(found, "x")[1]
    assert "2.00 times (fifo, 1.1)" in synergy.best_words(found, "x")[0]
    assert "1.07 (fifo, 80%, 1.1)" in synergy.near_words(found)[0]
    short = [cell(1.1, 29.0, 15.0, 13.0, 0.9)]
    sentences = [
        synergy.best_words(short, "x"),
        synergy.near_words(short),
        synergy.slowest_words(short),
    ]
    assert [good for _, good in sentences] == [False] * 3
