"""What a template says of itself: what it is for, and the values that it takes.

Read from the template, so that it is written only once: a value that is only looked at
after ``is defined``, or has a ``default``, is optional.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from jinja2 import meta, nodes

from slurm_hadar import templates
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reading import shown
from slurm_hadar.templates import Value

_COMMENT = re.compile(r"\{#(.*?)#\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TemplateValue:
    """A value of a template.

    ``many``: it is a list of arguments. ``texts``: it is a list of texts, each of several
    arguments.
    """

    name: str
    needed: bool
    many: bool
    texts: bool


@dataclass(frozen=True, slots=True)
class Described:
    """A template: its name, one line on what it is for, its values (the needed ones first)."""

    name: str
    about: str
    values: tuple[TemplateValue, ...]


def describe(name: str, source: Path | None = None) -> Described:
    """What template ``name`` says of itself. Raises UsageError when there is none."""
    text = templates.text(name, source)
    comment = _COMMENT.search(text)
    about = " ".join(comment[1].split()) if comment else ""
    about = re.split(r"(?<=[.:]) |: | \(see ", about)[0].rstrip(".:")
    needed, optional = set[str](), set[str]()
    many, texts = set[str](), set[str]()
    for tree in _trees(name, source or templates.folder()):
        free = meta.find_undeclared_variables(tree)
        soft = {found for found in _soft(tree) if found in free}
        needed |= free - soft
        optional |= soft
        many |= _lists(tree)
        texts |= _texts(tree)
    order = [*sorted(needed), *sorted(optional - needed)]
    rows = (TemplateValue(row, row in needed, row in many, row in texts) for row in order)
    return Described(name, about, tuple(rows))


def from_arguments(described: Described, words: Sequence[str]) -> dict[str, Value]:
    """Values from ``key=value`` arguments.

    A list is one text of arguments as a shell would split them, one of texts is parted by
    semicolons; either goes on when its key is given again.

    Raises UsageError for an unknown key, a word without ``=``, one given twice, and for needed
    values that are missing.
    """
    length = sum(map(len, words))
    if length > 2 * templates.LONGEST_VALUE:
        raise UsageError(
            f"the values have {length} characters; at most {templates.LONGEST_VALUE} are allowed"
        )
    known = {value.name: value for value in described.values}
    found: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{shown(word)!r}: values are given as key=value")
        if key not in known:
            near = get_close_matches(key[:80], known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it takes {', '.join(known)}"
            raise UsageError(f"template {described.name} takes no value {shown(key)!r}{hint}")
        if known[key].many:
            before = found.get(key)
            parts = _parts(text) if known[key].texts else _split(key, text)
            found[key] = [*(before if isinstance(before, list) else []), *parts]
        elif key in found:
            raise UsageError(f"{key} is given twice")
        else:
            found[key] = text
    missing = [row.name for row in described.values if row.needed and row.name not in found]
    if missing:
        raise UsageError(f"template {described.name} also needs {', '.join(missing)}")
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(";")]


def _split(key: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{key}={shown(text)!r} cannot be split into arguments: {error}") from None


def _trees(name: str, where: Path) -> Iterator[nodes.Template]:
    environment = templates.environment(where)
    tree = environment.parse((where / f"{name}.sh.j2").read_text())
    yield tree
    for included in meta.find_referenced_templates(tree):
        if included is not None:
            yield environment.parse((where / included).read_text())


def _soft(tree: nodes.Template) -> set[str]:
    """Names that the template can do without."""
    asked = [test.node for test in tree.find_all(nodes.Test) if test.name == "defined"]
    asked += [one.node for one in tree.find_all(nodes.Filter) if one.name == "default" and one.node]
    return {node.name for node in asked if isinstance(node, nodes.Name)}


def _lists(tree: nodes.Template) -> set[str]:
    """Names that are gone through, or made into arguments."""
    found: list[nodes.Node] = [loop.iter for loop in tree.find_all(nodes.For)]
    found += [one.node for one in tree.find_all(nodes.Filter) if one.name == "argv" and one.node]
    bare = (node.node if isinstance(node, nodes.Filter) else node for node in found)
    return {node.name for node in bare if isinstance(node, nodes.Name)}


def _texts(tree: nodes.Template) -> set[str]:
    """Names of lists whose members are split at spaces."""
    found = set()
    for loop in tree.find_all(nodes.For):
        split = {
            one.node.name
            for one in loop.find_all(nodes.Filter)
            if one.name == "words" and isinstance(one.node, nodes.Name)
        }
        if isinstance(loop.iter, nodes.Name) and isinstance(loop.target, nodes.Name):
            found |= {loop.iter.name} if loop.target.name in split else set()
    return found
