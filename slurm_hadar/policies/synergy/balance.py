"""What is beyond the fair shares goes where it does most: on each node, and between nodes. Ours.

TUNE gives the first job its best case and the last one nothing beyond its fair share. Here a node's
CPUs and memory are dealt anew, the largest gains first, where that pays for the restarts.

On a full cluster a job's place is where GPUs came free. So one node has jobs that need one CPU, and
CPUs to spare, and the next one has jobs that want more and none who can give. An exchange costs
both a restart, and is made where it pays for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Need, Parts
from slurm_hadar.policies.synergy.demands import SAME
from slurm_hadar.policies.synergy.leftovers import raise_on
from slurm_hadar.policies.synergy.placing import Given, Placing

_EXCHANGES = 4
"""Most exchanges of a round."""
_TRIES = 8
"""Most pairs of nodes that are looked at for them."""
_AHEAD_S = 3600.0
"""What an exchange brings is counted for so long at the most: then others have come and gone."""


@dataclass(slots=True)
class _Before:
    given: Given
    parts: Parts
    need: Need
    factor: float


def balance(placing: Placing, options: Mapping[int, FloatArray], unit: FloatArray) -> None:
    """Deal anew on each node; then exchange jobs between the node that has most to spare and the
    one that lacks most. Arguments as in :func:`.leftovers.hand_out`."""
    nodes = sorted({n for given in placing.given.values() for n in placing.nodes(given.parts)})
    for node in nodes:
        _redeal(placing, node, options, unit)
    done = tries = 0
    while done < _EXCHANGES and tries < _TRIES and len(nodes) > 1:
        tries += 1
        spare = {node: _spare(placing, node) for node in nodes}
        wanted = {node: _wanted(placing, node, options) for node in nodes}
        rich = max(nodes, key=lambda node: (spare[node] - wanted[node], -node))
        poor = max(nodes, key=lambda node: (wanted[node] - spare[node], -node))
        if rich == poor or wanted[poor] <= SAME:
            return
        pair = _pair(placing.on(rich), placing.on(poor))
        if pair is None or not _exchange(placing, rich, poor, *pair, options, unit):
            nodes.remove(rich)
            continue
        done += 1


def _redeal(
    placing: Placing, node: int, options: Mapping[int, FloatArray], unit: FloatArray
) -> None:
    """Everybody on a node back to his fair share, and then the largest gains first; undone where
    that is no better than what they have."""
    before = [_Before(g, g.parts, g.need, g.factor) for g in placing.on(node)]
    had = _worth_of(before)
    if _deal(placing, node, options, unit) <= had:
        for one in before:
            placing.change(one.given, one.need, one.factor)


def _deal(
    placing: Placing, node: int, options: Mapping[int, FloatArray], unit: FloatArray
) -> float:
    there = placing.on(node)
    for given in there:
        if not given.fixed and len(given.parts) == 1:
            placing.change(given, given.wish.fair, given.wish.floor)
    raise_on(placing, node, options, unit, {given.wish.job for given in there})
    return _worth_of([_Before(g, g.parts, g.need, g.factor) for g in there])


def _spare(placing: Placing, node: int) -> float:
    """CPUs per GPU that are not needed for fair shares."""
    used = [(g.wish.fair.cpus * n, n) for g in placing.on(node) for n in _counts(placing, g, node)]
    free = placing.room.beside(_slot(placing, node))[0]
    extra = sum(
        (g.need.cpus - g.wish.fair.cpus) * n
        for g in placing.on(node)
        for n in _counts(placing, g, node)
    )
    return (free + extra) / max(1, sum(n for _, n in used))


def _wanted(placing: Placing, node: int, options: Mapping[int, FloatArray]) -> float:
    """CPUs per GPU, beyond fair shares, that the best cases of the node's jobs would take."""
    total = gpus = 0.0
    for given in placing.on(node):
        for count in _counts(placing, given, node):
            gpus += count
            if not given.fixed and len(given.parts) == 1 and given.wish.job in options:
                total += count * max(0.0, given.wish.best.cpus - given.wish.fair.cpus)
    return total / max(1.0, gpus)


def _counts(placing: Placing, given: Given, node: int) -> list[int]:
    return [n for slot, n in given.parts if placing.floor.node_of[slot] == node]


def _slot(placing: Placing, node: int) -> int:
    given = placing.on(node)[0]
    return next(slot for slot, _ in given.parts if placing.floor.node_of[slot] == node)


def _pair(rich: Sequence[Given], poor: Sequence[Given]) -> tuple[Given, Given] | None:
    """One who needs little on the rich node, and one of the same size who would take more."""
    best: tuple[float, Given, Given] | None = None
    for a in rich:
        for b in poor:
            if not (_may_leave(a) and _may_leave(b)) or a.parts[0][1] != b.parts[0][1]:
                continue
            if set(a.wish.pools) != set(b.wish.pools):
                continue
            difference = b.wish.best.cpus - a.wish.best.cpus
            if difference > 1.0 and (best is None or difference > best[0] + SAME):
                best = (difference, a, b)
    return best[1:] if best else None


def _may_leave(given: Given) -> bool:
    wish = given.wish
    alone = len(given.parts) == 1 and not given.fixed and not wish.only_own
    return alone and (not wish.own or wish.can_afford())


def _exchange(
    placing: Placing,
    rich: int,
    poor: int,
    light: Given,
    hungry: Given,
    options: Mapping[int, FloatArray],
    unit: FloatArray,
) -> bool:
    """Do it, and undo it where it does not pay."""
    jobs = {g.wish.job: g for node in (rich, poor) for g in placing.on(node)}
    before = [_Before(g, g.parts, g.need, g.factor) for g in jobs.values()]
    here, there = light.parts, hungry.parts
    placing.lift(light)
    placing.lift(hungry)
    fits = placing.put(light, there, light.wish.fair, light.wish.floor)
    fits = fits and placing.make_room(hungry.wish, here)
    fits = fits and placing.put(hungry, here, hungry.wish.fair, hungry.wish.floor)
    if fits:
        both = sum(_deal(placing, node, options, unit) for node in (rich, poor))
        if both > _worth_of(before):
            return True
    for one in before:
        placing.lift(one.given)
    for one in before:
        placing.restore(one.given, one.parts, one.need, one.factor)
    return False


def _worth_of(jobs: Sequence[_Before]) -> float:
    """Of those on one node; the others keep what they have in any case."""
    alone = (one for one in jobs if len(one.parts) == 1)
    return sum(_worth(one.given, one.parts, one.need, one.factor) for one in alone)


def _worth(given: Given, parts: Parts, need: Need, factor: float) -> float:
    """Work of the next while, in GPU-seconds at the speed that is asked for, less its restart."""
    wish = given.wish
    ahead = min(_AHEAD_S, wish.seconds)
    stays = not wish.own or (parts == wish.own and need == wish.present)
    lost = 0.0 if stays else wish.restart_s
    return factor * max(0.0, ahead - lost) * sum(n for _, n in parts)
