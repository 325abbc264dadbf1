"""A long list in a JSON document, read one member at a time while the document comes in.

The whole document would take many times the memory of what is kept of it: squeue prints 8 kB a job,
of which 2 kB stay.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_BEHIND_A_VALUE = " \t\r\n,:]}"
_T = TypeVar("_T")
_Pass = Generator[None, None, _T]
"""A part of one pass over the document. It pauses where it needs more of the text."""


class _BrokenError(Exception):
    """What stands here is no JSON, or a key for the second time."""


class JsonListReader:
    """Hands the members of the list ``key`` of a JSON object to ``take``, in their order.

    The text goes to :meth:`feed`, in as many parts as it comes in; :meth:`end` says whether it was
    whole. Strings may hold control characters, as with ``json.loads(text, strict=False)``. What
    ``take`` raises comes out of :meth:`feed`.
    """

    def __init__(self, key: str, take: Callable[[object], None]) -> None:
        self._key, self._take = key, take
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._text, self._at, self._least = "", 0, 0
        self._found: dict[str, object] = {}
        self._reading = self._document()
        self._whole = self._broken = False

    def feed(self, text: str) -> None:
        """The next part of the document."""
        if self._broken:
            return
        self._text, self._at = self._text[self._at :] + text, 0
        if len(self._text) >= self._least:
            self._go_on()
            # A value that is not whole is tried again when there is twice as much of it.
            self._least = 2 * (len(self._text) - self._at)

    def end(self) -> dict[str, object]:
        """The object, with an empty list in place of the one whose members were handed on.

        Raises ValueError where the document is broken or not whole.
        """
        self._least = 0
        self.feed("")
        # Paused in the middle it would hold this object, which holds it.
        self._reading.close()
        if not self._whole or self._text[self._at :].strip():
            raise ValueError("the JSON document is broken or not whole")
        return self._found

    def _go_on(self) -> None:
        try:
            next(self._reading)
        except StopIteration:
            self._whole = True
        except (_BrokenError, RecursionError):
            self._broken = True

    def _document(self) -> _Pass[None]:
        yield from self._mark("{")
        if (yield from self._next()) == "}":
            self._at += 1
            return
        while True:
            key = yield from self._value()
            if not isinstance(key, str) or key in self._found:
                raise _BrokenError
            yield from self._mark(":")
            if key == self._key and (yield from self._next()) == "[":
                yield from self._list()
                self._found[key] = []
            else:
                self._found[key] = yield from self._value()
            if (yield from self._mark(",}")) == "}":
                return

    def _list(self) -> _Pass[None]:
        yield from self._mark("[")
        if (yield from self._next()) == "]":
            self._at += 1
            return
        while True:
            self._take((yield from self._value()))
            if (yield from self._mark(",]")) == "]":
                return

    def _value(self) -> _Pass[object]:
        yield from self._next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                end = -1
            # A number may go on, such as 0 in "0.".
            if 0 < end < len(self._text) and self._text[end] in _BEHIND_A_VALUE:
                self._at = end
                return value
            yield

    def _mark(self, allowed: str) -> _Pass[str]:
        char = yield from self._next()
        if char not in allowed:
            raise _BrokenError
        self._at += 1
        return char

    def _next(self) -> _Pass[str]:
        """The next character that is no space."""
        while True:
            found = _NO_SPACE.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if found:
                return found[0]
            yield
