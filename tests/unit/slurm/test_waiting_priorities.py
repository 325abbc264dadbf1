"""What sprio says of the priorities of waiting jobs."""

import pytest

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.waiting_priorities import CountedPriority, parse


def test_one_line_per_job_and_partition():
    text = "7|1416|1417|\n 12 |   101194.5|1194  |\n12|1194|1194|\n13|-5|0|\n\n"
    assert parse(text) == {
        7: [CountedPriority(1416, 1417)],
        12: [CountedPriority(101194, 1194), CountedPriority(1194, 1194)],
        13: [CountedPriority(-5, 0)],
    }
    assert parse("") == {}


@pytest.mark.parametrize("text", ["7|1416", "a|1|1|", "You are not running a supported plugin"])
def test_an_answer_that_is_not_understood_is_an_error(text):
    with pytest.raises(SlurmError, match="not understood"):
        parse(text)
