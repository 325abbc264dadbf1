"""A constructor with many keywords takes one record of them, and is called as without it."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Concatenate, ParamSpec, TypeVar

Keywords = ParamSpec("Keywords")
Made = TypeVar("Made")
Record = TypeVar("Record")


def takes(
    record: Callable[Keywords, Record],
) -> Callable[[Callable[[Made, Record], None]], Callable[Concatenate[Made, Keywords], None]]:
    """Decorate an ``__init__`` of one ``record``, a dataclass: it is called with the record's
    arguments, which ``help``, mypy and editors see.

    The call raises TypeError, in one sentence, for an unknown or missing argument.
    """
    expected = signature(record)

    def decorate(
        construct: Callable[[Made, Record], None],
    ) -> Callable[Concatenate[Made, Keywords], None]:
        @wraps(construct)
        def __init__(self: Made, /, *args: Keywords.args, **options: Keywords.kwargs) -> None:
            try:
                _check(expected, args, options)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
            construct(self, record(*args, **options))

        own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        __init__.__signature__ = expected.replace(  # type: ignore[attr-defined]
            parameters=[own, *expected.parameters.values()]
        )
        return __init__

    return decorate


def _check(expected: Signature, args: Sequence[object], options: Mapping[str, object]) -> None:
    """Python's own messages name the record, which no script knows, and no nearest keyword."""
    known = expected.parameters
    for name in options:
        if name not in known:
            # Late: only a call that fails needs it.
            from difflib import get_close_matches

            nearest = "".join(
                f"; did you mean {one!r}?" for one in get_close_matches(name, known, 1)
            )
            raise TypeError(f"unknown keyword {name!r}{nearest}")
    given = expected.bind_partial(*args, **options).arguments
    needed = [one.name for one in known.values() if one.default is one.empty]
    if missing := [repr(name) for name in needed if name not in given]:
        raise TypeError(f"missing: {', '.join(missing)}")
