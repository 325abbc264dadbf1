"""The learning rate of copies: they come as far as one run, from the first round on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.runtime.copies_rates import LearningRates

PLAIN = {"lr": 0.1}


def sgd(momentum):
    return {"lr": 0.1, "momentum": momentum, "dampening": 0}


def late(counts):
    return sum(counts) ** 2 / sum(count**2 for count in counts)


def run(steps, momentum, velocity, rate=1.0):
    """(way, velocity) of SGD on a gradient of 1."""
    way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        way += rate * velocity
    return way, velocity


def together(rounds, batch, momentum):
    """(way of copies, way of one run, longest step) over ``rounds`` of counts."""
    rates = LearningRates([sgd(momentum)], batch, 0)
    copies = alone = velocity = single = longest = 0.0
    for counts in rounds:
        (factor,) = rates.factors(counts)
        number = sum(counts)
        ends = [run(count // batch, momentum, velocity, factor) for count in counts]
        longest = max(longest, *(factor * end for _, end in ends))
        copies += sum(count * way for count, (way, _) in zip(counts, ends, strict=True)) / number
        velocity = sum(c * end for c, (_, end) in zip(counts, ends, strict=True)) / number
        way, single = run(number // batch, momentum, single)
        alone += way
        rates.trained(counts)
    return copies, alone, longest


def test_without_momentum_it_is_one_over_the_sum_of_the_squared_shares():
    assert (
        LearningRates([PLAIN], 8, 0).factors([10])
        == LearningRates([PLAIN], 8, 0).factors([])
        == [1]
    )
    for counts, factor in (([5, 5, 5], 3), ([4, 2, 1], 49 / 21), ([4, 2, 0], 36 / 20)):
        adam = {"lr": 0.1, "betas": (0.9, 0.999)}
        assert LearningRates([PLAIN, adam], 8, 0).factors(counts) == pytest.approx([factor] * 2)


def test_copies_of_speeds_4_2_1_come_as_far_as_one_run():
    copies, alone, longest = together([[32, 16, 8]] * 12, 8, 0.9)
    assert copies == pytest.approx(alone, rel=1e-6)
    assert longest < 1.25 * 10 * late([4, 2, 1])


def test_a_single_copy_and_a_training_long_under_way_need_no_more():
    assert LearningRates([sgd(0.9)], 8, 0).factors([80]) == pytest.approx([1])
    assert LearningRates([sgd(0.9)], 8, 0).factors([80, 0, 0]) == pytest.approx([1])
    (factor,) = LearningRates([sgd(0.9)], 8, 10**6).factors([32, 16, 8])
    assert factor == pytest.approx(late([4, 2, 1]))


def test_each_group_has_its_own_and_what_is_no_usual_momentum_counts_as_none():
    odd = {"momentum": 0.9, "dampening": 0.9}, {"momentum": None}, {"momentum": 1.0}
    slow, quick, *others = LearningRates([sgd(0.9), sgd(0.5), *odd], 8, 0).factors([32, 16, 8])
    assert slow > quick > late([4, 2, 1])
    assert others == pytest.approx([late([4, 2, 1])] * 3)


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_never_further_than_one_run_and_no_step_much_longer_than_a_late_one(rounds, momentum):
    rounds = [[8 * steps for steps in row] for row in rounds if sum(row)]
    copies, alone, longest = together(rounds, 8, momentum)
    assert copies <= alone * (1 + 1e-9)
    if rounds:
        most = max(late(row) for row in rounds)
        assert longest <= 1.25 * most / (1 - momentum) * (1 + 1e-9)
