"""What a test needs and this machine has not."""

import os
from typing import NoReturn

import pytest


def needs_root(why: str) -> None:
    """Skip where the tests are not run by root; where CI is set, which is root, fail."""
    __tracebackhide__ = True
    if os.geteuid() != 0:
        missing(f"{why}: only root can")


def missing(why: str) -> NoReturn:
    """Skip, saying what is missing; where CI is set, which has all there is, fail."""
    __tracebackhide__ = True
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
