"""Damage to real input: cut, repeated, swapped, of another type, huge, nested, of every plane."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

Damage = Callable[[random.Random, bytes], bytes]

NUMBERS = (
    "0", "-1", "1", "1.5", "1e18", "1e308", "1e999", "-1e999", "1e-320", "NaN", "Infinity", "-inf",
    "18446744073709551616", "9" * 30, "9" * 400, "9" * 5000, "0x10", "1_000", "\u00b2", "\u0663",
    "4294967294", "9223372036854775807", "00000000000001", "1e", "--1", "1-", "-0",
)  # fmt: skip
PLANES = "".join(chr(plane << 16 | 0x20AC) for plane in range(17))
"""A character of each of Unicode's planes."""
TEXTS = (
    "", " ", "(null)", "N/A", "None", "NONE", "UNLIMITED", "Unknown", "ALL", "nul", "true", "null",
    "'", '"', "\\", "$(id)", "`id`", ";", "|", "||||", "&", "#", "%00", "%ff", "%", "=", "==", ",",
    ",,,,", ":", "/", "-", "--", "\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\u0085", "\u00a0",
    "\u2028", "\u202e", "\ufeff", "\ud800", "\udcff", PLANES, "\N{COMBINING ACUTE ACCENT}" * 50,
    "[", "]", "[]", "[[", "{", "}", "(", ")", "((((", "))))", "[1-", "[1-2]", "n[1-5],n[1-5]",
    "n[1-999999999]", "n[1-9][1-9][1-9][1-9][1-9][1-9][1-9]", "[hadar1 ", "[hadar1]", "[hadarplan",
    "[hadar1 model=", "[hadar1;gpus=1-1e18;batch=1:1e18]", "gpu:v100:2(S:0-1)", "gres/gpu=9e9",
    "2026-13-45T99:99:99", "0001-01-01", "9999-12-31T23:59:59", "1-2-3", "99999999-0:0:0:0",
    "../../etc/passwd", "/dev/zero", "A" * 70_000, "a," * 20_000, "gpu:1," * 20_000, "(" * 20_000,
    "[" * 20_000, '"' * 20_001, "n1,m2," * 10_000, " " * 50_000, "\n" * 20_000, "9" * 70_000,
    "Level=0 " * 5_000, "a=" * 20_000, "\\\n" * 20_000, "[hadar1 " * 5_000, "1," * 20_000,
)  # fmt: skip
LONGEST_BYTES = 1_000_000
"""Of an input; the limits themselves have tests of their own."""
_WORD = re.compile(rb"[A-Za-z0-9_.+-]+")
_DEEP = "\N{PILE OF POO}deep"


def text(draw: random.Random, data: bytes) -> bytes:
    """One to four changes of a text."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        data = draw.choice(_TEXT)(draw, data)
    return data


def binary(draw: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut out, moved, or all of them others."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 8, 64))):
        if changed:
            changed[draw.randrange(len(changed))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, 0x5B))
    kind = draw.randrange(12)
    if kind == 0:
        return bytes(changed[: draw.randrange(len(changed) + 1)])
    if kind == 1:
        return _slice_out(draw, bytes(changed))
    if kind == 2:
        return _repeated(draw, bytes(changed))
    if kind == 3:
        return b""
    return bytes(changed)


def tree(draw: random.Random, data: bytes) -> bytes:
    """JSON with values, keys and members that are others; now and then a text that is damaged."""
    if draw.randrange(5) == 0:
        return text(draw, data)
    root = [json.loads(data)]
    for _ in range(draw.choice((1, 1, 2, 5))):
        _change(draw, root)
    shown = json.dumps(root[0], ensure_ascii=draw.randrange(2) == 0)
    if _DEEP in shown or json.dumps(_DEEP) in shown:
        depth = draw.choice((10, 900, 5_000, 100_000))
        opened, closed = draw.choice((("[", "]"), ('{"a":', "}")))
        nest = opened * depth + "1" + closed * depth
        # No more of them than the longest input holds.
        most = 1 + LONGEST_BYTES // len(nest)
        shown = shown.replace(json.dumps(_DEEP), nest, most).replace(f'"{_DEEP}"', nest, most)
    return shown.encode(errors="surrogatepass")


def value(draw: random.Random, deep: int = 0) -> Any:
    """A value that nobody expects. ``deep``: in so many others."""
    kind = draw.randrange(12)
    if kind in (5, 7) and deep > 3:
        kind = 0
    if kind == 0:
        return None
    if kind == 1:
        return draw.choice((True, False))
    if kind == 2:
        return draw.choice((0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400)))
    if kind == 3:
        return draw.choice((float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 0.5, 1e-320))
    if kind == 4:
        return draw.choice(([], {}, [[]], [None], [1, "a"], {"a": 1}, [{}], {"": ""}))
    if kind == 5:
        return {
            "set": draw.choice((True, 1, "no")),
            "infinite": False,
            "number": value(draw, deep + 1),
        }
    if kind == 6:
        return _DEEP
    if kind == 7:
        # Two hundred of two hundred of two hundred fill the memory of the fuzzer itself.
        return [value(draw, deep + 1)] * draw.choice((1, 2, 200 if deep == 0 else 2))
    return draw.choice(NUMBERS) if kind == 8 else draw.choice(TEXTS)


def _change(draw: random.Random, root: list[Any]) -> None:
    """One member somewhere in the tree, all depths alike."""
    parent: Any = root
    key: Any = 0
    while isinstance(parent[key], dict | list) and parent[key] and draw.randrange(6):
        parent = parent[key]
        key = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
    kind = draw.randrange(10)
    if kind == 0 and parent is not root:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[draw.choice(TEXTS)] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list) and parent is not root:
        parent += [parent[key]] * draw.choice((1, 3, 500))
    elif kind == 3 and isinstance(parent, dict):
        other = draw.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == 4 and isinstance(parent[key], str):
        parent[key] = text(draw, parent[key].encode(errors="surrogatepass")).decode(
            errors="surrogateescape"
        )
    else:
        parent[key] = value(draw)


def _nasty(draw: random.Random) -> bytes:
    found = draw.choice(NUMBERS) if draw.randrange(3) == 0 else draw.choice(TEXTS)
    return found.encode(errors="surrogatepass")


def _word(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    match = _WORD.search(data, start) or _WORD.search(data)
    if match is None:
        return data + _nasty(draw)
    return data[: match.start()] + _nasty(draw) + data[match.end() :]


def _inserted(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + _nasty(draw) + data[at:]


def _slice_out(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.choice((1, 2, 16, 400)) :]


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _repeated(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    size = draw.choice((1, 5, 60, 600))
    times = min(draw.choice((2, 10, 3_000)), 200_000 // size)
    return data[:at] + data[at : at + size] * times + data[at:]


def _flipped(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return b"\xff"
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _lines(draw: random.Random, data: bytes) -> bytes:
    """Lines swapped, doubled, dropped, or of other ends."""
    rows = data.split(b"\n")
    one, two = draw.randrange(len(rows)), draw.randrange(len(rows))
    kind = draw.randrange(5)
    if kind == 0:
        rows[one], rows[two] = rows[two], rows[one]
    elif kind == 1:
        rows[one:one] = [rows[two]] * draw.choice((1, 2, 300))
    elif kind == 2:
        del rows[one]
    elif kind == 3:
        rows[one] += b" " + rows[two]
    return draw.choice((b"\n", b"\n", b"\r\n", b"\r", b"")).join(rows)


def _words_swapped(draw: random.Random, data: bytes) -> bytes:
    """Two values change places, so that each stands where another kind is expected."""
    found = list(_WORD.finditer(data[:20_000]))
    if len(found) < 2:
        return data
    one, two = sorted((draw.randrange(len(found)), draw.randrange(len(found))))
    first, second = found[one], found[two]
    if one == two:
        return data
    return (
        data[: first.start()] + second[0] + data[first.end() : second.start()] + first[0]
        + data[second.end() :]
    )  # fmt: skip


def _all_other(draw: random.Random, data: bytes) -> bytes:
    kind = draw.randrange(5)
    if kind == 0:
        return _nasty(draw)
    if kind == 1:
        return data.decode(errors="replace").encode("utf-16")
    if kind == 2:
        return b"\xef\xbb\xbf" + data
    if kind == 3:
        return bytes(draw.randrange(256) for _ in range(draw.choice((0, 1, 40))))
    return data.swapcase()


_TEXT: tuple[Damage, ...] = (
    _word, _word, _word, _inserted, _inserted, _slice_out, _cut, _repeated, _flipped, _lines,
    _words_swapped, _all_other,
)  # fmt: skip
