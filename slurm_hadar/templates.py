"""Batch scripts from the templates in ``job_templates``.

The templates are the site's; users give values only. Values are text in a shell script, so the
templates quote them for the shell, and in a ``#SBATCH`` or ``#HADAR`` line, where a shell's quotes
mean nothing, only plain characters are let in.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
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
