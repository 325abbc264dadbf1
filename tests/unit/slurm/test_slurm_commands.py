import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import config
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError
from slurm_hadar.slurm import backend_choice, commands, pyslurm_records, updates
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.cluster import Update, open_cluster
from slurm_hadar.slurm.commands import Commands

OLD, NEW = (22, 5, 8), (24, 11, 5)
needs_slurm = pytest.mark.skipif(
    shutil.which("scontrol") is None, reason="Slurm's commands are not on PATH"
)


def test_the_environment_is_cleaned(tmp_path: Path) -> None:
    given_env = {
        "PATH": "/bin",
        "HOME": "/h",
        "TZ": "UTC",
        "SLURM_CONF": "/a",
        "SLURM_TIME_FORMAT": "relative",
        "SBATCH_PARTITION": "x",
        "SQUEUE_FORMAT": "%i",
        "LD_PRELOAD": "x.so",
        "HADAR_EXCHANGE": "/e",
        "LC_ALL": "de_DE",
    }
    assert commands.clean_environment(given_env, tmp_path) == {
        "PATH": "/bin",
        "HOME": "/h",
        "TZ": "UTC",
        "HADAR_EXCHANGE": "/e",
        "LC_ALL": "C",
        "SLURM_CONF": str(tmp_path),
        "SLURM_BITSTR_LEN": "4096",
    }
    assert commands.clean_environment(given_env)["SLURM_CONF"] == "/a"


@pytest.mark.parametrize("job_id", ["1", "84_2", "12+1", "4294967295"])
def test_ids(job_id: str) -> None:
    assert commands.checked_id(job_id) == job_id


@given(st.text())
def test_anything_else_is_no_id(text: str) -> None:
    try:
        assert commands.checked_id(text) == text
    except UsageError as error:
        assert "no job id" in str(error)
    else:
        assert set(text) <= set("0123456789_+")


@pytest.mark.parametrize("job_id", ["", "-1", "1 2", "1\n", "1;id", "--all", "1_2_3", "1_", "²"])
def test_hostile_ids(job_id: str) -> None:
    with pytest.raises(UsageError):
        commands.checked_id(job_id)


@pytest.mark.parametrize(
    ("name", "clean"), [("USR2", "USR2"), ("SIGTERM", "TERM"), ("usr1", "USR1")]
)
def test_signals(name: str, clean: str) -> None:
    assert commands.checked_signal(name) == clean
    with pytest.raises(UsageError):
        commands.checked_signal(f"{name} --full")


@pytest.mark.parametrize(
    ("said", "retry"),
    [
        ("Resource temporarily unavailable for job 42016", True),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True),
        ("Kill job error on job id 7: Job can not be altered now, try again later", True),
        ("Invalid job id specified for job 99", False),
        ("Access/permission denied", False),
    ],
)
def test_busy_or_refused(said: str, retry: bool) -> None:
    error = commands.failure("scontrol", commands.Answer(1, "", f"scontrol: error: {said}\n"))
    assert error.retry is retry
    assert str(error) == f"scontrol: {said}"


def test_updates_in_each_release() -> None:
    update = Update("84_2", {"TresPerNode": "gpu:2", "TresPerJob": "gres/gpu:3", "Features": ""})
    assert updates.update_arguments(update, OLD) == [
        "JobId=84_2", "Gres=gpu:2", "TresPerJob=gres:gpu:3", "Features=",
    ]  # fmt: skip
    assert updates.update_arguments(update, NEW)[2] == "TresPerJob=gres/gpu:3"


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (Update("1", {"Comment": "a\nupdate JobId=2"}), "line breaks"),
        (Update("1", {"Comment": "a\x1b[0m"}), "line breaks"),
        (Update("1", {"Priority": "9"}), "no field"),
        (Update("1", {"Comment=x JobId": "9"}), "no field"),
        (Update("1", {"NumNodes": "2 JobId=7"}), "no number"),
        (Update("1;", {"Comment": "a"}), "no job id"),
        (Update("1", {}), "without fields"),
    ],
)
def test_updates_that_slurm_never_sees(update: Update, said: str) -> None:
    with pytest.raises(SlurmError, match=said) as caught:
        updates.update_arguments(update, NEW)
    assert not caught.value.retry


@pytest.mark.parametrize("value", ["a b", 'a"b', "it's", "a\\b", "é", "x" * 4000, "a\tb", ""])
def test_values_that_scontrols_standard_input_would_change(value: str) -> None:
    assert updates.plain([f"Comment={value}"]) is (value == "")


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_no_value_adds_a_line_or_a_word(values: list[str]) -> None:
    words = ["update", *(f"Comment={value}" for value in values)]
    if updates.plain(words):
        text = updates.stdin_text([" ".join(words)])
        assert text.splitlines() == [" ".join(words), "hadar-mark-0"]
        assert text.splitlines()[0].split() == words


RECORDED = """invalid keyword: hadar-mark-0
Invalid job id specified for job 77
invalid keyword: hadar-mark-1
scontrol: error: Invalid TimeLimit value
invalid keyword: hadar-mark-2
Update of this parameter is not supported: Bogus=1
Request aborted
invalid keyword: hadar-mark-3
41004_0-1: Job is no longer pending execution
41004_2: No error
invalid keyword: hadar-mark-4
invalid keyword: hadar-mark-5
"""
"""Standard error of scontrol 22.05.8 and 24.11.5, with the marks' present names."""


def test_errors_go_to_the_line_that_caused_them() -> None:
    assert updates.which_accepted(RECORDED, 6) == [True, False, False, False, False, True]
    assert updates.which_accepted(RECORDED, 8)[6:] == [False, False]
    assert updates.which_accepted("Unable to contact slurm controller\n", 2) == [False, False]


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    busy, refused = SlurmError("busy", retry=True), SlurmError("no")
    assert updates.patiently(lambda: busy, slept.append) is busy
    assert 3 <= sum(slept) <= 4
    slept.clear()
    answers = iter([busy, busy, None])
    assert updates.patiently(lambda: next(answers), slept.append) is None
    assert len(slept) == 2
    assert updates.patiently(lambda: refused, slept.append) is refused
    assert len(slept) == 2


def test_missing_commands_are_named(tmp_path: Path) -> None:
    cluster = CommandsCluster(Commands(bin_dir=tmp_path))
    with pytest.raises(SlurmError, match=r"scontrol is not in .*slurm\.bin_dir") as caught:
        cluster.read_jobs()
    assert not caught.value.retry
    assert not cluster.ping()


def test_a_script_needs_its_first_line() -> None:
    with pytest.raises(UsageError, match="#!"):
        CommandsCluster(Commands()).submit("echo hello")


@pytest.fixture
def silent_controller(tmp_path: Path):
    """A slurm.conf whose slurmctld takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        conf = tmp_path / "slurm.conf"
        conf.write_text(
            "ClusterName=silent\nSlurmctldHost=localhost(127.0.0.1)\n"
            f"SlurmctldPort={listening.getsockname()[1]}\nAuthType=auth/none\n"
            "NodeName=n1\nPartitionName=p Nodes=n1\n"
        )
        yield conf


@needs_slurm
def test_a_silent_controller_ends_in_an_error_in_time(silent_controller: Path) -> None:
    cluster = CommandsCluster(Commands(conf=silent_controller, timeout_s=0.7))
    for read in (cluster.read_jobs, cluster.read_nodes, cluster.read_partitions):
        with pytest.raises(SlurmError) as caught:
            read()
        assert caught.value.retry
    assert not cluster.ping()
    assert cluster.queries == {"jobs": 1, "nodes": 1, "partitions": 1, "ping": 1}


@needs_slurm
def test_the_commands_are_chosen_by_name(silent_controller: Path) -> None:
    cluster = open_cluster(config.Slurm(backend="cli", conf=silent_controller))
    assert cluster.backend == "commands" and "cli" in cluster.why
    assert cluster.slurm_version > (20, 0, 0)


@needs_slurm
def test_without_a_slurm_conf_pyslurm_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_choice, "_USUAL_CONFS", ())
    monkeypatch.delenv("SLURM_CONF", raising=False)
    cluster = open_cluster(config.Slurm())
    assert cluster.backend == "commands"
    assert "slurm.conf" in cluster.why or "not installed" in cluster.why
    with pytest.raises(HadarError, match=r"slurm\.backend = pyslurm"):
        open_cluster(config.Slurm(backend="pyslurm"))


WITH_ALL = """
class Job:
    modify = release = get_resource_layout_per_node = None
class Jobs:
    load = None
class JobSubmitDescription: ...
class RPCError(Exception): ...
"""
WITH_PARTITIONS = WITH_ALL + "class Partitions:\n    load = None\n"


@pytest.mark.parametrize(
    ("has", "built", "obstacle"),
    [
        (WITH_PARTITIONS, (22, 5, 3), ""),
        (WITH_ALL, (22, 5, 2), "too old: it lacks Partitions.load; install"),
        (
            "class job: ...\n",
            (22, 5, 0),
            "too old: it lacks Job.get_resource_layout_per_node, Job.m",
        ),
        (WITH_PARTITIONS, (23, 2, 2), "is for Slurm 23.02, the site has 22.05"),
    ],
)
def test_a_pyslurm_that_lacks_what_is_called_is_not_chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has: str,
    built: tuple[int, int, int],
    obstacle: str,
) -> None:
    (tmp_path / "pyslurm.py").write_text(f"{has}\ndef slurm_api_version():\n    return {built}\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(backend_choice, "_bound", None)
    plain = CommandsCluster(Commands())
    plain._version = (22, 5, 8)
    found = backend_choice.pyslurm_obstacle(plain, conf)
    assert obstacle in found and bool(found) == bool(obstacle)


class Entry:
    """A job of a PySlurm: what is not given is None."""

    id, state = 7, "RUNNING"
    segment_size: int | None = None

    def __init__(self, layout: dict[str, object]) -> None:
        self.get_resource_layout_per_node = lambda: layout

    def __getattr__(self, name: str) -> None:
        return None


def test_a_running_job_without_its_gpus_is_no_answer_of_pyslurm() -> None:
    shown, _ = pyslurm_records.job(Entry({"v1": {"gres": {"gpu:v100": {"count": 2}}}}))
    assert shown.gpus == {"v1": {"v100": 2}}
    with pytest.raises(ValueError, match="shows nothing of what the running job 7 has"):
        pyslurm_records.job(Entry({}))


@pytest.mark.parametrize(("size", "external"), [(None, False), (0, False), (4, True)])
def test_a_job_in_segments_is_one_of_external_resources(size: int | None, external: bool) -> None:
    entry = Entry({"v1": {"gres": {"gpu:v100": {"count": 2}}}})
    entry.segment_size = size
    shown, _ = pyslurm_records.job(entry)
    assert shown.external is external


def test_a_pyslurm_that_knows_no_segments() -> None:
    class Earlier(Entry):
        def __getattr__(self, name: str) -> None:
            if name == "segment_size":
                raise AttributeError(name)

    shown, _ = pyslurm_records.job(Earlier({"v1": {"gres": {"gpu:v100": {"count": 2}}}}))
    assert not shown.external


@pytest.mark.parametrize("backend", ["auto", "cli", "pyslurm"])
def test_a_named_slurm_conf_that_is_not_there_is_said_at_once(
    tmp_path: Path, backend: Literal["auto", "cli", "pyslurm"]
) -> None:
    missing = tmp_path / "missing.conf"
    with pytest.raises(SlurmError, match=f"slurm.conf = {missing} is not a file"):
        open_cluster(config.Slurm(backend=backend, conf=missing))


def test_a_command_that_may_not_be_run(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("")
    program.chmod(stat.S_IRUSR)
    if os.access(program, os.X_OK):
        pytest.skip("this user may execute a file without the x bit, so nothing is refused")
    with pytest.raises(SlurmError, match="scontrol could not be run"):
        CommandsCluster(Commands(bin_dir=tmp_path)).read_jobs()


def test_what_fails_by_chance_is_tried_again_and_again() -> None:
    """A change of Partition on 26.05.5 without accounting database: 4 of 5 are refused so."""
    chance = SlurmError("Resource temporarily unavailable for job 7", retry=True)
    slept: list[float] = []
    answers = iter([*[chance] * 20, None])
    late = iter(range(1000))
    assert updates.patiently(lambda: next(answers), slept.append, lambda: next(late)) is None
    assert slept == [0.05] * 20
    assert updates.patiently(lambda: chance, slept.append) is chance
