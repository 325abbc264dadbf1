"""Plain technical English: words that pages, help texts, messages and docstrings avoid."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click import Context

from slurm_hadar.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = sorted((ROOT / "slurm_hadar").rglob("*.py"))
EXAMPLES = [
    *sorted((ROOT / "site_configs").glob("*.toml")),
    *sorted((ROOT / "job_templates").glob("*.j2")),
]

AVOID = {
    r"nobody|somebody|anybody|everybody|whoever|whomever": "name the user, the job or the process",
    r"told|telling": "say, show, print, report, given",
    r"words": "text, message, arguments, options",
    r"he|him|his|himself|she|her|hers": "the user, the job, they, its",
    r"rooms?|houses?|doors?": "package, architecture, interface; space or free capacity",
    r"story|stories|troubles": "job report, problem",
    r"sent on|let go|left to Slurm": "released, not steered",
    r"leases?": "there are none",
    r"lay|lays|laid|laying": "place, write, actuation",
    r"hopes?": "expected effect",
    r"paced": "emulated",
    r"for want of|for ever": "without, forever",
    r"alive and acts": "active",
}
"""Pattern of whole words, in any case -> what to write."""
WORD = re.compile(r"\b(" + "|".join(AVOID) + r")\b", re.IGNORECASE)

ALLOWED = {
    # In pages: a field of a configuration that older releases had, and its message.
    ("docs/admin.md", "lease"),
    ("docs/reliability.md", "lease"),
    ("docs/reliability.md", "leases"),
    # Rows are the names of tests of one file (tests/live/test_slurm_contract.py).
    ("docs/releases.md", "told"),
    ("docs/releases.md", "nobody"),
}
"""(file, word in small letters) that may stay."""

FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"``.*?``|`[^`]*`|<!--.*?-->|\]\([^)]*\)|\[lease\]|result\\\.lease", re.S)
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER) ")


def found_in(text: str, file: Path) -> list[str]:
    """The words of ``AVOID`` in a text without its code, with what stands around each."""
    name = file.relative_to(ROOT).as_posix()
    plain = CODE.sub(" ", text)
    return [
        " ".join(plain[max(0, match.start() - 50) : match.end() + 50].split())
        for match in WORD.finditer(plain)
        if (name, match[0].lower()) not in ALLOWED
    ]


def _public(tree: ast.Module) -> Iterator[ast.AST]:
    """The module, its public classes and functions, and the public methods of these classes."""
    yield tree
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                        yield inner


def _notes(body: list[ast.stmt]) -> Iterator[ast.Constant]:
    """Docstrings: strings that stand by themselves."""
    for node in body:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each public docstring, and of each message: a string of several words."""
    alone, nodes = set(), list(ast.walk(tree))
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            alone |= {id(note) for note in _notes(body)}
    for node in _public(tree):
        for note in _notes(getattr(node, "body", [])):
            yield note.lineno, str(note.value)
    parts: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            said = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(str(part) for part in said)
    alone |= parts
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in alone
            and " " in node.value.strip()
            and not SQL.match(node.value)
        ):
            yield node.lineno, node.value


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def _helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    context = Context(command, info_name=path)
    yield path, command.get_help(context)
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _helps(below, f"{path} {name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_avoids_these_words(page):
    assert found_in(FENCE.sub("", page.read_text()), page) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_example_avoids_these_words_in_its_comments(file):
    comments = re.findall(r"#+\}?(.*)", file.read_text())
    assert found_in("\n".join(comments), file) == []


def test_messages_and_public_docstrings_avoid_these_words():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {near}"
        for path in MODULES
        if WORD.search(path.read_text())
        for line, text in texts(ast.parse(path.read_text()))
        for near in found_in(text, path)
    ]
    assert not wrong, "\n".join(wrong)


def test_comments_and_private_docstrings_avoid_these_words():
    wrong = []
    for path in MODULES:
        if WORD.search(source := path.read_text()):
            notes = [
                str(note.value)
                for node in ast.walk(ast.parse(source))
                if isinstance(body := getattr(node, "body", None), list)
                for note in _notes(body)
            ]
            for text in [*notes, *_comments(source)]:
                wrong += [f"{path.relative_to(ROOT)}: {near}" for near in found_in(text, path)]
    assert not wrong, "\n".join(wrong)


def test_help_texts_avoid_these_words():
    wrong = {
        path: WORD.findall(CODE.sub(" ", text))
        for path, text in _helps(typer.main.get_command(app), "hadar")
        if WORD.search(CODE.sub(" ", text))
    }
    assert wrong == {}


def test_the_list_finds_what_it_is_for():
    file = ROOT / "README.md"
    assert len(found_in("Nobody told him, and whoever pays for ever.", file)) == 5
    assert found_in("`nobody` in [the words](words.md), hereafter, theme", file) == [
        "in [the words , hereafter, theme"
    ]
    tree = ast.parse('"""A."""\ndef f(x):\n    """B."""\n    raise E(f"{x} is told")\n')
    assert sorted(text for _, text in texts(tree)) == ["A.", "B.", "{} is told"]


def test_no_exception_of_the_list_is_idle():
    for name, word in ALLOWED:
        assert re.search(rf"\b{word}\b", (ROOT / name).read_text(), re.IGNORECASE), (name, word)
