"""What is beyond the fair shares goes where it does most: on each node, and between nodes. Ours.

TUNE gives the first job its best case and the last one nothing beyond its fair share. Here a node's
CPUs and memory are dealt anew, the largest gains first, where that pays for the restarts.

On a full cluster a job's place is where GPUs came free. So one node has jobs that need one CPU, and
CPUs to spare, and the next one has jobs that want more and none who can give. Then two jobs change
places, as many GPUs of the one as of the other. That costs both a restart, and is done where it
pays for that. No job is on more nodes afterwards.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Allocation
from slurm_hadar.policies.synergy.dealing import Dealer, SharedResources, Sharer
from slurm_hadar.policies.synergy.demands import SAME
from slurm_hadar.policies.synergy.placing import Given, Placing

_PASSES = 2
"""Over the nodes: a job on several nodes has more once the others of its nodes were dealt with."""
_EXCHANGES = 4
"""Most exchanges of a round."""
_TRIES = 8
"""Most pairs of nodes that are looked at for them."""
_PAIRS = 8
"""Most pairs of jobs that are looked at on two nodes."""


def balance(placing: Placing, options: Mapping[int, FloatArray], unit: FloatArray) -> None:
    """Deal anew on each node; then exchange jobs between the node that has most to spare and the
    one that lacks most. Arguments as for :class:`.dealing.Dealer`."""
    dealer = Dealer(placing, options, unit)
    nodes = sorted({n for given in placing.given.values() for n in placing.nodes(given.parts)})
    for _ in range(_PASSES):
        for node in nodes:
            _redeal(dealer, node)
    lack = {node: _lack(dealer, node) for node in nodes}
    done = tries = 0
    while done < _EXCHANGES and tries < _TRIES and len(lack) > 1:
        tries += 1
        rich = min(lack, key=lambda node: (lack[node], node))
        poor = max(lack, key=lambda node: (lack[node], -node))
        if lack[poor] <= SAME:
            return
        changed = _exchange(dealer, rich, poor)
        if not changed:
            del lack[rich]
            continue
        done += 1
        for node in changed & lack.keys():
            lack[node] = _lack(dealer, node)


def _redeal(dealer: Dealer, node: int) -> None:
    """Everybody on a node back to his fair share, and then the largest gains first, where that is
    better than what they have."""
    there = dealer.sharers(node)
    had = dealer.worth(there)
    if had >= sum(max(point.worth for point in one.points) for one in there) - SAME:
        return
    dealt = dealer.deal(there, dealer.free(there))
    if dealt is not None and dealt.worth > had + SAME:
        dealer.give(there, dealt)


def _lack(dealer: Dealer, node: int) -> float:
    """CPUs per GPU that the best cases of a node's jobs would take, less those there are beyond
    fair shares."""
    placing = dealer.placing
    wanted = gpus = free = 0.0
    for given in placing.on(node):
        for slot, count in given.parts:
            if placing.pools.node_of[slot] != node:
                continue
            # The same for all of a node.
            free = placing.room.cpus_and_memory(slot)[0]
            gpus += count
            wanted -= count * (given.need.cpus - given.wish.fair.cpus)
            if dealer.deals_with(given):
                wanted += count * max(0.0, given.wish.best.cpus - given.wish.fair.cpus)
    return (wanted - free) / max(1.0, gpus)


def _exchange(dealer: Dealer, rich: int, poor: int) -> set[int]:
    """Make the best exchange of two nodes, if there is one that pays; the nodes of all who have
    other things now."""
    jobs = {one.given.wish.job: one for node in (rich, poor) for one in dealer.sharers(node)}
    there = list(jobs.values())
    free, had = dealer.free(there), dealer.worth(there)
    best: tuple[SharedResources, list[Sharer]] | None = None
    for light, light_parts, hungry, hungry_parts in _pairs(dealer.placing, there, rich, poor):
        places = {light.wish.job: light_parts, hungry.wish.job: hungry_parts}
        after = [
            dealer.sharer(one.given, places[job]) if job in places else one
            for job, one in jobs.items()
        ]
        dealt = dealer.deal(after, free)
        if dealt is not None and dealt.worth > (best[0].worth if best else had) + SAME:
            best = dealt, after
    if best is None:
        return set()
    dealer.give(best[1], best[0])
    return {node for one in best[1] for node, _ in one.counts}


def _pairs(
    placing: Placing, there: Sequence[Sharer], rich: int, poor: int
) -> list[tuple[Given, Allocation, Given, Allocation]]:
    """Who needs little on the rich node, who would take more on the poor one, and their places
    afterwards; the largest differences first."""
    able = [one.given for one in there if _may_leave(one.given)]
    node_of = placing.pools.node_of
    found: list[tuple[float, Given, Allocation, Given, Allocation]] = []
    for a in able:
        from_rich = next((part for part in a.parts if node_of[part[0]] == rich), None)
        for b in able if from_rich else ():
            from_poor = next((part for part in b.parts if node_of[part[0]] == poor), None)
            difference = b.wish.best.cpus - a.wish.best.cpus
            if from_rich is None or from_poor is None or a is b or difference <= 1.0:
                continue
            if set(a.wish.pools) != set(b.wish.pools):
                continue
            count = min(from_rich[1], from_poor[1])
            places = (
                _moved(a.parts, from_rich[0], from_poor[0], count),
                _moved(b.parts, from_poor[0], from_rich[0], count),
            )
            if len(places[0]) <= len(a.parts) and len(places[1]) <= len(b.parts):
                found.append((difference * count, a, places[0], b, places[1]))
    found.sort(key=lambda one: (-one[0], one[1].wish.job, one[3].wish.job))
    return [one[1:] for one in found[:_PAIRS]]


def _moved(parts: Allocation, out: int, into: int, count: int) -> Allocation:
    """A place of which ``count`` GPUs are in another slot."""
    found = dict(parts)
    found[out] -= count
    found[into] = found.get(into, 0) + count
    return tuple((slot, number) for slot, number in found.items() if number)


def _may_leave(given: Given) -> bool:
    wish = given.wish
    return not wish.only_own and (not wish.own or wish.can_afford())
