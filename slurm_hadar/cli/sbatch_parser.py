"""Reading a submit exactly as sbatch reads it: argv, ``SBATCH_*``, the script's own lines.

Learned from sbatch's source (opt.c): getopt_long in "+" mode, and its own reader for scripts.
"""

from __future__ import annotations

from slurm_hadar.cli.sbatch_options import (
    ANSWERED,
    ENVIRONMENT,
    FLAG,
    LONG,
    ONLY_ARGV,
    SAME,
    SHORT,
    VALUE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OURS = "--hadar-"
OUR_QUESTIONS = frozenset({"help", "plan", "version"})
"""Options of ours that query something: nothing is submitted."""
JSON = "--json"
"""Behind ``--hadar-plan`` this is ours too; no sbatch knows it."""
_SPACE = " \t\n\v\f\r"


class CommandLine:
    """One command line.

    ``options``: (long name, value) in order. ``ours``: (key, value or None) of the ``--hadar-*``
    options that declare; ``asked``: those that ask. ``words``: all arguments but ours. ``end``:
    where the options end in ``words``; ``script``: place of the script's path there, None where
    there is none. ``het``: a lone ``:`` was among them. ``unclear``: why the line cannot be read
    with certainty, else empty. ``refused``: sbatch will answer or refuse by itself.
    """

    __slots__ = ("asked", "end", "het", "options", "ours", "refused", "script", "unclear", "words")

    def __init__(self) -> None:
        self.options: list[tuple[str, str | None]] = []
        self.ours: list[tuple[str, str | None]] = []
        self.asked: set[str] = set()
        self.words: list[str] = []
        self.script: int | None = None
        self.end = 0
        self.het = False
        self.unclear = ""
        self.refused = False


def read_argv(argv: Sequence[str]) -> CommandLine:
    """The command line behind the program's name."""
    return _read(argv, in_script=False)


def read_directives(words: Sequence[str]) -> CommandLine:
    """The text of the script's ``#SBATCH`` lines. Options of ours may stand there where sbatch
    knows them by the SPANK plugin; those that ask something may not."""
    return _read(words, in_script=True)


def _read(argv: Sequence[str], in_script: bool) -> CommandLine:
    line = CommandLine()
    at = 0
    while at < len(argv) and not line.unclear and not line.refused:
        word = argv[at]
        if word == ":" and not in_script:
            taken = 1
        elif word == "--" or len(word) < 2 or word[0] != "-":
            break
        elif word.startswith(OURS) and not (in_script and word[len(OURS) :] in OUR_QUESTIONS):
            at += _take_ours(line, argv, at)
            continue
        elif word == JSON and "plan" in line.asked:
            line.asked.add("json")
            at += 1
            continue
        elif word.startswith("--"):
            taken = _take_long(line, argv, at, in_script)
        else:
            taken = _take_short(line, argv, at, in_script)
        line.words += argv[at : at + taken]
        at += taken
    line.end = len(line.words)
    first = at + 1 if argv[at : at + 1] == ["--"] else at
    if first < len(argv) and not line.unclear and not line.refused:
        line.script = len(line.words) + first - at
    line.words += argv[at:]
    # sbatch drops every lone colon before it reads the rest, even one that is a value.
    line.het = not in_script and ":" in line.words
    return line


def _take_ours(line: CommandLine, argv: Sequence[str], at: int) -> int:
    key, equals, value = argv[at][len(OURS) :].partition("=")
    if key in OUR_QUESTIONS and not equals:
        line.asked.add(key)
        return 1
    if equals:
        line.ours.append((key, value))
        return 1
    if key == "off" or at + 1 == len(argv):
        line.ours.append((key, None))
        return 1
    line.ours.append((key, argv[at + 1]))
    return 2


def _take_long(line: CommandLine, argv: Sequence[str], at: int, in_script: bool) -> int:
    typed, equals, value = argv[at][2:].partition("=")
    names = [typed] if typed in LONG else [name for name in LONG if name.startswith(typed)]
    if len({SAME.get(name, name) for name in names}) > 1:
        line.unclear = f"--{typed} may be short for --{names[0]} or --{names[1]}"
        return 1
    if not names:
        if not equals and at + 1 < len(argv) and argv[at + 1][:1] != "-":
            line.unclear = f"--{typed} is unknown to hbatch (write it as --{typed}=VALUE)"
        return 1
    takes = LONG[names[0]]
    if takes == FLAG and equals:
        line.refused = True
    if equals:
        return _add(line, names[0], value, 1, in_script)
    if takes != VALUE:
        return _add(line, names[0], None, 1, in_script)
    if at + 1 == len(argv):
        line.refused = True
        return 1
    return _add(line, names[0], argv[at + 1], 2, in_script)


def _take_short(line: CommandLine, argv: Sequence[str], at: int, in_script: bool) -> int:
    word = argv[at]
    for place, letter in enumerate(word[1:], 1):
        name = SHORT.get(letter)
        if name is None:
            line.refused = True
            return 1
        takes, rest = LONG[name], word[place + 1 :]
        if takes == FLAG:
            _add(line, name, None, 1, in_script)
        elif rest or takes != VALUE:
            return _add(line, name, rest or None, 1, in_script)
        elif at + 1 == len(argv):
            line.refused = True
            return 1
        else:
            return _add(line, name, argv[at + 1], 2, in_script)
    return 1


def _add(line: CommandLine, name: str, value: str | None, taken: int, in_script: bool) -> int:
    if in_script and name in ONLY_ARGV:
        return taken
    line.options.append((SAME.get(name, name), value))
    line.refused = line.refused or name in ANSWERED
    return taken


class Header:
    """The comment lines at a script's head.

    ``words`` of the ``#SBATCH`` lines; ``declares``: there is a ``#HADAR`` line; ``het``: it is a
    heterogeneous job; ``foreign``: lines of PBS or LSF, which sbatch translates; ``refused``:
    sbatch will refuse the script.
    """

    __slots__ = ("declares", "foreign", "het", "refused", "words")

    def __init__(self) -> None:
        self.words: list[str] = []
        self.declares = False
        self.foreign = False
        self.het = False
        self.refused = False


def read_header(body: bytes) -> Header:
    """Read a script's lines up to the first that is neither empty nor a comment, as sbatch does."""
    header = Header()
    if not body.startswith(b"#!") or b"\0" in body or b"\r\n" in body:
        header.refused = True
        return header
    # sbatch looks for them behind the first commands too.
    header.foreign = b"\n#PBS" in body or b"\n#BSUB" in body
    for line in _lines(body):
        if line.startswith(("#SBATCH", "#SLURM")):
            text = line[7 if line.startswith("#SBATCH") else 6 :].lstrip(_SPACE)
            if _is_separator(text):
                header.het = True
            elif not header.het:
                split_line(text, header)
        elif line.startswith("#HADAR") and (len(line) == 6 or line[6] in _SPACE):
            header.declares = True
        elif not line.lstrip(_SPACE).startswith("#") and line.strip(_SPACE):
            break
    return header


def _lines(body: bytes) -> Iterator[str]:
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield body[start:end].decode(errors="surrogateescape")
        start = end + 1


_SEPARATOR = len("packjob") + 1
"""Letters that tell whether a word separates parts of a heterogeneous job."""


def _is_separator(text: str) -> bool:
    return any(
        text[: len(name)].lower() == name and text[len(name) : len(name) + 1] in _SPACE
        for name in ("hetjob", "packjob")
    )


def split_line(text: str, header: Header) -> None:
    """Split one line into ``header.words``. Quotes may be anywhere in a word; ``#`` ends it all."""
    at = 0
    while True:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        if at < len(text) and text[at] == ":":
            header.refused = True
        if _is_separator(text[at : at + _SEPARATOR]):
            return
        letters: list[str] = []
        quote = ""
        while at < len(text) and (quote or text[at] not in _SPACE):
            letter = text[at]
            if letter == "\\":
                letters.append(text[at + 1 : at + 2])
                at += 1
            elif quote and letter == quote:
                quote = ""
            elif not quote and letter in "\"'":
                quote = letter
            elif not quote and letter == "#":
                break
            else:
                letters.append(letter)
            at += 1
        if quote:
            header.refused = True
        if not (word := "".join(letters)):
            return
        header.words.append(word)


def merged_options(
    script: CommandLine, environment: Mapping[str, str], argv: CommandLine
) -> dict[str, str | None]:
    """What holds in the end, by long name: the script's lines, over them ``SBATCH_*``, then argv.

    A flag's variable takes the flag back when it is neither empty, ``yes`` nor a number above 0.
    """
    held = dict(script.options)
    for variable, name in ENVIRONMENT.items():
        value = environment.get(variable)
        if value is None:
            continue
        if LONG[name] == FLAG and not _means_yes(value):
            held.pop(name, None)
        else:
            held[name] = value
    typed = dict(argv.options)
    for one, other in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        if one in typed:
            held.pop(other, None)
    held.update(typed)
    return held


def _means_yes(value: str) -> bool:
    if value == "" or value.lower() == "yes":
        return True
    try:
        return int(value) != 0
    except ValueError:
        return False
