"""Idle fragments of nodes: when each node was idle. Read from CSV or generated, kept as arrays.

Generated ones are seeded and have the statistics of a large supercomputer's week: a process fitted
by hand to one week of Summit (4,651 nodes with a fragment): jobs end and free runs of neighbouring
nodes; parts of such a batch are taken by small jobs after a while of their own, and now and then
one wide job takes idle nodes across the machine at once. The sizes and times below are the fit;
docs/idle.md compares generated and real figures.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.simulator.traces.csv_rows import rows

COLUMNS = ("node", "idle_start_s", "idle_end_s", "censored")
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


@dataclass(frozen=True)
class Fragments:
    """``names`` of the nodes in order; (F,) per fragment: ``node`` number, ``start_s``, ``end_s``,
    and ``censored`` where the record ends before the node's idle time did."""

    names: tuple[str, ...]
    node: IntArray
    start_s: FloatArray
    end_s: FloatArray
    censored: BoolArray

    def first(self, nodes: int) -> "Fragments":
        """Those of the first so many nodes by name."""
        keep = self.node < nodes
        return Fragments(
            self.names[:nodes],
            self.node[keep],
            self.start_s[keep],
            self.end_s[keep],
            self.censored[keep],
        )


def read_fragments(path: Path) -> Fragments:
    """Fragments of a CSV file, gzipped or not. Raises UsageError with the line of a bad row."""
    name = path.name
    names: list[str] = []
    start: list[float] = []
    end: list[float] = []
    censored: list[bool] = []
    lines: list[int] = []
    for row in rows(_text(path), name, COLUMNS):
        node = row.word("node")
        if not node:
            raise row.error("node is empty")
        begin, stop = row.number("idle_start_s"), row.number("idle_end_s")
        if stop <= begin:
            raise row.error(f"idle_end_s {stop:g} is not after idle_start_s {begin:g}")
        flag = row.text("censored")
        if flag not in ("0", "1"):
            raise row.error(f"censored is {flag!r}; it must be 0 or 1")
        names.append(node)
        start.append(begin)
        end.append(stop)
        censored.append(flag == "1")
        lines.append(row.line)
    if not names:
        raise UsageError(f"{name} has no fragment below its header")
    # No array of texts: each place in it is as long as the longest.
    known = sorted(set(names))
    number = {node: n for n, node in enumerate(known)}
    found = Fragments(
        tuple(known),
        np.array([number[node] for node in names], np.int64),
        np.array(start),
        np.array(end),
        np.array(censored),
    )
    _check_overlaps(found, lines, name)
    return found


def _check_overlaps(found: Fragments, lines: list[int], name: str) -> None:
    order = np.lexsort((found.start_s, found.node))
    same = found.node[order][1:] == found.node[order][:-1]
    early = found.start_s[order][1:] < found.end_s[order][:-1]
    wrong = np.flatnonzero(same & early)
    if len(wrong):
        this, other = int(order[wrong[0] + 1]), int(order[wrong[0]])
        raise UsageError(
            f"{name}, line {lines[this]}: {found.names[int(found.node[this])]} is idle already "
            f"in line {lines[other]}"
        )


def _text(path: Path) -> str:
    try:
        raw = reading.content(path, reading.HISTORY_BYTES)
        if raw[:2] == b"\x1f\x8b":
            raw = reading.unzipped(raw, reading.HISTORY_BYTES, path)
        return raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def write_fragments(fragments: Fragments, path: Path) -> None:
    """The CSV, gzipped where the name ends in .gz. Raises UsageError when it cannot be written."""
    order = np.lexsort((fragments.node, fragments.end_s, fragments.start_s))
    lines = [",".join(COLUMNS)]
    lines += [
        f"{fragments.names[node]},{start:.0f},{end:.0f},{int(cut)}"
        for node, start, end, cut in zip(
            fragments.node[order].tolist(),
            fragments.start_s[order].tolist(),
            fragments.end_s[order].tolist(),
            fragments.censored[order].tolist(),
            strict=True,
        )
    ]
    raw = ("\n".join(lines) + "\n").encode()
    try:
        # No time stamp: one seed gives one file.
        path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


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
