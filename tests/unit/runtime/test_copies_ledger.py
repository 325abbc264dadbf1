"""The account of copies: each position once, whatever stops a copy where."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.runtime import check_lineage, samples
from slurm_hadar.runtime.checkpoint_store import State
from slurm_hadar.runtime.copies_data import Orders, RoundPart
from slurm_hadar.runtime.copies_ledger import (
    MOST_RANGES,
    Ledger,
    deal,
    divide,
    length,
    round_samples,
)
from slurm_hadar.runtime.copies_settings import CopiesOptions

N = 50


def ledger(total: int = 3 * N) -> Ledger:
    return Ledger(State(N, 0, 8, 8), total)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_each_sample_once_through_any_rounds_sizes_and_stops(data):
    total = data.draw(st.integers(1, 4 * N))
    book = ledger(total)
    orders = Orders(0, N)
    seen: list[int] = []
    for _ in range(200):
        if book.done == total:
            break
        copies = data.draw(st.integers(1, 5))
        speeds = data.draw(st.lists(st.floats(0.1, 10), min_size=copies, max_size=copies))
        number = data.draw(st.integers(1, 2 * N))
        counts = divide(min(number, total - book.done), speeds)
        for ranges in deal(book.take(number), counts):
            part = RoundPart(orders, ranges, data.draw(st.integers(1, 20)))
            # A copy may come too late altogether, or end in the middle.
            late, steps = data.draw(st.booleans()), data.draw(st.integers(0, 5))
            given_now: list[int] = []
            for step in range(min(part.steps, steps)):
                given_now += part.indices(step)[0].tolist()
                part.advance()
            if not late:
                seen += given_now
                book.record(part.pieces(), copies)
        if data.draw(st.booleans()):
            # A resume: the next attempt takes up what is in the checkpoint.
            plain = json.loads(json.dumps(book.state.ahead))
            book.state.ahead = [(a, b, d) for a, b, d in plain]
            book.state.attempt += 1
    rest = RoundPart(orders, book.take(total), total)
    if rest.steps:
        seen += rest.indices(0)[0].tolist()
        rest.advance()
        book.record(rest.pieces(), 1)
    assert book.done == book.state.samples == total and not book.state.ahead
    assert check_lineage(book.state.segments, N, samples=total, seed=0) is None
    every = np.concatenate([samples.order(0, epoch, N) for epoch in range(4)])[:total]
    assert sorted(seen) == sorted(every.tolist())


def test_what_is_given_twice_is_refused():
    book = ledger()
    part = RoundPart(Orders(0, N), [(10, 20)], 20)
    part.indices(0)
    part.advance()
    book.record(part.pieces(), 1)
    assert book.done == 10 and book.state.samples == 0
    assert book.take(15) == [(0, 10), (20, 25)]
    with pytest.raises(ValueError, match="went in twice"):
        book.record(part.pieces(), 1)
    with pytest.raises(ValueError, match="do not exist"):
        book.record([(3 * N - 1, 3 * N + 1, 0)], 1)


def test_a_loop_that_was_given_other_samples_is_found():
    book = ledger(N)
    part = RoundPart(Orders(1, N), [(0, N)], N)
    part.indices(0)
    part.advance()
    book.record(part.pieces(), 1)
    fault = check_lineage(book.state.segments, N, samples=N, seed=0)
    assert fault is None
    short = ledger(N)
    half = RoundPart(Orders(1, N), [(0, N // 2)], N)
    half.indices(0)
    half.advance()
    short.record(half.pieces(), 1)
    assert "is not what the order has" in str(check_lineage(short.state.segments, N, seed=0))


@given(st.integers(0, 10**6), st.lists(st.floats(0.01, 1e4), min_size=1, max_size=9))
def test_division_is_whole_and_in_proportion(number, speeds):
    counts = divide(number, speeds)
    assert sum(counts) == number and min(counts) >= 0
    for count, speed in zip(counts, speeds, strict=True):
        assert abs(count - number * speed / sum(speeds)) <= 1 + 1e-6 * number


def test_parts_do_not_grow_beyond_a_message():
    ranges = [(3 * i, 3 * i + 1) for i in range(2 * MOST_RANGES)]
    (part,) = deal(ranges, [length(ranges)])
    assert part == ranges[:MOST_RANGES]


def test_a_round_is_short_unless_averaging_is_dear():
    rules = CopiesOptions(None, None, dataset_size=1000, batch=8)
    assert round_samples(10.0, 10**6, 100, 0.0, rules) == 100
    assert round_samples(10.0, 10**6, 100, 0.4, rules) == 200
    assert round_samples(10.0, 10**6, 100, 60.0, rules) == 300
    assert round_samples(10.0, 140, 100, 0.0, rules) == 140
    assert round_samples(0.01, 10**6, 100, 0.0, rules) == 1


def test_steps_are_of_nearly_the_same_size():
    part = RoundPart(Orders(0, N), [(0, 7), (40, 60)], 8)
    sizes = []
    for step in range(part.steps):
        indices, _ = part.indices(step)
        assert indices.dtype == torch.int64
        sizes.append(part.advance())
    assert sum(sizes) == 27 and max(sizes) <= 8 and max(sizes) - min(sizes) <= 1
    assert [piece[:2] for piece in part.pieces()] == [(0, 7), (40, 50), (50, 60)]
