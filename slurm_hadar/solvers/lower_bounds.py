"""Lower bounds of the makespan and of the average completion time.

They hold for each schedule with preemption, one option per job at a time, and gangs of any shape.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.solvers.time_indexed import TimeIndexedWork, shortest, timetable

_POINTS = 12
"""Integration points per bucket."""
_TRIES = np.array([0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.25])


@dataclass(frozen=True)
class Bounds:
    """The least makespan, from time 0, and the least average of finish minus arrival, both in s."""

    makespan_s: float
    jct_s: float


def bounds(work: TimeIndexedWork, arrival_s: FloatArray, buckets: int = 22) -> Bounds:
    """Bounds for single jobs: ``work.number`` and weights all 1; arrivals at 0 or later."""
    least = makespan(work, arrival_s)
    ratio = 1.35
    steps = ratio ** np.arange(buckets)
    edges = np.concatenate([[0.0], 1.05 * least * steps / steps[-1]])
    if arrival_s.any():
        even = np.linspace(0.0, 1.05 * least, buckets + 1)
        edges = np.unique(np.concatenate([edges[:4], even]))
    length = np.diff(edges)
    there = np.clip((edges[1:] - np.maximum(edges[:-1], arrival_s[:, None])) / length, 0.0, 1.0)
    fluid = timetable(work, edges, np.ones(len(arrival_s)), there)
    return Bounds(least, _average(work, arrival_s, edges, fluid.worth, fluid.price))


def makespan(work: TimeIndexedWork, arrival_s: FloatArray) -> float:
    """The maximum over start times t of t + the least time for all work that arrives from t on."""
    best = 0.0
    for start in np.unique(np.quantile(arrival_s, np.linspace(0.0, 0.98, 12), method="lower")):
        rows = arrival_s >= start
        part = TimeIndexedWork(
            work.seconds[rows], work.gpus, work.pool, work.capacity,
            work.number[rows], work.weight[rows],
        )  # fmt: skip
        best = max(best, float(start) + shortest(part)[0])
    alone = arrival_s + work.seconds.min(axis=1)
    return max(best, float(alone.max()))


def _average(
    work: TimeIndexedWork,
    arrival_s: FloatArray,
    edges: FloatArray,
    worth: FloatArray,
    price: FloatArray,
) -> float:
    """By weak duality, for any prices and any worths.

    A job that has done the part F(t) of its work by t ends no sooner than its mean busy time plus
    half its shortest run time. So its completion plus the price of its GPUs is at least worth -
    integral over t of the largest (worth - t - price of the whole job at t) / run time, or 0. The
    integrand is convex in t while prices are linear in it, so trapezoids only lower the bound. The
    price of the GPUs is subtracted.
    """
    seconds = np.where(np.isfinite(work.seconds), work.seconds, 1.0)
    able = np.isfinite(work.seconds)
    best = np.full(len(worth), -np.inf)
    middle = (edges[1:] + edges[:-1]) / 2
    nodes = np.concatenate([[0.0], middle, edges[-1:]])
    at_nodes = np.concatenate([price[:, :1], price, price[:, -1:] / 2], axis=1)
    # After the last edge GPUs cost nothing, for as long as a job would wait for them.
    far = max(2.0 * float(worth.max()), 2.0 * float(edges[-1]))
    spans = [
        (nodes[n], nodes[n + 1], at_nodes[:, n], at_nodes[:, n + 1]) for n in range(len(nodes) - 1)
    ]
    spans.append((nodes[-1], far, np.zeros(len(price)), np.zeros(len(price))))
    whole = seconds * work.gpus
    for scale in _TRIES:
        scaled_worth = worth * scale
        value = scaled_worth.copy()
        for low, high, price_low, price_high in spans:
            start = np.clip(arrival_s, low, high)
            width = (high - start) / _POINTS
            slope = (price_high - price_low) / (high - low)
            before = None
            for point in range(_POINTS + 1):
                at = start + width * point
                now = price_low[work.pool] + slope[work.pool] * (at - low)[:, None]
                gain = (scaled_worth - at)[:, None] - whole * now
                rate = np.where(able, gain / seconds, 0.0).max(axis=1).clip(0.0)
                if before is not None:
                    value -= width * (before + rate) / 2
                before = rate
        best = np.maximum(best, value)
    best += np.where(able, seconds, np.inf).min(axis=1) / 2
    alone = arrival_s + np.where(able, seconds, np.inf).min(axis=1)
    mean = (at_nodes[:, 1:] + at_nodes[:, :-1]) / 2
    rent = float((mean * work.capacity[:, None] * np.diff(nodes)).sum())
    plain = float((alone - arrival_s).mean())
    return max(plain, (float(best.sum()) - rent) / len(best) - float(arrival_s.mean()))
