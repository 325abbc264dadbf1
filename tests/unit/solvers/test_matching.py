"""The cheapest matching is as cheap as the best of all, or as SciPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.matching import cheapest_matching


@given(
    rows=st.integers(1, 12), more=st.integers(0, 20), seed=st.integers(0, 10**6), tie=st.booleans()
)
@settings(max_examples=80, deadline=None)
def test_it_is_as_cheap_as_scipys(rows: int, more: int, seed: int, tie: bool) -> None:
    # Here, so that only the process that runs this imports it.
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(seed)
    cost = rng.uniform(-5.0, 50.0, (rows, rows + more))
    if tie:
        cost = np.round(cost / 10.0)
    found = cheapest_matching(cost)
    assert len(set(found.tolist())) == rows
    best = cost[optimize.linear_sum_assignment(cost)].sum()
    assert cost[np.arange(rows), found].sum() == pytest.approx(best)


def test_too_few_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot be matched to 2 columns"):
        cheapest_matching(np.zeros((3, 2)))
