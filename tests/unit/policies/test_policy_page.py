"""The page for authors of policies: its package is built, installed, tested and simulated."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from policy_page import NAME, PAGE, install, sources, write

from slurm_hadar import api, simulator, testing
from slurm_hadar.policies.record import Trait

HADAR = (sys.executable, "-m", "slurm_hadar.cli.main")
TRACE = Path(simulator.__file__).parent / "data" / "trace_120.csv"
JOBS = 20


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("page") / "source")


@pytest.fixture(scope="module")
def target(source, tmp_path_factory):
    return install(source, tmp_path_factory.mktemp("target") / "empty")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The first jobs of a shipped trace."""
    short = tmp_path_factory.mktemp("trace") / "short.csv"
    short.write_text("".join(TRACE.read_text().splitlines(keepends=True)[: JOBS + 1]))
    return short


def ran(*words, cwd, path=None):
    env = {**os.environ, "HADAR_CONFIG": str(cwd / "none.toml"), "PYTHONPATH": str(path or "")}
    return subprocess.run(
        [*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120
    )


def hadar(*words, cwd, path=None):
    done = ran(*HADAR, *words, cwd=cwd, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_listed_and_simulated_with_its_option(target, trace, tmp_path):
    listed = json.loads(hadar("policies", NAME, "--json", cwd=tmp_path, path=target))
    (row,) = listed["result"]
    assert row["source"] == "big-first 1.0" and row["uses"] == ["order"]
    assert [one["name"] for one in row["options"]] == ["patience_s"]
    words = ("simulate", "jobs", trace, "--policy", NAME, "--policy", "fifo", "--json")
    cluster = ("--cluster", "v100=20,p100=20,k80=20")
    done = json.loads(hadar(*words, *cluster, cwd=tmp_path, path=target))["result"]
    assert [one["policy"] for one in done] == [NAME, "fifo"]
    assert [one["finished"] for one in done] == [JOBS, JOBS]
    bad = ran(*HADAR, *words, "--option", "patience_s=long", cwd=tmp_path, path=target)
    assert bad.returncode == 2
    assert bad.stderr == "hadar: policy option patience_s: 'long' is not a number\n"


def test_where_it_is_not_installed_the_name_is_unknown(tmp_path):
    done = ran(*HADAR, "simulate", "jobs", "trace_120", "--policy", NAME, cwd=tmp_path)
    assert done.returncode == 2 and f"there is no policy '{NAME}'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_file_alone_and_the_module_are_simulated_alike(source, target, trace, tmp_path):
    def result(policy, **where):
        words = ("simulate", "jobs", trace, "--json", "--policy", policy)
        (found,) = json.loads(hadar(*words, **where))["result"]
        return {key: found[key] for key in found if not key.startswith(("decide_s", "wall_s"))}

    of_file = result(f"{source}/{NAME}.py:policy", cwd=tmp_path)
    assert of_file["policy"] == NAME
    assert of_file == result(f"{NAME}:policy", cwd=tmp_path, path=target)
    assert of_file == result(f"{NAME}:decide", cwd=tmp_path, path=target)


def test_its_own_tests_pass(source):
    done = ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=source)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_the_page_names_what_there_is():
    text = PAGE.read_text()
    for body in sources()[:2]:
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and node.module == "slurm_hadar.api":
                assert {name.name for name in node.names} <= set(api.__all__)
    rows = re.findall(r"^\| `(\w+)` \| it ", text, re.M)
    assert sorted(rows) == sorted(Trait)


def test_every_public_name_is_there():
    for module in (api, testing):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)
        assert "rovisional" in module.__doc__
