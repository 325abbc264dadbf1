"""What all tables of the configuration have in common."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


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
