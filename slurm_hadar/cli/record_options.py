"""A command with many options takes one record of them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

Given = TypeVar("Given")


def takes(record: type[Given]) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """Decorate a function of one ``record``, a dataclass whose fields are annotated for typer, so
    that typer sees a parameter for each field."""

    def decorate(command: Callable[[Given], None]) -> Callable[..., None]:
        def run(**values: object) -> None:
            command(record(**values))

        hints: Mapping[str, Any] = get_type_hints(record, include_extras=True)
        fields = dataclasses.fields(record)  # type: ignore[arg-type]
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
