"""The options of a policy as a schema: names, types, bounds and defaults."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from slurm_hadar.domain.errors import UsageError


def _whole(value: object) -> object:
    # A configuration may have 4.0 or 4.7 for an integer; the fraction is dropped.
    return math.floor(value) if isinstance(value, float) and math.isfinite(value) else value


Amount = Annotated[float, Field(strict=True, ge=0, lt=1e9)]
"""A number of 0 or more."""
Part = Annotated[float, Field(strict=True, ge=0, lt=1)]
"""A fraction: at least 0 and below 1."""
Whole = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=0, lt=1e9)]
"""An integer of 0 or more."""
Flag = Annotated[bool, Field(strict=True)]
"""true or false; numbers are rejected."""


class PolicyOptions(BaseModel):
    """Base class for the options of a policy: one field per option, with its type, its default and
    a string below it that describes it.

    ``View.options`` also holds guards of the site and may hold options of other policies, so
    unknown keys are ignored.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, options: Mapping[str, object]) -> Self:
        """The options of a view. Raises :class:`UsageError` that names the invalid option."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise UsageError(_sentence(cls, error)) from None

    def also(self) -> tuple[str, ...]:
        """Names of other policies that this policy calls, whose options it therefore reads too."""
        return ()


def _sentence(model: type[PolicyOptions], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    name, value, kind = str(first["loc"][0]), first["input"], first["type"]
    where = f"policy option {name}: {value!r}"
    if kind == "bool_type":
        return f"{where} is neither true nor false"
    if kind == "literal_error":
        return f"{where} is none of {', '.join(map(str, _choices(model.model_fields[name])))}"
    if kind in ("float_type", "int_type", "finite_number"):
        return f"{where} is not a number"
    if kind == "string_type":
        return f"{where} is no text"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        return f"{where} is not {_range(model.model_fields[name])}"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def _choices(field: FieldInfo) -> tuple[object, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _range(field: FieldInfo) -> str:
    bound = {
        name: getattr(one, name)
        for one in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(one, name, None) is not None
    }
    if "ge" in bound and "le" in bound:
        return f"between {bound['ge']:g} and {bound['le']:g}"
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(f"{text} {bound[name]:g}" for name, text in names.items() if name in bound)
