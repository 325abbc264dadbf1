"""A cache of what was asked for lately, for keys of which ever new ones come."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """Values by key; those that were not asked for between two calls of :meth:`turn` are dropped.

    It turns by itself at ``most`` of them, so there are never more than twice as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: dict[_Key, _Value] = {}
        self._before: dict[_Key, _Value] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._now) + len(self._before)

    def get(self, key: _Key) -> _Value | None:
        """The value; None where there is none."""
        found = self._now.get(key)
        if found is None and (found := self._before.pop(key, None)) is not None:
            self.put(key, found)
        return found

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value."""
        if len(self._now) >= self._most:
            self.turn()
        self._now[key] = value

    def drop(self, unwanted: Callable[[_Key], bool]) -> None:
        """Forget the keys for which ``unwanted`` holds."""
        self._now = {k: v for k, v in self._now.items() if not unwanted(k)}
        self._before = {k: v for k, v in self._before.items() if not unwanted(k)}

    def turn(self) -> None:
        """Drop what was not asked for since the last turn."""
        self._before, self._now = self._now, {}
