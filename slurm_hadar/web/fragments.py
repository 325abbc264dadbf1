"""A page as named parts of HTML, so that an update sends only those that changed.

Each part is one element with its name as ``id``. A list holds items that come and go.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class PageFragments:
    """``singles``: name -> HTML; ``lists``: name of the list -> name of the item -> HTML, in its
    order."""

    title: str
    singles: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """Differs where anything does."""
        text = json.dumps([dict(self.singles), {name: dict(one) for name, one in
                                                self.lists.items()}])  # fmt: skip
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @cached_property
    def _changes(self) -> dict[str, str]:
        return {}

    def since(self, old: "PageFragments | None") -> str:
        """What changed, as JSON: ``set`` and ``lists`` have the new HTML, ``order`` the names of a
        list's items where these are others or stand otherwise. Made once for all who come from the
        same version."""
        before = old.version if old is not None else ""
        if before not in self._changes:
            self._changes.clear()
            self._changes[before] = self._made_since(old)
        return self._changes[before]

    def _made_since(self, old: "PageFragments | None") -> str:
        known = old or PageFragments("")
        changed = {
            name: html for name, html in self.singles.items() if known.singles.get(name) != html
        }
        items, order = {}, {}
        for name, now in self.lists.items():
            was = known.lists.get(name, {})
            new = {item: html for item, html in now.items() if was.get(item) != html}
            if new:
                items[name] = new
            if list(was) != list(now):
                order[name] = list(now)
        return json.dumps({"version": self.version, "set": changed, "lists": items, "order": order})
