"""What `mkdocs build` needs beyond mkdocs.yml: files outside docs/, and the Python reference.

The pages are written to be read in the repository, so a link may lead out of docs/. The site gets a
copy of each file that is linked, below ``repository/``, and the link leads there.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Class, Extension, Module, Parameters
from mkdocs.structure.files import File

_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")
_FENCE = re.compile(r"^(?P<mark>```+)\w*\n.*?^(?P=mark)$", re.MULTILINE | re.DOTALL)
_API = re.compile(r"<!-- api: (\S+) -->")
_ROLE = re.compile(
    r":(?:class|func|meth|data):<code>~?\.?(?:\w+\.)*(\w+)</code>|:mod:<code>([\w.]+)</code>"
)
_TAKES = re.compile(r"takes\((\w+)\)")
_COPIES = "repository"


class RecordKeywords(Extension):
    """Constructors that take a record are shown with the record's arguments."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Give each such constructor of a package its arguments; after griffe's dataclasses."""
        for found in _classes(pkg):
            own = found.members.get("__init__")
            for decorator in own.decorators if own is not None and own.is_function else []:
                if record := _TAKES.fullmatch(str(decorator.value)):
                    arguments = pkg.modules_collection[found.resolve(record[1])].parameters
                    own.parameters = Parameters(own.parameters[0], *list(arguments)[1:])


def _classes(module: Module) -> Iterator[Class]:
    yield from (one for one in module.classes.values() if not one.is_alias)
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from _classes(inner)


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ that a page links, and those that they link in turn."""
    root = _root(config)
    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        page = _in_repository(todo.pop())
        for link in _links((root / page).read_text()):
            target = _resolved(page, link)
            uri = _in_site(target)
            if files.get_file_from_path(uri) is None and (root / target).is_file():
                files.append(File.generated(config, uri, abs_src_path=str(root / target)))
                if uri.endswith(".md"):
                    todo.append(uri)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at the site's copies; replace each ``api`` comment by what mkdocstrings reads."""
    uri = page.file.src_uri
    source = _in_repository(uri)

    def moved(match: re.Match[str]) -> str:
        target = _in_site(_resolved(source, match[1]))
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    text = "".join((*parts, _LINK.sub(moved, markdown[end:])))
    return _API.sub(r"::: \1", text)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Docstrings name classes and functions by Sphinx's roles; the site shows the names."""
    return _ROLE.sub(lambda role: f"<code>{role[1] or role[2]}</code>", html)


def _root(config: Any) -> Path:
    return Path(config.docs_dir).parent


def _in_repository(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    inside = uri.removeprefix(f"{_COPIES}/")
    return inside if inside != uri else f"docs/{uri}"


def _in_site(path: str) -> str:
    """The reverse: the place in the site of a file of the repository."""
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"{_COPIES}/{path}"


def _resolved(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _links(markdown: str) -> list[str]:
    return _LINK.findall(_FENCE.sub("", markdown))
