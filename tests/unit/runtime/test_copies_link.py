"""What MPI's errors mean for a copy: its own failure, or another's that the first to ask gets."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_hadar.runtime.copies_link import TrackerLink


class Broken(Exception):
    pass


class Request:
    """A request of MPI: ``errors`` errors, then the answer; null after an error of its own."""

    def __init__(self, errors: int, answer: bool = False, own: bool = False) -> None:
        self.errors, self.answer, self.own, self.null = errors, answer, own, False

    def __bool__(self) -> bool:
        return not self.null

    def Test(self) -> bool:
        if self.errors:
            self.errors -= 1
            self.null = self.own
            raise Broken
        return self.answer


@pytest.fixture
def link():
    ours: Any = SimpleNamespace(_comm=None, size=3, _failure=Broken)
    return TrackerLink(ours, 1, 4, np.float32)


@pytest.mark.parametrize("answer", [True, False])
def test_an_error_of_another_connection_does_not_lose_a_copy(link, answer):
    assert link._over(Request(3, answer), 1) is answer
    assert not link.lost


def test_a_request_that_failed_itself_loses_its_copy(link):
    assert link._over(Request(1, own=True), 2)
    assert link.lost == {2}


def test_errors_without_end_lose_the_copy_too(link):
    assert link._over(Request(10**9), 1)
    assert link.lost == {1}


def test_what_was_sent_to_the_dead_is_dropped(link):
    assert link._over(Request(10**9)) and not link.lost
