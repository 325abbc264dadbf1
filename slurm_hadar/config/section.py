"""What all tables of the configuration have in common."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


def _absolute(path: Path) -> Path:
    # A timer, a shell and a job each stand in another folder.
    if not path.is_absolute():
        raise ValueError("takes a path from / on")
    return path


FullPath = Annotated[Path, AfterValidator(_absolute)]
"""A path from / on."""


def matching(pattern: str, takes: str) -> AfterValidator:
    """A text that matches a pattern from end to end. ``takes``: what it is, for the message."""
    whole = re.compile(pattern)

    def checked(text: str) -> str:
        if not whole.fullmatch(text):
            raise ValueError(f"takes {takes}")
        return text

    return AfterValidator(checked)


class Section(BaseModel):
    """A table: its keys are all known, and nothing is written to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, found: object) -> object:
        # pydantic takes true for 1: min_between_moves_s = true would be a second. As a text it is
        # refused with the others. (A validator of a field that asks for its name fails in hbatch,
        # which puts off the import of inspect.)
        if not isinstance(found, dict):
            return found
        numbers = {name for name, key in cls.model_fields.items() if key.annotation in (int, float)}
        return {
            name: str(value).lower() if isinstance(value, bool) and name in numbers else value
            for name, value in found.items()
        }
