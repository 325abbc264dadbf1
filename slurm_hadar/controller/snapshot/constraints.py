"""The user's own ``-C``: which nodes meet it, and how a GPU type is added to it."""

import re
from collections.abc import Set

DEEPEST = 20
"""Parentheses in one another that are read; Slurm itself takes fewer."""
_TOKEN = re.compile(r"\s*([&|()]|[A-Za-z0-9_.:@+/-]+)")


class OpaqueConstraint(Exception):
    """A constraint with counts, brackets or anything that only Slurm should interpret."""


def met(constraint: str, features: Set[str]) -> bool:
    """Whether a node with these features meets the constraint.

    AND binds stronger than OR. Raises :class:`OpaqueConstraint` for anything beyond names, ``&``,
    ``|`` and parentheses, and for more than :data:`DEEPEST` of these in one another.
    """
    if not constraint:
        return True
    # A job's owner writes it freely, so nothing here calls itself for each parenthesis.
    levels, after_value = [_Level()], False
    for token in _tokens(constraint):
        if after_value == (token == "(" or token not in "&|)"):
            raise OpaqueConstraint(constraint)
        if token == "(":
            levels.append(_Level())
            if len(levels) > DEEPEST + 1:
                raise OpaqueConstraint(constraint)
        elif token == ")":
            closed = levels.pop()
            if not levels:
                raise OpaqueConstraint(constraint)
            levels[-1].takes(closed.value)
        elif token == "|":
            levels[-1].begins_another()
            after_value = False
        elif token == "&":
            after_value = False
        else:
            levels[-1].takes(token in features)
            after_value = True
    if not after_value or len(levels) > 1:
        raise OpaqueConstraint(constraint)
    return levels[0].value


class _Level:
    """What is between two parentheses, as far as it was read: an OR of ANDs."""

    def __init__(self) -> None:
        self._either, self._both = False, True

    @property
    def value(self) -> bool:
        return self._either or self._both

    def takes(self, value: bool) -> None:
        self._both = self._both and value

    def begins_another(self) -> None:
        self._either, self._both = self.value, True


def readable(constraint: str) -> bool:
    """Whether the constraint is made of names, ``&``, ``|`` and parentheses only."""
    try:
        met(constraint, frozenset())
    except OpaqueConstraint:
        return False
    return True


def allows(constraint: str, feature: str, others: Set[str]) -> bool:
    """Whether a node with this feature may meet the constraint, whatever else it has but
    ``others``: the features that no node has beside this one. Raises :class:`OpaqueConstraint`."""
    names = {token for token in _tokens(constraint) if token not in "&|()"}
    return met(constraint, (names - others) | {feature})


def with_feature(constraint: str, feature: str) -> str:
    """The user's constraint, and in addition one feature that selects the GPU type."""
    if constraint in ("", feature):
        return feature
    if "|" in constraint:
        return f"({constraint})&{feature}"
    return f"{constraint}&{feature}"


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise OpaqueConstraint(text)
        tokens.append(match[1])
        at = match.end()
    return tokens
