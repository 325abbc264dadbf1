"""Idle fragments of nodes: when each node was idle. Read from CSV, kept as arrays."""

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
        raise UsageError(f"{path} cannot be written: {error}") from None
