"""The controller dies, or is stopped, while two jobs exchange their priorities: few trials of
``python -m benchmarks.faults --what exchanges``."""

import shutil
import tempfile
from pathlib import Path

import people
import pytest
from in_memory import temporary

from benchmarks.faults.exchanges import (
    EXCHANGE_PLANTS,
    EXCHANGE_THENS,
    ExchangeCase,
    exchange_points,
    exchange_site,
    promised,
)

pytestmark = [pytest.mark.live, pytest.mark.once, pytest.mark.timeout(900)]


@pytest.fixture
def folder():
    """All users can read it, unlike pytest's own."""
    people.need()
    found = Path(tempfile.mkdtemp(prefix="hadar-exchanges-", dir=temporary()))
    yield found
    shutil.rmtree(found)


def test_no_nice_is_lost_wherever_the_controller_dies_in_an_exchange(folder):
    with exchange_site(folder) as trials:
        whole = trials.run(ExchangeCase())
        assert whole.exchanged and not whole.wrong
        points = exchange_points(whole.touches)
        sends = [one.name for one in points if one.place.endswith("apply.py send_hints")]
        slurm = next(name for name in sends if " slurm scontrol" in name)
        looks = next(one for one in points if one.place.endswith("unchanged_since_observed"))
        # Before Slurm has the Nices, and after it has them and the journal does not know.
        cases = [ExchangeCase(slurm, "kill", "again"), ExchangeCase(sends[-1], "kill", "retired")]
        # What its owner sets meanwhile is not overwritten.
        cases.append(ExchangeCase(looks.name, "stall", "changed"))
        for case in cases:
            assert case.then in EXCHANGE_THENS[case.how] and promised(looks, points, case.then)
            found = trials.run(case)
            assert found.died and not found.wrong, (case, found.wrong)
        for case in EXCHANGE_PLANTS:
            assert trials.run(case).wrong, f"{case.plant} was not caught"
