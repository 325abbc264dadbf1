"""When jobs would end in Slurm's own order."""

from math import inf

import numpy as np

from slurm_hadar.scheduling.twin import ExpectedEnds, ends, served


def test_each_job_takes_the_gpus_that_are_released_first():
    times = np.array([[10.0, 100.0], [10.0, 100.0], [10.0, inf]])
    found = ends([[0.0, 5.0], [0.0]], np.array([2, 1, 1]), times)
    # Two of the first type at 5; the second one takes what is free now, slow as it is.
    assert found.tolist() == [15.0, 100.0, 25.0]


def test_a_job_that_fits_nowhere_never_ends():
    assert ends([[0.0]], np.array([2]), np.array([[1.0]])).tolist() == [inf]
    assert ends([[0.0]], np.array([1]), np.array([[inf]])).tolist() == [inf]


def test_without_any_gpu_no_job_ever_starts():
    found = served([], np.array([1, 2]), np.zeros((2, 0)), np.array([True, False]))
    assert found.starts.shape == (2, 0) and found.ends.tolist() == [inf, inf]
    assert ends([], np.array([1]), np.zeros((1, 0))).tolist() == [inf]
    assert ends([[]], np.array([1]), np.array([[5.0]])).tolist() == [inf]


def test_what_was_promised_first_holds_and_planned_jobs_go_first():
    promises: ExpectedEnds[str] = ExpectedEnds()
    promises.add(["a", "b"], [5.0, 7.0])
    promises.add(["b", "c"], [1.0, 3.0])
    assert promises.ends == {"a": 5.0, "b": 7.0, "c": 3.0}
    wish = promises.ranks(["a", "b", "c", "d"], [False, True, False, True])
    assert np.argsort(wish).tolist() == [1, 3, 2, 0]
    assert promises.known("ab") and not promises.known("ad")


def test_a_choosy_job_takes_the_type_on_which_it_ends_first():
    times = np.array([[10.0, 100.0], [10.0, 100.0]])
    first = served([[5.0], [0.0]], np.array([1, 1]), times, np.array([True, False]))
    assert first.starts.tolist() == [[5.0, 0.0], [15.0, 0.0]]
    assert first.ends.tolist() == [15.0, 100.0]
    plain = served([[5.0], [0.0]], np.array([1, 1]), times, np.array([False, False]))
    assert plain.starts.tolist() == [[5.0, 0.0], [5.0, 100.0]]
    assert plain.ends.tolist() == [100.0, 15.0]
