"""Users of this machine by name and number."""

import os
import pwd

from slurm_hadar import users

UNKNOWN = next(
    uid for uid in range(60_000, 70_000) if uid not in {one.pw_uid for one in pwd.getpwall()}
)


def test_a_name_or_what_stands_for_none():
    assert users.name_of(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert users.name_of(UNKNOWN) == str(UNKNOWN)
    assert users.name_of(UNKNOWN, "#") == "#" and users.name_of(UNKNOWN, "") == ""


def test_a_number_or_none():
    assert users.number_of(pwd.getpwuid(os.getuid()).pw_name) == os.getuid()
    assert users.number_of("no-such-user") is None and users.number_of("a\0b") is None
