"""``hadar report``: its arguments."""

import pytest

from slurm_hadar.cli import report
from slurm_hadar.domain.errors import UsageError


def test_how_long_back():
    assert report._from("7d", 1e9) == 1e9 - 7 * 86400
    assert report._from("24h", 1e9) == 1e9 - 86400
    assert report._from("2w", 1e9) == 1e9 - 14 * 86400
    assert report._from("1970-01-02", 1e9) < 3 * 86400


@pytest.mark.parametrize("since", ["", "7", "-7d", "7d; rm", "2999-01-01", "٧d", "x" * 99])
def test_what_is_no_time_is_refused(since):
    with pytest.raises(UsageError, match="--since"):
        report._from(since, 1e9)
