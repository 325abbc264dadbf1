"""Our segment inside a text that belongs to others: Comment and AdminComment.

A segment reads ``[name key=value ...]``, or ``[name;key=value;...]`` where blanks are in the way:
scontrol takes no blank on its standard input. What stands before and after it belongs to others
and is kept to the letter. Values are percent-encoded, so any text is safe in them.
"""

import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+*|&()!-]")


def encode(name: str, values: Mapping[str, str], separator: str = " ") -> str:
    """The segment's text. Keys are ours and are taken as they are."""
    words = [f"{key}={_quote(text)}" for key, text in values.items()]
    return "[" + separator.join([name, *words]) + "]"


def decode(name: str, text: str) -> dict[str, str] | None:
    """The values of the first segment of this name; None where there is none."""
    match = _pattern(name).search(text)
    if match is None:
        return None
    values = {}
    for word in re.split(r"[ ;]", match[1])[1:]:
        key, _, value = word.partition("=")
        values[key] = _unquote(value)
    return values


def merge(name: str, text: str, values: Mapping[str, str], separator: str = " ") -> str:
    """``text`` with the segment replaced, or added behind the others' text."""
    segment = encode(name, values, separator)
    if not text:
        return segment
    pattern = _pattern(name)
    if pattern.search(text):
        return pattern.sub(lambda _: segment, text, count=1)
    return f"{text} {segment}"


def removed(name: str, text: str) -> str:
    """``text`` without the segment; the others' text as it was before it was merged."""
    return re.sub(rf" ?{_pattern(name).pattern}", "", text)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"\[{re.escape(name)}((?:[ ;][^\[\]]*)?)\]")


def _quote(text: str) -> str:
    return "".join(
        c if _PLAIN.match(c) else "".join(f"%{byte:02x}" for byte in c.encode()) for c in text
    )


def _unquote(text: str) -> str:
    given = text.encode(errors="surrogatepass")
    raw = re.sub(rb"%([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), given)
    return raw.decode(errors="replace")
