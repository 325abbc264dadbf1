"""The reasons in the plans of the ones policy."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.policies.allocation import (
    Allocation,
    gang_tier,
    gpus_text,
    nodes_text,
    placement_of,
)
from slurm_hadar.policies.batches import chosen_batch
from slurm_hadar.policies.ones.problem import PlacedRound
from slurm_hadar.policies.reason_text import UNKNOWN, end_text, move_reason, time_left_text
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.unavailable import unavailable
from slurm_hadar.solvers.evolution import Best


def plan_with_reasons(placed: PlacedRound, best: Best, searched: bool) -> Plan:
    """The plan with the reason of each placement and each wait."""
    ids, places = placed.view.jobs.ids, placed.places
    reasons = _Reasons(placed)
    placements = {
        ids[job]: reasons.placement(job, allocation)
        for job, allocation in places.allocations.items()
    }
    waiting = {
        id_: reasons.waits(job, places.unplaced.get(job, ""))
        for job, id_ in enumerate(ids)
        if id_ not in placements
    }
    return Plan(placements, waiting, reasons.notes(places, best, searched))


class _Reasons:
    def __init__(self, placed: PlacedRound) -> None:
        self.view, self.pools, self.problem = placed.view, placed.pools, placed.problem
        self.option, self.batch = placed.option, placed.batch

    def placement(self, job: int, allocation: Allocation) -> Placement:
        view, pools, problem = self.view, self.pools, self.problem
        placed = placement_of(view, pools, allocation, "")
        what, where = gpus_text(placed), nodes_text(placed)
        option, size = int(self.option[job]), int(self.batch[job])
        stays = problem.options.held.get(job) == allocation
        text = f"{'stays on ' if stays else ''}{what} ({where})"
        if problem.options.bound[job] and stays:
            text += "; it cannot be moved now"
        seconds = problem.seconds[job, option] if option >= 0 else np.array([np.inf])
        if option >= 0 and np.isfinite(seconds[size]):
            text += f", {end_text(view, job, float(seconds[size]))}"
        was = int(problem.now_option[job])
        if not stays and was >= 0:
            there = float(problem.seconds[job, was, problem.now_batch[job]])
            text += move_reason(view, job, float(seconds[size]), there)
        placement = replace(placed, tier=gang_tier(placed), reason=text)
        sizes = problem.sizes[job]
        if not sizes.any():
            return placement
        with np.errstate(divide="ignore"):
            good = 1.0 / np.broadcast_to(seconds, sizes.shape)
        return chosen_batch(placement, sizes, good, size, int(problem.own_batch[job]))

    def waits(self, job: int, shortage: str) -> str:
        quickest = self.problem.seconds[job].min(axis=1, initial=np.inf)
        if not np.isfinite(quickest).any():
            return unavailable(self.view, job)
        if shortage:
            return f"chosen, but short of {shortage}"
        score_input, options = self.problem.score_input, self.problem.options
        best = int(quickest.argmin())
        kind = self.view.types[self.pools.pool_type[int(options.pool[best])]]
        ahead = int(
            (
                score_input.work / score_input.weight
                < score_input.work[job] / score_input.weight[job]
            ).sum()
        )
        stopped = "stopped for others; " if job in options.held else ""
        left = time_left_text(self.view, job, float(quickest[best]))
        end = f"it would end in {left}" if left else UNKNOWN
        return (
            f"{stopped}no schedule was found in which it had GPUs and all jobs together ended "
            f"sooner; {ahead} of {len(score_input.work)} jobs have less left to do; "
            f"on {int(options.gpus[best])} x {kind} {end}"
        )

    def notes(self, places: PlacedJobs, best: Best, searched: bool) -> tuple[str, ...]:
        how = (
            f"{best.generation} generations"
            if searched
            else "the last search still stands, nothing has changed since"
        )
        notes = [f"all present jobs together are still here for {best.score / 3600:.3g} h; {how}"]
        for pool, kind in enumerate(self.pools.pool_type):
            notes.append(
                f"{self.view.types[kind]}: {max(0, places.free_capacity.left[pool])} of "
                f"{int(self.problem.options.capacity[pool])} GPUs stay free"
            )
        return tuple(notes)
