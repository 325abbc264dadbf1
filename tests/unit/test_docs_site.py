"""The documentation as a site: it builds without a warning and without a network."""

import html
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from missing import missing

from slurm_hadar import api, runtime, testing
from slurm_hadar.testing import strategies

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module, name in (
        ("mkdocs", "mkdocs"),
        ("material", "mkdocs-material"),
        ("mkdocstrings", "mkdocstrings"),
    ):
        if importlib.util.find_spec(module) is None:
            missing(f"{name} is not installed (the extra docs)")
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, **nowhere, "PYTHONDONTWRITEBYTECODE": "1", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_each_page_is_on_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        place = name.parent if name.name in ("index", "README") else name
        assert (site / place / "index.html").exists(), page


def test_each_local_link_of_the_site_leads_somewhere(site):
    """Into the repository's files too, which mkdocs itself does not look for."""
    for page in site.rglob("index.html"):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            where = urlsplit(link)
            if where.scheme or not where.path or where.path.startswith("/"):
                continue
            target = page.parent / unquote(where.path)
            assert target.exists() or (target / "index.html").exists(), f"{page}: {link}"


def test_a_page_of_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text())
        assert not [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)]


def test_the_reference_has_all_that_a_training_imports(site):
    page = (site / "python_reference" / "index.html").read_text()
    for name in runtime.__all__:
        home = f"slurm_hadar.runtime.{runtime._HOME[name]}.{name}"
        assert f'id="{home}"' in page, name
    # Neither a directive that nothing replaced nor a role of Sphinx.
    assert "<!-- api:" not in page and ":class:" not in page and "<p>:::" not in page


@pytest.mark.parametrize("made", [runtime.Training, runtime.Copies])
def test_the_reference_shows_each_keyword_and_its_default(site, made):
    page = (site / "python_reference" / "index.html").read_text()
    start = page.index(f'id="{made.__module__}.{made.__name__}"')
    text = html.unescape(re.sub(r"<[^>]+>", "", page[start:]))
    arguments = re.search(rf"^{made.__name__}\((.*?)\n\)", text, re.DOTALL | re.MULTILINE)
    assert arguments is not None
    given = [one.strip(" ,") for one in arguments[1].strip().splitlines()]
    names = list(inspect.signature(made).parameters)
    assert given[:5] == ["model", "optimizer", "*", "dataset_size", "batch"]
    assert sorted(one.partition("=")[0] for one in given if one != "*") == sorted(names)
    assert {'schedule="epoch"', "epochs=None", "seed=0", "log=say"} <= set(given)


@pytest.mark.parametrize("module", [api, testing, strategies])
def test_the_reference_has_all_that_a_policy_and_its_tests_import(site, module):
    page = (site / "policy_reference" / "index.html").read_text()
    for name in getattr(module, "__all__", ["views"]):
        assert f'id="{module.__name__}.{name}"' in page, name
    for record in (api.View, api.NodeArrays, api.JobArrays):
        for field in fields(record):
            assert f'id="slurm_hadar.api.{record.__name__}.{field.name}"' in page, field.name
    assert "<!-- api:" not in page and not re.search(r":(class|func|mod|data):", page)


def test_the_files_of_the_site_that_are_none_of_its_pages_stay_out(site):
    assert not (site / "site_hooks.py").exists() and not (site / "man").exists()
