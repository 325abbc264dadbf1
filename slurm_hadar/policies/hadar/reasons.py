"""Reasons of plans as text: why a job gets this place, why it waits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.policies.allocation import (
    FreeCapacity,
    gang_tier,
    gpus_text,
    nodes_text,
    placement_of,
)
from slurm_hadar.policies.ends import ends, ends_here, moves
from slurm_hadar.policies.hadar.bids import Bid, Market, Round
from slurm_hadar.policies.hadar.worth import TypeOption
from slurm_hadar.policies.unavailable import unavailable


def plan(
    market: Market,
    room: FreeCapacity,
    given: Mapping[int, Bid],
    order: Sequence[int],
    rules: Sequence[Round],
) -> Plan:
    """The decision on every job. ``room`` is what stays free; ``order`` the queue."""
    view = market.view
    placements: dict[str, Placement] = {}
    waiting: dict[str, str] = {}
    short: dict[tuple[object, ...], str] = {}
    for place, job in enumerate(order):
        offer = given.get(job)
        if offer is not None:
            placements[view.jobs.ids[job]] = _placement(market, job, offer, place, len(order))
        else:
            waiting[view.jobs.ids[job]] = _waits(market, room, job, place, len(order), short)
    return Plan(placements, waiting, _notes(market, room, rules))


def _placement(market: Market, job: int, offer: Bid, place: int, length: int) -> Placement:
    view, pools = market.view, market.pools
    placed = placement_of(view, pools, offer.parts, "")
    what, where = gpus_text(placed), nodes_text(placed)
    post = market.posts.get(job)
    if offer.stay and post is not None:
        words = f"stays on {what} ({where}), {ends_here(view, job, offer.seconds)}"
        if not view.jobs.movable[job]:
            words += "; it cannot be moved now"
        elif not post.movable:
            stay_s = market.settings.min_stay_s
            span = f"{stay_s / 60:.0f} min" if stay_s >= 60 else f"{stay_s:.0f} s"
            words += f"; it came here less than {span} ago"
        else:
            words += f"; no free placement is worth a restart of {view.jobs.restart_s[job]:.0f} s"
    else:
        # What matters to its owner comes first.
        went = moves(view, job, offer.seconds, post.seconds) if post is not None else ""
        words = f"{what} on {where}: {ends(view, job, offer.seconds)}{went}; {_rank(place, length)}"
        if market.worth.critical[job]:
            words += ", ahead because it decides when all the work ends"
        words += (
            f"; gain {_number(offer.payoff)} = value {_number(offer.utility)}"
            f" - price {_number(offer.charge)}"
        )
        words += _alternative(market, job, offer)
    return replace(placed, tier=gang_tier(placed), reason=words)


def _alternative(market: Market, job: int, offer: Bid) -> str:
    kinds = {int(market.pools.gpu_type[slot]) for slot, _ in offer.parts}
    count = sum(n for _, n in offer.parts)
    for cell in market.cells(job):
        if cell.count != count or cell.gpu_type not in kinds:
            return (
                f"; next best {_cell(market, cell)}: {ends(market.view, job, cell.seconds)},"
                f" value {_number(cell.utility)}"
            )
    return "; no other GPU type or count is open to it"


def _waits(
    market: Market,
    room: FreeCapacity,
    job: int,
    place: int,
    length: int,
    short: dict[tuple[object, ...], str],
) -> str:
    cells = market.cells(job)
    if not cells:
        return unavailable(market.view, job)
    if cells[0].utility <= 0.0:
        return "it gets no GPU: its weight is 0, so no GPU has a value for it"
    key = market.kind(job)
    if key not in short:
        least = min(cell.count for cell in cells)
        by_type = market.open_pools(job)
        pools = [p for kind in sorted({cell.gpu_type for cell in cells}) for p in by_type[kind]]
        most = int(market.view.jobs.max_nodes[job])
        short[key] = room.shortage(pools, least, market.needs[job], most)
    stopped = "stopped for jobs that gain more; " if job in market.posts else ""
    return (
        f"{stopped}short of {short[key]}; {_rank(place, length)};"
        f" best for it: {_cell(market, cells[0])}, {ends(market.view, job, cells[0].seconds)}"
    )


def _rank(place: int, length: int) -> str:
    return f"number {place + 1} of {length} in the policy's queue, in the order of gain per price"


def _notes(market: Market, room: FreeCapacity, rules: Sequence[Round]) -> tuple[str, ...]:
    view = market.view
    notes = [f"all present work ends in {market.worth.horizon_s / 3600:.1f} h at the earliest"]
    if unknown := int((~view.jobs.end_known).sum()):
        notes[0] += f", with lengths assumed for {unknown} jobs whose end is unknown"
    for kind, name in enumerate(view.types):
        pools = market.pools.of_type[kind]
        free = sum(room.left[p] for p in pools)
        total = sum(market.pools.capacity[p] for p in pools)
        share = float(market.worth.scarcity.price[kind]) * total
        note = f"{name}: {free} of {total} GPUs stay free, {100 * share:.0f}% of the shortage"
        if rules and rules[0].price is not None:
            low, high = rules[0].price.least[kind], rules[0].price.most[kind]
            note += f", price {_number(low * 3600)} to {_number(high * 3600)} per GPU-hour"
        notes.append(note)
    return tuple(notes)


def _cell(market: Market, cell: TypeOption) -> str:
    return f"{cell.count} x {market.view.types[cell.gpu_type]}"


def _number(value: float) -> str:
    return f"{value:.3g}"
