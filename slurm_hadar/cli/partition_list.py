"""The list of partitions, one per GPU type, for a job that asks for the partition that stands for
them: in the order in which its model gains most by them, speed less price.

Slurm takes the first of a list where several are free, and else the first that is freed. Only a job
on one node gets a list: where it fits in all members together it fits in one of them.
"""

from __future__ import annotations

import re

from slurm_hadar.domain.declaration import SLOWEST

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slurm_hadar.cli.submit_prices import Today
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration

    Settings = Mapping[str, str | None]
    """What the user set, by sbatch's long names."""

_KEEP_THE_PARTITION = ("nodelist", "nodefile", "reservation", "exclusive", "test-only")
"""The last since of a list Slurm tells the start in the first partition only."""


def members_of(
    record: Declaration, held: Settings, site: WrapperSite | None, partition: str
) -> dict[str, str]:
    """Partitions that ``partition``, which the job gets else, stands for, each with its GPU type;
    empty where the job keeps it."""
    if site is None or not site.may_list(partition):
        return {}
    if any(name in held for name in _KEEP_THE_PARTITION) or not _on_one_node(record, held, site):
        return {}
    return site.groups[partition]


class Group:
    """A ``partition`` that a job would get by itself, its ``members``: those that it stands for,
    each with its GPU type; and what is known ``today``."""

    __slots__ = ("members", "partition", "today")

    def __init__(self, partition: str, members: Mapping[str, str], today: Today) -> None:
        self.partition, self.members, self.today = partition, members, today


def ordered(
    record: Declaration, held: Settings, site: WrapperSite, group: Group, usable: Sequence[str]
) -> tuple[list[str], str]:
    """The members of the group that a job may use, by speed less price, as Hadar's newcomers
    choose; the order of the site where that is equal. Empty where the user's own ``-C`` leaves
    none, and where the job may not fit one of them: Slurm holds some jobs with such a list. And a
    sentence on the types that the list omits for their speed, empty where there are none.

    ``usable``: GPU types that the declaration allows. Where one of the types has no price
    ``today``, the fastest is first; those whose nodes are asleep are last. A type is too slow only
    beside one on which the job surely fits, by what is known of the nodes today; where nothing is,
    no type is.
    """
    members, today = group.members, group.today
    own = held.get("constraint") or ""
    features = frozenset(site.features.values())
    kinds = [kind for kind in usable if may_meet(own, site.features[kind], features)]
    measured = _speeds_with_batch(record, held, site)
    speeds = {**speeds_of(record.model, site), **measured}
    # A guess keeps no job from a free GPU, nor does a speed that was measured with another batch.
    tabled = site.known.get(_key(record.model), ()) if "any" in record.types else ()
    known = [kind for kind in tabled if not measured or kind in measured]
    holding = _holding(record, held, members, features, today)
    holds = {members[name] for name in holding}
    best = max((speeds.get(k, 1.0) for k in kinds if k in known and k in holds), default=0.0)
    kept = today.shared if record.moves_later else frozenset()
    fast = [
        kind
        for kind in kinds
        if kind not in known or kind in kept or speeds.get(kind, 1.0) * SLOWEST >= best
    ]
    found = [name for name, kind in members.items() if kind in fast]
    if today.nodes and not holding.issuperset(found):
        return [], ""
    prices = today.prices
    priced = all(members[name] in prices for name in found)

    def gain(kind: str) -> float:
        return speeds.get(kind, 1.0) - (prices[kind] if priced else 0.0)

    slower = {k: best / max(speeds.get(k, 1.0), 1e-9) for k in kinds if k not in fast}
    # Slurm takes the first partition that has a free GPU, and wakes a node for it.
    found.sort(key=lambda name: (name in today.asleep, -gain(members[name])))
    return found, _omitted(slower, kinds)


def _omitted(slower: Mapping[str, float], kinds: Sequence[str]) -> str:
    """``slower``: GPU type -> how many times slower the job is on it, of those that its list omits;
    ``kinds``: all that it may use."""
    if not slower:
        return ""
    are, it, accepts = ("is", "it is", "accepts it")
    if len(slower) > 1:
        are, it, accepts = ("are", "they are", "accepts them")
    times = " and ".join(f"{number:.0f}" for number in slower.values())
    return (
        f"{' and '.join(slower)} {are} left out: by the table {it} {times} times slower; "
        f"types={','.join(kinds)} {accepts}"
    )


def _holding(
    record: Declaration,
    held: Settings,
    members: Mapping[str, str],
    features: frozenset[str],
    today: Today,
) -> frozenset[str]:
    """The members that surely have a node on which the job fits."""
    from slurm_hadar.cli.node_fit import fits

    nodes = {name: today.nodes[name] for name in members if name in today.nodes}
    return fits(record, held, nodes, features) if nodes else frozenset()


def speeds_of(model: str, site: WrapperSite) -> Mapping[str, float]:
    """GPU type -> speed over that of the fastest type; of a model that no table knows by the GPUs'
    data sheets."""
    return site.speeds.get(_key(model)) or site.speeds.get("", {})


def _speeds_with_batch(
    record: Declaration, held: Settings, site: WrapperSite
) -> Mapping[str, float]:
    """The speeds with the declared batch on each of its GPUs, of the types that a table has with
    it; empty where none is declared or measured. A slow GPU may be four times slower with the batch
    that a table has in the middle and two times with a small one."""
    from slurm_hadar.cli.node_fit import gpus_asked

    rows = site.batches.get(_key(record.model), {})
    count = gpus_asked(record, held) if rows and record.batch else None
    if not record.batch or not count:
        return {}
    # The least of a range, as the controller has it.
    each, rest = divmod(record.batch[0], count)
    return {} if rest else rows.get(each, {})


def _key(model: str) -> str:
    """As the tables name it."""
    return "".join(letter for letter in model.lower() if letter.isalnum())


def _on_one_node(record: Declaration, held: Settings, site: WrapperSite) -> bool:
    if (record.fork[1] > 1 and site.copies) or record.nodes:
        return False
    nodes = held.get("nodes")
    if nodes is not None:
        return nodes in ("1", "1-1")
    # Slurm spreads tasks, and GPUs that are counted by job, over as many nodes as it likes.
    return all((held.get(name) or "1") == "1" for name in ("ntasks", "gpus"))


def may_meet(constraint: str, feature: str, features: frozenset[str]) -> bool:
    """Whether nodes of the type with this ``feature`` can meet a user's own ``-C``; True where only
    Slurm can read it. ``features``: those of all GPU types."""

    if not constraint:
        return True

    def may(word: str) -> bool:
        return word == feature or word not in features

    if re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", constraint):
        return any(may(word) for word in constraint.split("|"))
    if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", constraint):
        return all(may(word) for word in constraint.split("&"))
    return True
