import errno
import json
import os
import socket
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slurm_hadar import templates
from slurm_hadar.cli.main import app
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox import ports
from slurm_hadar.templates import describe, from_arguments, names, render

SINGLE: dict[str, Any] = {"job_name": "a", "gres": "gpu:1", "command": ["true"]}


def test_the_shipped_templates_are_shell_that_parses():
    assert len(names()) == 7
    more: dict[str, Any] = {
        "gres": "gpu:2",
        "nodes": 1,
        "gpus_per_node": 2,
        "setup": "/a b/c",
        "time": "1:00:00",
    }
    more |= {"partition": "idle", "most_nodes": 2, "points": ["--lr=0.1", "--lr=0.2"]}
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
    with pytest.raises(UsageError, match="no template foo; there are backfill_trainer, forked"):
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


def test_the_tasks_of_an_array_get_their_points_and_numbers():
    points = ["--lr=0.1", "--lr='0 2' --run={task}"]
    values = {**SINGLE, "command": ["echo", "{task}.pt"], "points": points}
    text = render("hyperparameter_array", values)
    assert "#SBATCH --array=0-1\n" in text
    for task, said in enumerate(["0.pt --lr=0.1", "1.pt --lr=0 2 --run=1"]):
        env = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(task)}
        done = subprocess.run(["bash"], input=text, capture_output=True, text=True, env=env)
        assert done.stdout.strip() == said
    with pytest.raises(UsageError, match="cannot be split"):
        render("hyperparameter_array", {**values, "points": ["'"]})


def test_a_template_tells_its_values():
    known = {row.name: row for row in describe("hyperparameter_array").values}
    assert {row.name for row in known.values() if row.needed} == {
        *("job_name", "gres", "command", "points")
    }
    assert known["points"].texts and known["command"].many and not known["gres"].many
    assert describe("backfill_trainer").values[4].name == "partition"
    assert not next(row for row in describe("plain").values if row.name == "partition").needed
    for name in names():
        assert describe(name).about and "\n" not in describe(name).about


def test_words_become_values():
    words = ["job_name=a", "gres=gpu:1", "command=python 'a b'", "command=c", "points=--x 1; --x 2"]
    found = from_arguments(describe("hyperparameter_array"), words)
    assert found["command"] == ["python", "a b", "c"]
    assert found["points"] == ["--x 1", "--x 2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job_name"], "key=value"),
        (["job_nam=a"], "did you mean job_name"),
        (["zzz=a"], "it takes command, job_name"),
        (["job_name=a", "job_name=b"], "given twice"),
        (["command='"], "cannot be split"),
        (["job_name=a"], "also needs command"),
    ],
)
def test_words_that_are_no_values_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        from_arguments(describe("plain"), words)


def test_the_command_lists_shows_and_renders(tmp_path):
    run = CliRunner().invoke
    listed = run(app, ["template", "list"]).output
    assert listed.count("\n") == len(names())
    assert "plain: Any program" in listed and "command... job_name [cpus_per_task]" in listed
    assert run(app, ["template", "show", "plain"]).output == templates.text("plain")
    words = ["template", "render", "plain", "job_name=a", "command=echo 'a b'"]
    script = render("plain", {"job_name": "a", "command": ["echo", "a b"]})
    assert run(app, words).output == script
    assert json.loads(run(app, [*words, "--json"]).output)["result"]["script"] == script
    file = tmp_path / "a.sh"
    assert run(app, [*words, "--output", str(file)]).output == "" and file.read_text() == script
    again = run(app, [*words, "--output", str(file)])
    assert isinstance(again.exception, HadarError) and "there already" in str(again.exception)


MEET = (templates.folder() / "_meet.j2").read_text()


def port_of(job, **env):
    """The port where the processes of this job meet, if it starts now."""
    script = f"{MEET}exec bash -c 'echo $MASTER_PORT'"
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(job), **env}
    return int(subprocess.check_output(["bash", "-euc", script], env=env, timeout=30))


@pytest.mark.parametrize("name", ["pytorch_ddp", "pytorch_torchrun"])
def test_processes_meet_where_the_template_says(name):
    assert MEET in render(name, {"job_name": "a", "nodes": 1, "gpus_per_node": 2, "command": ["a"]})


def test_the_port_where_processes_meet_is_none_of_those_that_linux_gives_away():
    """A connection of anybody's held such a port, and the training could not begin."""
    for job in (1, 9_999, 19_999, 20_000, 555_106, 67_108_863):
        # Those are of ip_local_port_range: from 32768, where nobody changed it. From _LOWEST, a
        # sandbox may take it for a daemon between the look and the meeting.
        assert 1024 < port_of(job) < ports._LOWEST < 32_768
    assert port_of(1, MASTER_PORT="77") == 77


def listen(family, where):
    """A daemon on a free port of those where processes meet."""
    for port in range(19_999, 19_000, -1):
        try:
            return socket.create_server((where, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                pytest.skip(f"nobody can listen on {where} here: {error.strerror}")
    raise AssertionError("no free port")


@pytest.mark.parametrize(
    ("family", "where"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_processes_do_not_meet_where_another_program_listens(family, where):
    """A job's port was a daemon's on that node: "address already in use", and the job FAILED."""
    with listen(family, where) as daemon:
        port = daemon.getsockname()[1]
        other = port_of(port - 10_000)
        assert other != port and 10_000 <= other < 20_000
    assert port_of(port - 10_000) == port


@pytest.mark.parametrize("command", ["command=", "command=  "])
def test_a_needed_list_without_an_entry_is_missing(command):
    """The script would end at once, with success."""
    with pytest.raises(UsageError, match=r"template plain also needs command$"):
        from_arguments(describe("plain"), ["job_name=x", command])
