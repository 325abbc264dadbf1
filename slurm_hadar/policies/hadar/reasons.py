"""The reasons in Hadar's plans as text: why a job gets its placement, or waits."""

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
from slurm_hadar.policies.hadar.bids import Bid, Market, PassTerms
from slurm_hadar.policies.hadar.utility import TypeOption
from slurm_hadar.policies.reason_text import end_here_text, end_text, move_reason
from slurm_hadar.policies.unavailable import unavailable


def plan(
    market: Market,
    free_capacity: FreeCapacity,
    accepted: Mapping[int, Bid],
    order: Sequence[int],
    rules: Sequence[PassTerms],
) -> Plan:
    """The plan for all jobs, in the order of the queue. ``free_capacity``: what stays free."""
    view = market.view
    placements: dict[str, Placement] = {}
    waiting: dict[str, str] = {}
    short: dict[tuple[object, ...], str] = {}
    for place, job in enumerate(order):
        bid, rank = accepted.get(job), _rank(place, len(order))
        if bid is not None:
            placements[view.jobs.ids[job]] = _placement(market, job, bid, rank)
        else:
            waiting[view.jobs.ids[job]] = _waits(market, free_capacity, job, rank, short)
    return Plan(placements, waiting, _notes(market, free_capacity, rules))


def _placement(market: Market, job: int, bid: Bid, rank: str) -> Placement:
    view, pools = market.view, market.pools
    placed = placement_of(view, pools, bid.allocation, "")
    what, where = gpus_text(placed), nodes_text(placed)
    incumbent = market.incumbents.get(job)
    if bid.stay and incumbent is not None:
        text = f"stays on {what} ({where}), {end_here_text(view, job, bid.seconds)}"
        if not view.jobs.movable[job]:
            text += "; it cannot be moved now"
        elif not incumbent.movable:
            stay_s = market.settings.min_stay_s
            span = f"{stay_s / 60:.0f} min" if stay_s >= 60 else f"{stay_s:.0f} s"
            text += f"; it came here less than {span} ago"
        else:
            text += f"; no free placement is worth a restart of {view.jobs.restart_s[job]:.0f} s"
    else:
        # The end comes first: it matters most to the job's owner.
        went = (
            move_reason(view, job, bid.seconds, incumbent.seconds) if incumbent is not None else ""
        )
        text = f"{what} on {where}: {end_text(view, job, bid.seconds)}{went}; {rank}"
        if market.utilities.critical[job]:
            text += ", ahead because it decides when all the work ends"
        text += (
            f"; gain {_number(bid.payoff)} = value {_number(bid.utility)}"
            f" - price {_number(bid.charge)}"
        )
        text += _alternative(market, job, bid)
    return replace(placed, tier=gang_tier(placed), reason=text)


def _alternative(market: Market, job: int, bid: Bid) -> str:
    kinds = {int(market.pools.gpu_type[slot]) for slot, _ in bid.allocation}
    count = sum(n for _, n in bid.allocation)
    for option in market.type_options(job):
        if option.count != count or option.gpu_type not in kinds:
            return (
                f"; next best {_option_text(market, option)}:"
                f" {end_text(market.view, job, option.seconds)}, value {_number(option.utility)}"
            )
    return "; no other GPU type or count is open to it"


def _waits(
    market: Market,
    free_capacity: FreeCapacity,
    job: int,
    rank: str,
    short: dict[tuple[object, ...], str],
) -> str:
    options = market.type_options(job)
    if not options:
        return unavailable(market.view, job)
    if options[0].utility <= 0.0:
        return "it gets no GPU: its weight is 0, so no GPU has a value for it"
    key = market.fit_class(job)
    if key not in short:
        least = min(option.count for option in options)
        by_type = market.open_pools(job)
        pools = [
            p for kind in sorted({option.gpu_type for option in options}) for p in by_type[kind]
        ]
        most = int(market.view.jobs.max_nodes[job])
        short[key] = free_capacity.shortage(pools, least, market.needs[job], most)
    stopped = "stopped for jobs that gain more; " if job in market.incumbents else ""
    return (
        f"{stopped}short of {short[key]}; {rank};"
        f" best for it: {_option_text(market, options[0])},"
        f" {end_text(market.view, job, options[0].seconds)}"
    )


def _rank(place: int, length: int) -> str:
    return f"number {place + 1} of {length} in the policy's queue, in the order of gain per price"


def _notes(
    market: Market, free_capacity: FreeCapacity, rules: Sequence[PassTerms]
) -> tuple[str, ...]:
    view = market.view
    notes = [f"all present work ends in {market.utilities.horizon_s / 3600:.1f} h at the earliest"]
    if unknown := int((~view.jobs.end_known).sum()):
        notes[0] += f", with lengths assumed for {unknown} jobs whose end is unknown"
    for kind, name in enumerate(view.types):
        pools = market.pools.of_type[kind]
        free = sum(free_capacity.left[p] for p in pools)
        total = sum(market.pools.capacity[p] for p in pools)
        share = float(market.utilities.scarcity.price[kind]) * total
        note = f"{name}: {free} of {total} GPUs stay free, {100 * share:.0f}% of the shortage"
        if rules and rules[0].price is not None:
            low, high = rules[0].price.least[kind], rules[0].price.most[kind]
            note += f", price {_number(low * 3600)} to {_number(high * 3600)} per GPU-hour"
        notes.append(note)
    return tuple(notes)


def _option_text(market: Market, option: TypeOption) -> str:
    return f"{option.count} x {market.view.types[option.gpu_type]}"


def _number(value: float) -> str:
    return f"{value:.3g}"
