"""The lines of slurm.conf that advice comes to: several pieces of advice may change one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.slurm import hosts
from slurm_hadar.tuning.conf import ConfEntry, quoted, with_keys
from slurm_hadar.tuning.site import SlurmSite

Ref = tuple[str, str]
"""``("setting", "PreemptType")``, ``("partition", "gpu")``, ``("node", "v[1-2]")``."""


@dataclass(frozen=True, slots=True)
class DraftLine:
    """One line as it should stand. ``where``: in whose place, or where it goes; ``whole``: False
    for keys that go on a line of which the rest is not known here."""

    text: str
    where: str
    replaces: ConfEntry | None = None
    whole: bool = True


@dataclass
class Draft:
    """Changes to a site's slurm.conf, collected; nothing is written."""

    site: SlurmSite
    _settings: dict[str, str] = field(default_factory=dict)
    _new: dict[str, dict[str, str]] = field(default_factory=dict)
    _like: dict[str, str] = field(default_factory=dict)
    _partitions: dict[str, dict[str, str]] = field(default_factory=dict)
    _nodes: dict[str, tuple[ConfEntry | None, dict[str, str]]] = field(default_factory=dict)

    def set(self, name: str, value: str) -> Ref:
        """A setting of the whole cluster."""
        self._settings[name] = value
        return ("setting", name)

    def partition(self, name: str, keys: Mapping[str, str]) -> Ref:
        """Keys of a partition that is there, or of one that :meth:`add` drew up."""
        target = self._new if name in self._new else self._partitions
        target.setdefault(name, {}).update(keys)
        return ("partition", name)

    def add(self, name: str, keys: Mapping[str, str], like: str = "") -> Ref:
        """A partition that is not there yet; ``like``: the one whose keys it has."""
        self._new[name] = dict(keys)
        self._like[name] = like
        return ("partition", name)

    def drawn_up(self) -> dict[str, str]:
        """Partitions that :meth:`add` drew up, each with the one that it is like."""
        return dict(self._like)

    def node(self, names: Sequence[str], keys: Mapping[str, str], entry: ConfEntry | None) -> Ref:
        """Keys of nodes; ``entry``: their line in slurm.conf, where that is known."""
        label = entry.keys["nodename"] if entry else hosts.fold(tuple(names))
        self._nodes.setdefault(label, (entry, {}))[1].update(keys)
        return ("node", label)

    def lines(self, refs: Sequence[Ref]) -> list[DraftLine]:
        """What these come to, with everything that other advice changes on the same lines."""
        return [self._line(*ref) for ref in dict.fromkeys(refs)]

    def everything(self) -> list[DraftLine]:
        """All lines: settings, nodes, then partitions in the order of their PriorityTier, highest
        first, as Slurm serves them."""
        names = sorted({*self._partitions, *self._new}, key=lambda name: (-self.tier(name), name))
        return self.lines([
            *(("setting", name) for name in self._settings),
            *(("node", name) for name in self._nodes),
            *(("partition", name) for name in names),
        ])  # fmt: skip

    def nodes(self, name: str) -> tuple[str, ...]:
        """Nodes of a partition that :meth:`add` drew up."""
        return hosts.expand(self._new[name]["Nodes"])

    def tier(self, name: str) -> int:
        """A partition's PriorityTier with the changes so far."""
        changed = {**self._partitions.get(name, {}), **self._new.get(name, {})}
        there = next((p.priority_tier for p in self.site.partitions if p.name == name), 1)
        return int(changed.get("PriorityTier", there))

    def _line(self, kind: str, name: str) -> DraftLine:
        if kind == "setting":
            text = f"{name}={self._settings[name]}"
            entry = self.site.conf.places.get(name.lower()) if self.site.conf else None
            if entry is None:
                return DraftLine(text, "a line of its own, before the partitions")
            return DraftLine(with_keys(entry, {name: self._settings[name]}), _instead(entry), entry)
        if kind == "node":
            entry, keys = self._nodes[name]
            return _changed(entry, keys, f"on the NodeName line of {name}")
        if name in self._new:
            text = " ".join(f"{key}={quoted(value)}" for key, value in self._new[name].items())
            return DraftLine(f"PartitionName={name} {text}", "a new line, after the nodes")
        entry = self.site.entry_of(name)
        return _changed(entry, self._partitions[name], f"on the PartitionName line of {name}")


def _changed(entry: ConfEntry | None, keys: Mapping[str, str], where: str) -> DraftLine:
    if entry is not None:
        return DraftLine(with_keys(entry, keys), _instead(entry), entry)
    text = " ".join(f"{key}={value}" for key, value in keys.items())
    return DraftLine(text, where, whole=False)


def _instead(entry: ConfEntry) -> str:
    return f"in place of {entry.where}"


def applied(text: str, lines: Sequence[DraftLine]) -> str:
    """A slurm.conf without Include, with these lines in it: what the admin is to do by hand.

    Lines that are replaced stay as comments, all the lines that they consist of.
    """
    old = text.split("\n")
    gone: dict[int, str] = {}
    for line in lines:
        if line.replaces is None:
            continue
        at = line.replaces.line - 1
        gone[at] = line.text
        while old[at].split("#")[0].rstrip().endswith("\\") and at + 1 < len(old):
            at += 1
            gone[at] = ""
    kept: list[str] = []
    for at, one in enumerate(old):
        kept += (
            [f"# was: {one.rstrip(chr(92))}", *filter(None, [gone[at]])] if at in gone else [one]
        )
    new = [line.text for line in lines if line.replaces is None and line.whole]
    settings = [one for one in new if not one.startswith("PartitionName=")]
    return "\n".join([*settings, *kept, *(one for one in new if one not in settings), ""])
