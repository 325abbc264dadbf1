"""Batch scripts from the templates in ``job_templates``, and what a template says of itself: what
it is for, and the values that it takes.

The templates are the site's; users give values only. Values are text in a shell script, so the
templates quote them for the shell, and in a ``#SBATCH`` or ``#HADAR`` line, where a shell's quotes
mean nothing, only plain characters are let in. Which values a template takes is read from it, so
that it is written only once: a value that is only looked at after ``is defined``, or has a
``default``, is optional.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reading import shown

Value = str | int | float | bool | None | list[str]

LONGEST_VALUE = 10_000
"""Characters that all the values together may have."""
LONGEST_SCRIPT = 100_000
"""Characters that a script may have."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@%+=*|&()\[\]!-]*")
_COMMENT = re.compile(r"\{#(.*?)#\}", re.DOTALL)


def folder() -> Path:
    """Where the templates lie: in the checkout, or in the installed package."""
    package = Path(__file__).resolve().parent
    for candidate in (package.parent / "job_templates", package / "_share" / "job_templates"):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no job templates beside {package}; the installation is incomplete")


def names(source: Path | None = None) -> list[str]:
    """The templates that there are, such as ``pytorch_single``."""
    return sorted(path.name.split(".")[0] for path in (source or folder()).glob("*.sh.j2"))


def render(name: str, values: Mapping[str, Value], source: Path | None = None) -> str:
    """The batch script that template ``name`` makes of ``values``.

    Raises UsageError for an unknown template, a value that is missing, not used by it, too long,
    or with a control character, and for one that may not stand in a ``#SBATCH`` line.
    """
    where = source or folder()
    _known(name, where)
    _check(values)
    try:
        script = environment(where).get_template(f"{name}.sh.j2").render(dict(values))
    except TemplateError as error:
        raise UsageError(f"template {name}: {error}") from None
    if len(script) > LONGEST_SCRIPT:
        raise UsageError(f"template {name}: the script would have {len(script)} characters")
    return script


def text(name: str, source: Path | None = None) -> str:
    """The template itself. Raises UsageError when there is none of this name."""
    where = source or folder()
    _known(name, where)
    return (where / f"{name}.sh.j2").read_text()


def environment(where: Path) -> ImmutableSandboxedEnvironment:
    """What templates of this folder may do."""
    made = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(where),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Whatever a template forgets to quote is quoted.
        finalize=_quoted,
    )
    made.filters.update(word=_word, words=_words, argv=_argv)
    return made


def _known(name: str, where: Path) -> None:
    known = names(where)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a template; there are {', '.join(known)}")
    if name not in known:
        raise UsageError(f"there is no template {name}; there are {', '.join(known)}")


class _Ready(str):
    """Text that is safe where the template puts it."""


def _check(values: Mapping[str, Value]) -> None:
    length = 0
    for key, value in values.items():
        if not _NAME.fullmatch(key):
            raise UsageError(f"{shown(key)!r} is no name of a value")
        for part in value if isinstance(value, list) else [value]:
            if part is not None and not isinstance(part, str | int | float):
                raise UsageError(f"{key}: text, a number, yes or no, or a list of texts is needed")
            text = str(part)
            length += len(text)
            if any(not c.isprintable() for c in text):
                raise UsageError(f"{key}: line breaks and control characters are not allowed")
    if length > LONGEST_VALUE:
        raise UsageError(
            f"the values have {length} characters; at most {LONGEST_VALUE} are allowed"
        )


def _quoted(value: object) -> str:
    return value if isinstance(value, _Ready) else shlex.quote(str(value))


def _word(value: object) -> str:
    """A value in a ``#SBATCH`` or ``#HADAR`` line: no spaces, quotes or anything of a shell."""
    text = str(value)
    if not _PLAIN.fullmatch(text) or not text:
        raise UsageError(
            f"{shown(text)!r} may not stand in a #SBATCH line; letters, digits and _.,:/@%+="
        )
    return _Ready(text)


def _words(value: object) -> list[str]:
    """The arguments in one text, as a shell would split it."""
    try:
        return shlex.split(str(value))
    except ValueError as error:
        words = shown(str(value))
        raise UsageError(f"{words!r} cannot be split into arguments: {error}") from None


def _argv(value: object, task: int | None = None) -> str:
    """A list of arguments, each quoted for the shell; ``{task}`` becomes the number ``task``."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise UsageError(f"{shown(str(value))!r} is one text; a list of arguments is needed")
    words = [str(part) for part in value]
    if task is not None:
        words = [word.replace("{task}", str(task)) for word in words]
    return _Ready(shlex.join(words))


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
    comment = _COMMENT.search(text(name, source))
    about = " ".join(comment[1].split()) if comment else ""
    about = re.split(r"(?<=[.:]) |: | \(see ", about)[0].rstrip(".:")
    needed, optional = set[str](), set[str]()
    many, texts = set[str](), set[str]()
    for tree in _trees(name, source or folder()):
        free = meta.find_undeclared_variables(tree)
        soft = {found for found in _soft(tree) if found in free}
        needed |= free - soft
        optional |= soft
        many |= _lists(tree)
        texts |= _texts(tree)
    order = [*sorted(needed), *sorted(optional - needed)]
    rows = (TemplateValue(row, row in needed, row in many, row in texts) for row in order)
    return Described(name, about, tuple(rows))


def from_arguments(described: Described, arguments: Sequence[str]) -> dict[str, Value]:
    """Values from ``key=value`` arguments.

    A list is one text of arguments as a shell would split them, one of texts is parted by
    semicolons; either goes on when its key is given again.

    Raises UsageError for an unknown key, an argument without ``=``, one given twice, and for needed
    values that are missing.
    """
    length = sum(map(len, arguments))
    if length > 2 * LONGEST_VALUE:
        raise UsageError(
            f"the values have {length} characters; at most {LONGEST_VALUE} are allowed"
        )
    known = {value.name: value for value in described.values}
    found: dict[str, Value] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise UsageError(f"{shown(argument)!r}: values are given as key=value")
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
    missing = [row.name for row in described.values if row.needed and found.get(row.name, []) == []]
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
    reader = environment(where)
    tree = reader.parse((where / f"{name}.sh.j2").read_text())
    yield tree
    for included in meta.find_referenced_templates(tree):
        if included is not None:
            yield reader.parse((where / included).read_text())


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
