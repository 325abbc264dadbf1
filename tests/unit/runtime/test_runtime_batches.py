import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.runtime.batches import rate_factor, scale_rate, split


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 100))
def test_the_passes_of_all_processes_are_the_batch(size, ranks, limit):
    parts = [split(size, rank, ranks, limit) for rank in range(ranks)]
    assert len({len(passes) for passes in parts}) == 1
    flat = [part for passes in parts for part in passes]
    assert sorted(i for p in flat if p.weight for i in range(p.start, p.stop)) == list(range(size))
    assert sum(part.weight for part in flat) == pytest.approx(1)
    assert all(0 < p.stop - p.start <= limit and p.stop <= size for p in flat)
    assert all([p.last for p in passes] == [False] * (len(passes) - 1) + [True] for passes in parts)


def test_learning_rate_rules():
    weight = [torch.nn.Parameter(torch.zeros(1))]
    sgd, adam = torch.optim.SGD(weight, lr=0.1), torch.optim.AdamW(weight, lr=0.1)
    assert rate_factor("auto", sgd, 64, 256) == (4.0, "linear")
    assert rate_factor("auto", adam, 64, 256) == (2.0, "sqrt")
    assert rate_factor("none", sgd, 64, 256) == (1.0, "none")
    assert rate_factor(lambda ratio: ratio / 2, sgd, 64, 256) == (2.0, "own rule")
    with pytest.raises(ValueError, match="unknown"):
        rate_factor("cubic", sgd, 64, 256)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
                torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            ],
            milestones=[3],
        ),
    ],
)
def test_a_scaled_schedule_stays_scaled(make):
    def rates(factor):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        scheduler = make(optimizer)
        found = []
        for epoch in range(8):
            if epoch == 2:
                scale_rate(optimizer, scheduler, factor)
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return found

    plain, scaled = rates(1.0), rates(3.0)
    assert scaled[:2] == plain[:2]
    assert scaled[2:] == pytest.approx([3 * rate for rate in plain[2:]])
