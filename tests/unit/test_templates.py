import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import templates
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.templates import names, render

SINGLE = {"job_name": "a", "gres": "gpu:1", "command": ["true"]}


def test_the_shipped_templates_are_shell_that_parses():
    assert names() == ["forked_copies", "plain", "pytorch_ddp", "pytorch_single"]
    more = {"gres": "gpu:2", "nodes": 1, "gpus_per_node": 2, "setup": "/a b/c", "time": "1:00:00"}
    for name in names():
        text = render(name, {**SINGLE, **more, "hadar": ["model=x", "types=any"]})
        assert text.startswith("#!/bin/bash\n")
        assert "#HADAR model=x types=any\n" in text
        checked = subprocess.run(["bash", "-n"], input=text, text=True, timeout=10, check=False)
        assert checked.returncode == 0
        # Slurm stops reading its lines at the first command.
        body = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert not any("#SBATCH" in line for line in body)
        assert text.index(body[0]) > text.rindex("#SBATCH")


@given(
    st.lists(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=30), max_size=4)
)
def test_arguments_reach_the_program_as_they_were(words):
    words = [word for word in words if word.isprintable()]
    text = render("plain", {"job_name": "a", "command": ["printf", "%s\\0", "x", *words]})
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash"], input=text.encode(), capture_output=True, timeout=20, check=True, env=env
    )
    assert done.stdout.decode().split("\0")[:-1] == ["x", *words]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"job_name": "a\nrm -rf /"}, "line breaks"),
        ({"job_name": "a\x1b"}, "control characters"),
        ({"job_name": "a b"}, "may not stand in a #SBATCH line"),
        ({"job_name": "$(id)"}, "may not stand"),
        ({"job_name": ""}, "may not stand"),
        ({"sbatch": ["--wrap='x'"]}, "may not stand"),
        ({"hadar": ["model=`id`"]}, "may not stand"),
        ({"command": "rm x"}, "a list of arguments"),
        ({"command": ["x" * 20_000]}, "at most 10000"),
        ({"command": [["x"]]}, "is needed"),
        ({"Job": "x"}, "no name of a value"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        render("pytorch_single", {**SINGLE, **values})


def test_what_is_missing_is_named():
    with pytest.raises(UsageError, match="'gres' is undefined"):
        render("pytorch_single", {"job_name": "a", "command": ["x"]})
    with pytest.raises(UsageError, match="no template foo; there are forked_copies, plain"):
        render("foo", {})
    with pytest.raises(UsageError, match="no name of a template"):
        render("../plain", {})


def test_a_template_is_fenced_in(tmp_path):
    (tmp_path / "evil.sh.j2").write_text("{{ ''.__class__.__mro__ }}")
    (tmp_path / "big.sh.j2").write_text("{% for i in range(90000) %}12{% endfor %}")
    (tmp_path / "bare.sh.j2").write_text("echo {{ name }}")
    with pytest.raises(UsageError, match="template evil"):
        render("evil", {}, tmp_path)
    with pytest.raises(UsageError, match="180000 characters"):
        render("big", {}, tmp_path)
    assert render("bare", {"name": "$(id)"}, tmp_path) == "echo '$(id)'"


def test_the_installed_place_is_found(tmp_path, monkeypatch):
    package = tmp_path / "site" / "slurm_hadar"
    (package / "_share" / "job_templates").mkdir(parents=True)
    monkeypatch.setattr(templates, "__file__", str(package / "templates.py"))
    assert templates.folder() == package / "_share" / "job_templates"
    (package / "_share" / "job_templates").rmdir()
    with pytest.raises(UsageError, match="incomplete"):
        templates.folder()
