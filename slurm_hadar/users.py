"""Users of this machine: names and numbers. With few imports, as ``hbatch`` comes here."""

from __future__ import annotations


def name_of(uid: int, unknown: str | None = None) -> str:
    """A user's name; ``unknown``, by default the number, where this machine knows none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid) if unknown is None else unknown


def number_of(name: str) -> int | None:
    """The UID of a user; None where this machine does not know the name."""
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        # ValueError: a name with a zero byte.
        return None


def is_member(user: str, group: str) -> bool:
    """Whether a user belongs to a group as slurmctld looks at it: the group names the user, or is
    the user's own. False where this machine does not know them."""
    import grp
    import pwd

    try:
        found = grp.getgrnam(group)
        return user in found.gr_mem or pwd.getpwnam(user).pw_gid == found.gr_gid
    except (KeyError, ValueError):
        return False
