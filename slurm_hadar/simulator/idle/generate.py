"""Seeded idle fragments with the statistics of a large supercomputer's week.

A process fitted by hand to one week of Summit (4,651 nodes with a fragment): jobs end and free
runs of neighbouring nodes; parts of such a batch are taken by small jobs after a while of their
own, and now and then one wide job takes idle nodes across the machine at once. The sizes and
times below are the fit; docs/idle.md compares generated and real figures.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.simulator.idle.fragments import Fragments

_STEP_S = 10.0
_GAP_MEDIAN_S, _GAP_SIGMA = 39.0, 1.20
"""Between two times at which nodes become idle; lognormal."""
_TAKE_GAP_MEDIAN_S, _TAKE_GAP_SIGMA = 52.0, 0.9
"""Between two times at which jobs start on idle nodes; lognormal."""
_SIZES = ((1, 1), (2, 4), (5, 16), (17, 64), (65, 256), (257, 2600))
_SIZE_SHARE = (0.340, 0.200, 0.215, 0.173, 0.059, 0.013)
"""Nodes that become idle at once; uniform in the logarithm within a class."""
_SMALL_SIZE = 64
_LIFE = ((200.0, 1.95), (330.0, 1.90))
"""Median and sigma (lognormal) of the time until nodes of small and of large batches are wanted;
they are taken at the next time at which jobs start."""
_LEAST_LIFE_S = 65.0
_MOST_LIFE_S = 5.0 * 3600
_PARTS_EXPONENT = 0.25
"""A batch of n nodes is taken back in about n to this power parts."""
_WIDE_GAP_S = 5400.0
"""Mean time between wide jobs."""
_WIDE_SHARE = (0.15, 1.0)
"""Part of the idle nodes that a wide job takes."""
_REFERENCE_NODES = 4651


def generate(nodes: int = _REFERENCE_NODES, days: float = 7.0, seed: int = 0) -> Fragments:
    """Fragments of so many nodes over so many days; one seed, one result. Fewer nodes see fewer,
    not smaller, batches: they are a part of the reference machine."""
    random = np.random.default_rng(seed)
    machine = max(nodes, _REFERENCE_NODES)
    end = days * 86400.0
    scale = machine / _REFERENCE_NODES
    frees = _times(random, end, _GAP_MEDIAN_S / scale, _GAP_SIGMA)
    takes = _times(random, end * 1.1 + _MOST_LIFE_S, _TAKE_GAP_MEDIAN_S / scale, _TAKE_GAP_SIGMA)
    wides = random.exponential(_WIDE_GAP_S, int(end / _WIDE_GAP_S * 2) + 20).cumsum()
    wides = takes[np.searchsorted(takes, wides[wides < end])]
    events = sorted([(at, True) for at in wides.tolist()] + [(at, False) for at in frees.tolist()])
    opened, until = np.full(machine, -np.inf), np.full(machine, -np.inf)
    parts: list[tuple[IntArray, FloatArray, FloatArray]] = []
    for at, wide in events:
        if wide:
            idle = np.flatnonzero((until > at) & (opened + _LEAST_LIFE_S < at))
            if len(idle):
                count = int(random.uniform(*_WIDE_SHARE) * len(idle))
                first = int(random.integers(len(idle)))
                until[idle[(first + np.arange(count)) % len(idle)]] = at
            continue
        batch = _free_batch(random, at, until)
        if len(batch):
            # A node's last fragment is settled only when its next one begins.
            parts.append((batch, opened[batch], until[batch]))
            wanted = at + _lives(random, len(batch))
            opened[batch] = at
            until[batch] = takes[np.minimum(np.searchsorted(takes, wanted), len(takes) - 1)]
    parts.append((np.arange(machine), opened, until))
    return _fragments(parts, nodes, end)


def _times(random: np.random.Generator, end: float, median: float, sigma: float) -> FloatArray:
    """Times up to ``end``, a multiple of the step, with lognormal gaps."""
    mean = median * np.exp(sigma**2 / 2)
    gaps = random.lognormal(np.log(median), sigma, int(end / mean * 1.5) + 100)
    times = np.unique(np.round(np.cumsum(gaps) / _STEP_S) * _STEP_S)
    within: FloatArray = times[times < end]
    return within


def _free_batch(random: np.random.Generator, at: float, until: FloatArray) -> IntArray:
    """Busy nodes beside each other, from a random place on."""
    low, high = _SIZES[int(random.choice(len(_SIZES), p=_SIZE_SHARE))]
    size = int(np.exp(random.uniform(np.log(low), np.log(high + 1))))
    busy = np.flatnonzero(until < at)
    if not len(busy):
        return busy
    first = int(random.integers(len(busy)))
    return busy[(first + np.arange(min(size, len(busy)))) % len(busy)]


def _lives(random: np.random.Generator, size: int) -> FloatArray:
    """Seconds until a batch's nodes are wanted: neighbours go together, in a few parts."""
    parts = min(size, 1 + int(random.poisson(max(0.0, size**_PARTS_EXPONENT - 0.8))))
    median, sigma = _LIFE[size > _SMALL_SIZE]
    life = random.lognormal(np.log(median), sigma, parts).clip(_LEAST_LIFE_S, _MOST_LIFE_S)
    cuts = np.sort(random.integers(0, size, parts - 1))
    lives: FloatArray = life[np.searchsorted(cuts, np.arange(size), side="right")]
    return lives


def _fragments(
    parts: list[tuple[IntArray, FloatArray, FloatArray]], nodes: int, end: float
) -> Fragments:
    width = len(str(max(nodes, 1) - 1))
    names = tuple(f"n{number:0{width}d}" for number in range(nodes))
    node, start, stop = (np.concatenate([part[i] for part in parts]) for i in range(3))
    keep = (node < nodes) & np.isfinite(start)
    node, start, stop = node[keep].astype(np.int64), start[keep], stop[keep]
    order = np.lexsort((node, start))
    cut = stop > end
    return Fragments(names, node[order], start[order], np.minimum(stop, end)[order], cut[order])


def statistics(fragments: Fragments) -> dict[str, float]:
    """The figures that the generator is fitted to, of any fragments. Times in s."""
    length = fragments.end_s - fragments.start_s
    if not len(length):
        return {}
    starts, size = np.unique(fragments.start_s, return_counts=True)
    ends, ended = np.unique(fragments.end_s, return_counts=True)
    pairs = len(np.unique(np.stack([fragments.start_s, fragments.end_s]), axis=1).T)
    quartile = np.percentile(length, [10, 25, 50, 75, 90])
    gaps = np.diff(np.unique(np.concatenate([starts, ends])))
    return {
        "fragments": float(len(length)),
        "idle_nodes_mean": float(length.sum() / fragments.end_s.max()),
        "fragment_mean_s": float(length.mean()),
        "fragment_p10_s": float(quartile[0]),
        "fragment_p25_s": float(quartile[1]),
        "fragment_median_s": float(quartile[2]),
        "fragment_p75_s": float(quartile[3]),
        "fragment_p90_s": float(quartile[4]),
        "starts": float(len(starts)),
        "ends": float(len(ends)),
        "event_gap_median_s": float(np.median(gaps)) if len(gaps) else 0.0,
        "batch_mean_nodes": float(size.mean()),
        "batch_median_nodes": float(np.median(size)),
        "taken_at_once_mean_nodes": float(ended.mean()),
        "ends_per_batch": float(pairs / len(starts)),
    }
