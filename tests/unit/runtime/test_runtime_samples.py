from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.runtime.samples import (
    Segment,
    check_lineage,
    digest,
    extend,
    from_plain,
    order,
    to_plain,
)


def train(steps: list[tuple[int, int]], dataset_size: int, seed: int = 3) -> list[Segment]:
    """A lineage of (batch, attempt) steps."""
    segments: list[Segment] = []
    done = 0
    for batch, attempt in steps:
        epoch, start = divmod(done, dataset_size)
        stop = min(start + batch, dataset_size)
        given_to_loop = order(seed, epoch, dataset_size)[start:stop]
        extend(segments, Segment(epoch, start, stop, attempt, batch, 1, digest(given_to_loop)))
        done += stop - start
    return segments


@given(
    size=st.integers(1, 60),
    batches=st.lists(st.integers(1, 70), min_size=1, max_size=40),
    raises=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_any_chain_of_batches_and_attempts_is_right(size, batches, raises):
    attempts = np.cumsum([int(r) for r in raises]) + 1
    steps = [(batch, int(attempts[i])) for i, batch in enumerate(batches)]
    segments = train(steps, size)
    assert check_lineage(segments, size, seed=3) is None
    assert from_plain(to_plain(segments)) == segments


@given(
    size=st.integers(2, 60),
    batches=st.lists(st.integers(1, 20), min_size=2, max_size=20),
    at=st.integers(0, 100),
    shift=st.integers(1, 10),
)
def test_a_jump_in_the_position_is_found(size, batches, at, shift):
    segments = train([(batch, number) for number, batch in enumerate(batches, 1)], size)
    victim = segments[at % len(segments)]
    moved = replace(victim, start=victim.start + shift, stop=victim.stop + shift)
    broken = [moved if segment is victim else segment for segment in segments]
    assert check_lineage(broken, size) is not None


def test_a_lost_and_a_doubled_stretch_are_named():
    segments = train([(4, 1), (4, 2), (4, 3)], 12)
    assert check_lineage(segments[:1] + segments[2:], 12) == (
        "4 samples never went in where attempt 3 begins: "
        "epoch 0 position 8 after epoch 0 position 4"
    )
    doubled = [segments[0], replace(segments[0], attempt=2), *segments[1:]]
    assert "4 samples went in twice" in str(check_lineage(doubled, 12))


def test_positions_that_lie_are_found_by_the_digest():
    segments = train([(4, 1), (4, 1), (4, 2)], 12)
    other = order(4, 0, 12)[8:12]
    lying = [*segments[:-1], replace(segments[-1], digest=digest(other))]
    assert "not those of the data set" in str(check_lineage(lying, 12))
    cut = [segments[0], replace(segments[-1], start=8, stop=10, digest=digest(other[:2]))]
    assert "not what the order has there" in str(check_lineage(cut, 12, seed=3))


def test_the_total_counts():
    segments = train([(5, 1)] * 4, 10)
    assert check_lineage(segments, 10, samples=20) is None
    assert check_lineage(segments, 10, samples=25) == "20 samples went in, 25 were to"
    assert check_lineage([], 10, samples=0) is None


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(0, 1000))
def test_digest_sees_a_change(indices, other):
    bag = np.array(indices, dtype=np.int64)
    assert digest(bag) == digest(bag[::-1].copy())
    changed = bag.copy()
    changed[0] = other
    assert (digest(changed) == digest(bag)) == (other == indices[0])
