"""Assigns CPUs and memory beyond the fair shares where they gain most: on each node, and between
nodes. Ours.

TUNE gives the first job its best case and the last one its fair share only. Here the CPUs and
memory of a node are dealt again, the largest gains first, if that pays for the restarts.

On a full cluster the place of a job is where GPUs came free. So one node has jobs that need one CPU
and has CPUs to spare, and the next has jobs that want more and none that can give. Then two jobs
exchange places, the same number of GPUs each. Both restart, so it is done only if that pays. No job
is on more nodes afterwards.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Allocation
from slurm_hadar.policies.synergy.dealing import Dealer, SharedResources, Sharer
from slurm_hadar.policies.synergy.demand_grid import SAME
from slurm_hadar.policies.synergy.tune_placer import Assignment, TunePlacer

_PASSES = 2
"""Passes over the nodes: a job on several nodes may get more after the other jobs there were
served."""
_EXCHANGES = 4
"""Most exchanges in a round."""
_TRIES = 8
"""Most pairs of nodes considered for exchanges in a round."""
_PAIRS = 8
"""Most pairs of jobs considered on two nodes."""


def balance(placer: TunePlacer, options: Mapping[int, FloatArray], unit: FloatArray) -> None:
    """Deal again on each node; then exchange jobs between the node with the largest surplus and
    that with the largest lack. Arguments as for :class:`.dealing.Dealer`."""
    dealer = Dealer(placer, options, unit)
    nodes = sorted(
        {n for assignment in placer.assigned.values() for n in placer.nodes(assignment.allocation)}
    )
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
    """Reset all jobs of a node to their fair shares and deal the rest, largest gains first, if the
    result is better than what they have."""
    there = dealer.sharers(node)
    had = dealer.worth(there)
    if had >= sum(max(point.worth for point in one.points) for one in there) - SAME:
        return
    dealt = dealer.deal(there, dealer.free(there))
    if dealt is not None and dealt.worth > had + SAME:
        dealer.give(there, dealt)


def _lack(dealer: Dealer, node: int) -> float:
    """CPUs per GPU that the best cases of a node's jobs need beyond what is there beside fair
    shares."""
    placer = dealer.placer
    wanted = gpus = free = 0.0
    for assignment in placer.on(node):
        for slot, count in assignment.allocation:
            if placer.pools.node_of[slot] != node:
                continue
            # The same for all of a node.
            free = placer.free_capacity.cpus_and_memory(slot)[0]
            gpus += count
            wanted -= count * (assignment.need.cpus - assignment.demand.fair.cpus)
            if dealer.deals_with(assignment):
                wanted += count * max(
                    0.0, assignment.demand.best.cpus - assignment.demand.fair.cpus
                )
    return (wanted - free) / max(1.0, gpus)


def _exchange(dealer: Dealer, rich: int, poor: int) -> set[int]:
    """Make the best exchange of two nodes that pays, if any. Returns the nodes of all jobs that
    changed."""
    jobs = {one.assignment.demand.job: one for node in (rich, poor) for one in dealer.sharers(node)}
    there = list(jobs.values())
    free, had = dealer.free(there), dealer.worth(there)
    best: tuple[SharedResources, list[Sharer]] | None = None
    for light, light_parts, hungry, hungry_parts in _pairs(dealer.placer, there, rich, poor):
        places = {light.demand.job: light_parts, hungry.demand.job: hungry_parts}
        after = [
            dealer.sharer(one.assignment, places[job]) if job in places else one
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
    placer: TunePlacer, there: Sequence[Sharer], rich: int, poor: int
) -> list[tuple[Assignment, Allocation, Assignment, Allocation]]:
    """(job that needs little on the rich node, its new allocation, job that would use more on the
    poor node, its new allocation), largest differences first."""
    able = [one.assignment for one in there if _may_leave(one.assignment)]
    node_of = placer.pools.node_of
    found: list[tuple[float, Assignment, Allocation, Assignment, Allocation]] = []
    for a in able:
        from_rich = next((part for part in a.allocation if node_of[part[0]] == rich), None)
        for b in able if from_rich else ():
            from_poor = next((part for part in b.allocation if node_of[part[0]] == poor), None)
            difference = b.demand.best.cpus - a.demand.best.cpus
            if from_rich is None or from_poor is None or a is b or difference <= 1.0:
                continue
            if set(a.demand.pools) != set(b.demand.pools):
                continue
            count = min(from_rich[1], from_poor[1])
            places = (
                _moved(a.allocation, from_rich[0], from_poor[0], count),
                _moved(b.allocation, from_poor[0], from_rich[0], count),
            )
            if len(places[0]) <= len(a.allocation) and len(places[1]) <= len(b.allocation):
                found.append((difference * count, a, places[0], b, places[1]))
    found.sort(key=lambda one: (-one[0], one[1].demand.job, one[3].demand.job))
    return [one[1:] for one in found[:_PAIRS]]


def _moved(allocation: Allocation, out: int, into: int, count: int) -> Allocation:
    """The allocation with ``count`` GPUs moved from slot ``out`` to slot ``into``."""
    found = dict(allocation)
    found[out] -= count
    found[into] = found.get(into, 0) + count
    return tuple((slot, number) for slot, number in found.items() if number)


def _may_leave(assignment: Assignment) -> bool:
    demand = assignment.demand
    return not demand.only_own and (not demand.own or demand.can_afford())
