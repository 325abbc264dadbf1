"""Policies of other packages, modules and files: found, checked, harmless where broken."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from slurm_hadar import policies
from slurm_hadar.cli.main import app
from slurm_hadar.controller.actuation.pending import lent_places
from slurm_hadar.controller.decider import BACKFILL
from slurm_hadar.controller.journal.store_file import UNREPORTED
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.foreign import guarded
from slurm_hadar.policies.options import Flag, PolicyOptions, Whole
from slurm_hadar.policies.record import RESERVED, Policy, Trait
from slurm_hadar.testing import held_by, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing.strategies import views

GOOD = """
from slurm_hadar.api import Policy, PolicyOptions, Whole
from slurm_hadar.policies.queues.fifo import decide

class Options(PolicyOptions):
    most: Whole = 3
    \"\"\"Jobs that are served at a time.\"\"\"

policy = Policy(name="NAME", decide=decide, options=Options, uses={"order"}, title="theirs")
"""

Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Put a package with a policy where packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    policies._found.cache_clear()
    made: list[str] = []

    def offered(name: str, code: str = GOOD, *, package: str = "", entry: str = "") -> None:
        package = package or f"{name}_package"
        made.append(package)
        (tmp_path / f"{package}.py").write_text(code.replace("NAME", name))
        folder = tmp_path / f"{package}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        value = entry or f"{package}:policy"
        (folder / "entry_points.txt").write_text(f"[slurm_hadar.policies]\n{name} = {value}\n")

    yield offered
    policies._found.cache_clear()
    for package in made:
        sys.modules.pop(package, None)


def test_a_policy_of_another_package_is_found_by_its_name_and_decides(offer: Offer) -> None:
    offer("theirs")
    found = policies.find("theirs")
    assert found.title == "theirs" and found.uses == {Trait.ORDER}
    plan, _ = found.decide(view_of(nodes_of([[1]]), jobs_of([[[1.0]]])), {})
    assert set(plan.placements) == {"j0"}
    (row,) = [row for row in policies.listed() if row.name == "theirs"]
    assert row.source == "theirs_package 1.2" and row.problem == ""


BROKEN = {
    "an error": ("import sys\nraise OSError('no licence')", "OSError: no licence"),
    "an exit": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "no Python": ("def", "SyntaxError"),
    "a missing module": ("import no_such_module_at_all", "no_such_module_at_all"),
    "no policy": ("policy = 3", "is no slurm_hadar.api.Policy"),
    "no attribute": ("x = 1", "AttributeError"),
    "another name": (GOOD.replace("NAME", "other"), "calls itself other"),
    "a reserved name": (GOOD.replace("NAME", "backfill"), "backfill is reserved"),
    "an unknown trait": (GOOD.replace("order", "magic"), "magic"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_is_one_sentence_and_stops_nothing_else(offer: Offer, kind: str) -> None:
    code, words = BROKEN[kind]
    offer("broken", code)
    with pytest.raises(UsageError, match=words) as caught:
        policies.find("broken")
    said = str(caught.value)
    assert "\n" not in said and "broken_package 1.2" in said
    assert policies.find("hadar").name == "hadar"
    rows = {row.name: row for row in policies.listed()}
    assert rows["broken"].policy is None and words in rows["broken"].problem
    assert set(policies.names()) <= rows.keys()
    shown = CliRunner().invoke(app, ["policies"])
    assert shown.exit_code == 0 and words in shown.stdout
    asked = CliRunner().invoke(app, ["policies", "broken"])
    assert isinstance(asked.exception, UsageError)


def test_a_name_of_ours_stays_ours_and_one_that_two_packages_offer_is_refused(
    offer: Offer,
) -> None:
    offer("hadar", package="thief")
    offer("twice", package="first")
    offer("twice", package="second")
    assert "slurm_hadar" in policies.find("hadar").decide.__module__
    notes = {row.problem for row in policies.listed() if row.name == "hadar"}
    assert any("which is used" in note for note in notes)
    with pytest.raises(UsageError, match=r"first 1\.2 and second 1\.2 is offered more than once"):
        policies.find("twice")


def test_an_unknown_name_lists_what_there_is(offer: Offer) -> None:
    offer("theirs")
    with pytest.raises(UsageError, match=r"there is no policy 'nonsense'; known: .*theirs"):
        policies.find("nonsense")


def test_modules_and_files_are_named_with_their_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Kept:\n    x: int = 1\n"
        "from slurm_hadar.policies.queues.fifo import decide\n"
    )
    (tmp_path / "by_module.py").write_text(code)
    assert policies.find("by_module:decide").name == "by_module"
    assert policies.find("by_module:decide").options is None
    file = tmp_path / "by_file.py"
    file.write_text(code + "other = decide\n")
    assert policies.find(f"{file}:other", files=True).name == "by_file_other"
    for spec, words in {
        f"{file}:decide": "take a file",
        "by_module:nothing": "no function or policy nothing",
        "no.such.module:decide": "there is no module no.such.module",
        "by_module:": "package.module:decide",
        ":decide": "package.module:decide",
        "by_module:decide()": "package.module:decide",
    }.items():
        with pytest.raises(UsageError, match=words.replace(".", r"\.")):
            policies.find(spec)
    for spec, words in {
        f"{tmp_path}/nowhere.py:decide": "there is no file",
        "no_such_module:decide": "path/to/file.py:decide",
    }.items():
        with pytest.raises(UsageError, match=words):
            policies.find(spec, files=True)


def _answer(answer: Any) -> Policy:
    return guarded(Policy("theirs", lambda view, state: answer), "policy theirs")


PLACED = Plan({"j0": Placement({"fast": 1}, {"n0": {"fast": 1}}, reason="it fits")})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returns no tuple of a Plan and a dict"),
        ((PLACED, None), "returns no tuple of a Plan and a dict"),
        ((Plan(), {}), "cannot be carried out: job j0 is neither placed nor waits with a reason"),
        ((PLACED, {"x": {1, 2}}), "a state that is not JSON"),
    ],
)
def test_answers_that_nothing_may_act_on_are_refused(answer: object, words: str) -> None:
    view = view_of(nodes_of([[1]]), jobs_of([[[1.0]]]))
    with pytest.raises(HadarError, match=f"policy theirs .*{words}"):
        _answer(answer).decide(view, {})
    assert _answer((PLACED, {"a": 1})).decide(view, {}) == (PLACED, {"a": 1})


def test_an_error_of_theirs_is_a_sentence_with_its_place() -> None:
    def decide(view: object, state: object) -> tuple[Plan, dict[str, object]]:
        raise ZeroDivisionError("by zero")

    view = view_of(nodes_of([[1]]), jobs_of([[[1.0]]]))
    with pytest.raises(HadarError, match=r"failed: ZeroDivisionError: by zero \(.*line \d+\)"):
        guarded(Policy("theirs", decide), "policy theirs").decide(view, {})


def test_no_policy_may_have_a_name_under_which_the_controller_keeps_its_memory() -> None:
    assert {lent_places.NAME, UNREPORTED, BACKFILL} <= RESERVED
    assert not RESERVED & set(policies.names())


@pytest.mark.parametrize("name", policies.names())
def test_each_of_ours_declares_what_it_is(name: str) -> None:
    found = policies.find(name)
    assert found.name == name and found.title and found.options is not None
    assert found.options.read({}) == found.options()


def test_what_the_controller_does_for_a_policy_goes_by_its_record() -> None:
    """It reads racks, counts copies together within the time limit, warns without preemption."""
    ours = [policies.find(name) for name in policies.names()]
    network = {"network", "network_consolidate", "network_never_wait"}
    assert {one.name for one in ours if Trait.RACKS in one.uses} == {*network, "timetable"}
    assert {one.name for one in ours if Trait.COPIES in one.uses} == {"hadare", "hare", "timetable"}
    calm = {"timetable", "hadar", "hadare", "fifo", "srtf", *network}
    assert {one.name for one in ours if not one.preempts} == calm


@pytest.mark.parametrize(
    "name", [name for name in policies.names() if Trait.MOVES not in policies.find(name).uses]
)
@given(view=views(degenerate=False))
@settings(max_examples=50)
def test_a_policy_that_declares_no_moves_leaves_every_running_job_in_place(
    name: str, view: View
) -> None:
    plan, _ = policies.find(name).decide(view, {})
    got = places(view, plan)
    for job, place in held_by(view).items():
        assert got[view.jobs.ids[job]] == place


class _Options(PolicyOptions):
    most: Whole = 3
    strict: Flag = False


def test_options_are_read_by_their_schema() -> None:
    assert _Options.read({"most": 4.7, "anothers": "x"}) == _Options(most=4)
    for options, words in (
        ({"most": "4"}, "policy option most: '4' is not a number"),
        ({"most": -0.5}, "policy option most: -0.5 is not at least 0, below 1e"),
        ({"most": float("nan")}, "policy option most: nan is not a number"),
        ({"strict": 1}, "policy option strict: 1 is neither true nor false"),
    ):
        with pytest.raises(UsageError, match=words):
            _Options.read(options)


def test_the_command_lists_policies_and_options_for_machines(offer: Offer) -> None:
    offer("theirs")
    result = json.loads(CliRunner().invoke(app, ["policies", "--json"]).stdout)["result"]
    by_name = {row["name"]: row for row in result}
    assert by_name["hadar"]["source"].startswith("slurm-hadar ")
    assert by_name["gavel_las"]["paper"] == "Gavel, OSDI 2020" and by_name["gavel_las"]["preempts"]
    assert by_name["theirs"]["options"] == [
        {
            "name": "most",
            "takes": "whole number, at least 0, below 1e+09",
            "default": "3",
            "meaning": "Jobs that are served at a time.",
        }
    ]
    assert all(one["meaning"] for row in result for one in row["options"]), "of each option"
    text = CliRunner().invoke(app, ["policies", "theirs"]).stdout
    assert "theirs  (theirs_package 1.2)" in text and "most = 3" in text


def test_no_policy_is_loaded_before_it_is_asked_for_nor_what_a_tick_does_without() -> None:
    code = (
        "import sys\nimport slurm_hadar.cli.hbatch\n"
        "assert not [m for m in sys.modules if m.startswith('slurm_hadar.policies')]\n"
        "import slurm_hadar.cli.main\n"
        "assert not [m for m in sys.modules if m.startswith(('slurm_hadar.controller', 'numpy'))]\n"
        "import slurm_hadar.cli.controller_commands\n"
        "alien = {'asyncio', 'jinja2', 'rich', 'slurm_hadar.simulator'} & set(sys.modules)\n"
        "assert not alien, alien\n"
        "import slurm_hadar.cli.status\n"
        "ours = {f'slurm_hadar.policies.{m}' for m in ('foreign', 'hadar', 'ones', 'validity',"
        " 'queues.tiresias')}\n"
        "assert not ours & set(sys.modules), ours & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
