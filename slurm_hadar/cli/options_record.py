"""A command with many options takes one record of them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from typer.models import ArgumentInfo

Given = TypeVar("Given")


def takes(record: type[Given]) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """Decorate a function of one ``record``, a dataclass whose fields are annotated for typer, so
    that typer sees a parameter for each field: arguments first, then options."""

    def decorate(command: Callable[[Given], None]) -> Callable[..., None]:
        def run(**values: object) -> None:
            command(record(**values))

        hints: Mapping[str, Any] = get_type_hints(record, include_extras=True)
        fields = sorted(
            dataclasses.fields(record),  # type: ignore[arg-type]
            key=lambda field: not _is_argument(hints[field.name]),
        )
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {field.name: hints[field.name] for field in fields}
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=(
                        inspect.Parameter.empty
                        if field.default is dataclasses.MISSING
                        else field.default
                    ),
                    annotation=hints[field.name],
                )
                for field in fields
            ]
        )
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return decorate


def _is_argument(annotation: Any) -> bool:
    return any(isinstance(one, ArgumentInfo) for one in getattr(annotation, "__metadata__", ()))
