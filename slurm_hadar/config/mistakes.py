"""A mistake in the site's TOML as one sentence: the key, what it takes, and what stands there."""

import json
import math
from typing import TYPE_CHECKING

from slurm_hadar import reading

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_TAKES = {
    "bool_type": "takes true or false",
    "bool_parsing": "takes true or false",
    "dict_type": "is a table, written in [brackets] with its keys below",
    "finite_number": "takes a finite number",
    "float_parsing": "takes a number",
    "float_type": "takes a number",
    "int_from_float": "takes a whole number",
    "int_parsing": "takes a whole number",
    "int_type": "takes a whole number",
    "model_type": "is a table, written in [brackets] with its keys below",
    "path_type": "takes a path in quotes",
    "string_type": "takes a text in quotes",
    "tuple_type": "takes a list, written in [brackets]",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "takes a number of {} or more"),
    "greater_than": ("gt", "takes a number above {}"),
    "less_than_equal": ("le", "takes a number of {} or less"),
    "less_than": ("lt", "takes a number below {}"),
}
_OPTIONS = ("controller", "options")


def mistake(one: "ErrorDetails") -> str:
    """The sentence, after the file's name, on one of pydantic's errors."""
    place = tuple(one["loc"])
    if one["type"] == "extra_forbidden":
        return f"{_key(place)}: unknown key; correct it, or see the example configurations"
    if place[:2] == _OPTIONS and len(place) > 2:
        # Behind the option pydantic names the type that it tried.
        return _sentence(place[:3], "takes a text, a number, true or false", one["input"])
    return _sentence(place, _allowed(one), one["input"])


def _allowed(one: "ErrorDetails") -> str:
    kind, context = one["type"], one.get("ctx", {})
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return text.format(f"{float(context[name]):g}")
    if kind == "literal_error":
        return f"takes {str(context['expected']).replace(chr(39), chr(34))}"
    return _TAKES.get(kind, one["msg"].removeprefix("Value error, "))


def _sentence(place: tuple[int | str, ...], allowed: str, value: object) -> str:
    there = _shown(value)
    return f"{_key(place)}: {reading.shown(allowed, 300)}{f', not {there}' if there else ''}"


def _key(place: tuple[int | str, ...]) -> str:
    return reading.shown(".".join(str(part) for part in place))


def _shown(value: object) -> str:
    """A value as TOML has it; empty for a table, whose mistake concerns several keys."""
    if isinstance(value, dict):
        return ""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = value if isinstance(value, str) else str(value)
    return json.dumps(reading.shown(text, 60), ensure_ascii=False) if text is value else text[:60]
