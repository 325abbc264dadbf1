"""Exchanges of places in the queue: nobody who takes no part has more ahead than before."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.scheduling.exchange_rule import (
    NO_EXCHANGE,
    ExchangeLevel,
    QueuePlaces,
    WaitingJobs,
    exchanged,
)


def line(group, asks, wish):
    return WaitingJobs(np.array(group), np.array(asks, dtype=float), np.array(wish, dtype=float))


@st.composite
def lines(draw):
    length = draw(st.integers(1, 12))
    each = {"min_size": length, "max_size": length}
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    return line(
        draw(st.lists(st.sampled_from([NO_EXCHANGE, NO_EXCHANGE, 0, 0, 1]), **each)),
        draw(st.lists(pair, **each)),
        draw(st.lists(st.integers(0, 5), **each)),
    )


def asks_no_more(now, before):
    """Whether each of some jobs can be laid on one of those before that asks for as much."""
    from scipy.optimize import linear_sum_assignment

    if not now:
        return True
    larger = np.array([[float(not (a <= b).all()) for b in before] for a in now])
    rows, columns = linear_sum_assignment(larger)
    return len(rows) == len(now) and larger[rows, columns].sum() == 0


@settings(max_examples=200)
@given(lines())
def test_whoever_takes_no_part_keeps_its_place_and_sees_no_more_ahead(found):
    who = exchanged(found)
    assert sorted(who) == list(range(len(who)))
    for place, job in enumerate(who):
        assert found.group[job] == found.group[place]
        if found.group[place] == NO_EXCHANGE:
            assert job == place
            ahead = [found.requested[one] for one in who[:place]]
            assert asks_no_more(ahead, list(found.requested[:place]))


@settings(max_examples=80)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=7), st.data())
def test_nor_once_some_have_started(gpus, data):
    """Some start from the places that they have, and the rest is exchanged anew, several times."""
    outsider = data.draw(st.integers(1, len(gpus) - 1))
    group = [NO_EXCHANGE if job == outsider else 0 for job in range(len(gpus))]
    found = line(group, [[n] for n in gpus], gpus)
    places = QueuePlaces({job: job for job in range(len(gpus))}, {})
    before = [found.requested[job] for job in range(outsider)]
    started: list[int]
    waiting, started = set(range(len(gpus))), []
    for _ in range(3):
        order = sorted(waiting, key=places.own.__getitem__)
        wish = np.array(data.draw(st.permutations(range(len(order)))), dtype=float)
        who = exchanged(WaitingJobs(found.group[order], found.requested[order], wish))
        for at, job in enumerate(who):
            places.held[order[job]] = places.own[order[at]]
        ahead = [one for one in waiting if places.held[one] < outsider]
        assert asks_no_more([found.requested[one] for one in [*started, *ahead]], before)
        for job in sorted(waiting - {outsider}):
            if not data.draw(st.booleans()):
                continue
            if places.held[job] < outsider:
                started.append(job)
            places.use(job)
            waiting.remove(job)
        ahead = [one for one in waiting if places.own[one] < outsider]
        assert asks_no_more([found.requested[one] for one in [*started, *ahead]], before)


def test_the_lesser_wish_goes_first_where_it_may():
    # The second asks for less than the first, so it may pass the one between.
    assert exchanged(line([0, -1, 0], [[2], [1], [1]], [5, 0, 1])).tolist() == [2, 1, 0]
    # For more: the one between would wait longer.
    assert exchanged(line([0, -1, 0], [[1], [1], [2]], [5, 0, 1])).tolist() == [0, 1, 2]
    # Nobody else is between.
    assert exchanged(line([-1, 0, 0], [[1], [1], [2]], [0, 5, 1])).tolist() == [0, 2, 1]


def test_a_job_with_less_of_one_thing_and_more_of_another_does_not_pass():
    assert exchanged(line([0, -1, 0], [[2, 1], [1, 1], [1, 2]], [5, 0, 1])).tolist() == [0, 1, 2]


def test_groups_of_the_levels():
    ann = ("ann", "physics", "normal")
    assert ExchangeLevel.ASSOCIATION.group(*ann) != ExchangeLevel.ASSOCIATION.group(
        "bob", "physics", "normal"
    )
    assert ExchangeLevel.ACCOUNT.group(*ann) == ExchangeLevel.ACCOUNT.group("bob", *ann[1:])
    assert ExchangeLevel.ACCOUNT.group(*ann) != ExchangeLevel.ACCOUNT.group("bob", "art", "normal")
    assert ExchangeLevel.ALL.group(*ann) == ExchangeLevel.ALL.group("bob", "art", "high")
