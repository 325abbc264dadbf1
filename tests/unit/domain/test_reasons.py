"""What a reason says of others' jobs."""

import pytest

from slurm_hadar.domain.reasons import without_others


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "1 x k80 on k1: ends in 1 h; number 6 of 16 in the policy's queue, in the "
            "order of gain per price; gain 2 = value 2 - price 0",
            "1 x k80 on k1: ends in 1 h; in the policy's queue, in the order of gain per price; "
            "gain 2 = value 2 - price 0",
        ),
        ("1 x v100 on v1: 3 of 7 in turn, ends in 1 h", "1 x v100 on v1: in turn, ends in 1 h"),
        ("queue 2, 3 of 7 by attained service; no place", "queue 2, by attained service; no place"),
        ("its share; 3 of 7 in the order srtf", "its share; in the order srtf"),
        ("none; 3 of 7 jobs have less left to do; on", "none; others have less left to do; on"),
        ("waits behind job 12, which comes first", "waits behind another job, which comes first"),
        ("waits behind job 7", "waits behind job 7"),
        ("short of v100 GPUs: it needs 2, 1 of 4 are free", None),
    ],
)
def test_neither_numbers_of_jobs_nor_places_among_them_are_shown(reason, shown):
    assert without_others(reason, ("7",)) == (reason if shown is None else shown)
