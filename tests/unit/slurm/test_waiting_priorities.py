"""What sprio says of the priorities of waiting jobs."""

import pytest

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.waiting_priorities import CountedPriority, parse


def test_one_line_per_job_and_partition():
    text = (
        "7|1416|1417|0.0069444|\n 12 |   101194.5|1194  | 1.0000000 |\n12|1194|1194|1.0000000|\n"
        "13|-5|0|0.0000000|\n\n"
    )
    assert parse(text) == {
        7: [CountedPriority(1416, 1417, 0.0069444)],
        12: [CountedPriority(101194, 1194, 1.0), CountedPriority(1194, 1194, 1.0)],
        13: [CountedPriority(-5, 0)],
    }
    assert parse("") == {}


@pytest.mark.parametrize(
    "text", ["7|1416", "7|1|1|", "a|1|1|0|", "You are not running a supported plugin"]
)
def test_an_answer_that_is_not_understood_is_an_error(text):
    with pytest.raises(SlurmError, match="not understood"):
        parse(text)
