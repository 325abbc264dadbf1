"""Man pages in the language of man(7): a few of its macros, and text escaped for them."""

import re
from collections.abc import Iterable


def text(plain: str) -> str:
    """Text that means itself: no request at a line's start, hyphens that can be copied."""
    safe = plain.replace("\\", "\\e").replace("-", "\\-")
    # A word as long as a line needs places where it may be broken.
    safe = re.sub(r"\S{50,}", lambda word: re.sub(r"([|)/,])", r"\1\\:", word[0]), safe)
    return re.sub(r"^(?=[.'])", r"\\&", safe, flags=re.M)


def title(name: str, section: int, version: str) -> str:
    """The head of a page. Nothing is hyphenated, so that pages can be searched for."""
    head = f'.TH {text(name.upper())} {section} "" "slurm\\-hadar {text(version)}" slurm\\-hadar'
    return f"{head}\n.nh\n.ad l"


def heading(words: str) -> str:
    """A section."""
    return f".SH {text(words)}"


def subheading(words: str) -> str:
    """A section of a section."""
    return f".SS {text(words)}"


def paragraphs(plain: str) -> str:
    """Paragraphs, parted by empty lines."""
    return "\n".join(f".PP\n{text(_flat(part))}" for part in re.split(r"\n\s*\n", plain) if part)


def example(lines: Iterable[str]) -> str:
    """Lines that are typed as they stand."""
    return "\n".join([".PP", ".RS 4", ".nf", *(text(line) for line in lines), ".fi", ".RE"])


def term(what: str, meaning: str) -> str:
    """A term in bold, and below it what it means."""
    return f".TP\n\\fB{text(what)}\\fR\n{text(_flat(meaning))}"


def page(parts: Iterable[str]) -> str:
    """The whole page."""
    return "\n".join(parts) + "\n"


def _flat(plain: str) -> str:
    return " ".join(plain.split())
