"""The user's own ``-C``: which nodes meet it, and how a GPU type is laid over it."""

import re
from collections.abc import Set

_TOKEN = re.compile(r"\s*([&|()]|[A-Za-z0-9_.:@+/-]+)")


class OpaqueConstraint(Exception):
    """A constraint with counts, brackets or anything that only Slurm should interpret."""


def met(constraint: str, features: Set[str]) -> bool:
    """Whether a node with these features meets the constraint.

    AND binds stronger than OR. Raises :class:`OpaqueConstraint` for anything beyond names, ``&``,
    ``|`` and parentheses.
    """
    if not constraint:
        return True
    tokens = _tokens(constraint)
    value, rest = _either(tokens, features)
    if rest:
        raise OpaqueConstraint(constraint)
    return value


def readable(constraint: str) -> bool:
    """Whether the constraint is made of names, ``&``, ``|`` and parentheses only."""
    try:
        met(constraint, frozenset())
    except OpaqueConstraint:
        return False
    return True


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


def _either(tokens: list[str], features: Set[str]) -> tuple[bool, list[str]]:
    value, rest = _both(tokens, features)
    while rest and rest[0] == "|":
        right, rest = _both(rest[1:], features)
        value = value or right
    return value, rest


def _both(tokens: list[str], features: Set[str]) -> tuple[bool, list[str]]:
    value, rest = _one(tokens, features)
    while rest and rest[0] == "&":
        right, rest = _one(rest[1:], features)
        value = value and right
    return value, rest


def _one(tokens: list[str], features: Set[str]) -> tuple[bool, list[str]]:
    if not tokens or tokens[0] in "&|)":
        raise OpaqueConstraint(" ".join(tokens))
    if tokens[0] == "(":
        value, rest = _either(tokens[1:], features)
        if not rest or rest[0] != ")":
            raise OpaqueConstraint("unbalanced")
        return value, rest[1:]
    return tokens[0] in features, tokens[1:]
