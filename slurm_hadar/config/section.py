"""What all tables of the configuration have in common."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _absolute(path: Path) -> Path:
    # A timer, a shell and a job each stand in another folder.
    if not path.is_absolute():
        raise ValueError("a path from / on, so that it is the same wherever a command is typed")
    return path


FullPath = Annotated[Path, AfterValidator(_absolute)]
"""A path from / on."""


class Section(BaseModel):
    """A table: its keys are all known, and nothing is written to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
