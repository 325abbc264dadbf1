"""Counts of the package's structure: ``python -m benchmarks.structure [FOLDER]``, of a checkout."""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LONG_LINES, MANY_PARAMETERS = 60, 5


def main() -> None:
    """Print one line for each count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1])
    package = parser.parse_args().folder / "slurm_hadar"
    texts = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    functions = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    modules = {_name(path, package): path for path in texts}
    importers: Counter[str] = Counter()
    for path, tree in trees.items():
        importers.update({one for one in _imports(tree) if one in modules} - {_name(path, package)})
    rows = {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts.values()),
        f"functions over {LONG_LINES} lines": sum(_lines(one) > LONG_LINES for one in functions),
        f"functions over {MANY_PARAMETERS} parameters": sum(
            _parameters(one) > MANY_PARAMETERS for one in functions
        ),
        "functions with 14 and more parameters": sum(_parameters(one) >= 14 for one in functions),
        "modules with one importer": sum(number == 1 for number in importers.values()),
        "public class names used more than once": sum(number > 1 for number in classes.values()),
    }
    for what, number in rows.items():
        print(f"{number:7,} {what}")


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without ``self`` and ``cls``."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in every)


if __name__ == "__main__":
    main()
