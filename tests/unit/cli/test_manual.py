"""The man pages say what the commands say, and man takes them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from missing import missing
from typer.main import get_command
from typer.testing import CliRunner

from slurm_hadar.cli import manual, manual_hbatch, manual_keys
from slurm_hadar.cli.main import app
from slurm_hadar.cli.sbatch_options import LONG
from slurm_hadar.cli.sbatch_parser import OUR_QUESTIONS
from slurm_hadar.domain.declaration import KEYS, parse
from slurm_hadar.policies.timetable.settings import TimetableOptions

ROOT = Path(__file__).resolve().parents[3]
PAGES = manual.pages(get_command(app))


def rendered(text):
    if shutil.which("groff") is None:
        missing("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-P-cbou"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return " ".join(done.stdout.split())


def test_the_pages_that_are_kept_are_in_step():
    folder = ROOT / "docs" / "man"
    kept = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert kept == PAGES, "run: hadar manual docs/man"


@pytest.mark.parametrize("name", PAGES)
def test_groff_takes_a_page_without_a_warning(name):
    text = rendered(PAGES[name])
    assert "SEE ALSO" in text


@pytest.mark.parametrize("name", PAGES)
def test_man_shows_a_page(name, tmp_path):
    if shutil.which("man") is None:
        pytest.skip("man is not installed; the test with groff renders the same page")
    (tmp_path / "page.1").write_text(PAGES[name])
    done = subprocess.run(
        ["man", "--warnings", "-l", str(tmp_path / "page.1")], capture_output=True, text=True
    )
    if "has been minimized" in done.stdout + done.stderr:
        pytest.skip("this image has Debian's placeholder for man; groff renders the page above")
    assert done.returncode == 0 and done.stderr == ""
    assert Path(name).stem.partition(".")[0] in done.stdout


def test_all_keys_of_a_declaration_are_reported_and_understood():
    assert tuple(manual_hbatch.MEANING) == KEYS
    for key in manual_hbatch.CHOICES:
        assert parse([f"{key}=no"], "here") is not None
    asked = {word.split()[0].removeprefix("--hadar-") for word in manual_hbatch.QUESTIONS}
    assert asked == OUR_QUESTIONS | {"off"}


def test_hbatchs_page_and_its_help_say_the_same():
    text = rendered(PAGES["man1/hbatch.1"])
    said = " ".join(manual_hbatch.help_text().split())
    for _, meaning in manual_hbatch.MEANING.values():
        assert meaning in said
        assert meaning in text
    for name in LONG:
        assert f"--{name}" in text


def test_every_command_of_hadar_has_its_help_in_the_page():
    page = PAGES["man1/hadar.1"]
    for words in (["tick"], ["set"], ["sandbox", "up"], ["simulate", "jobs"]):
        shown = CliRunner().invoke(app, [*words, "--help"]).stdout
        assert f".SS hadar {' '.join(words)}" in page
        first = shown.split("\n\n")[1].strip().splitlines()[0]
        assert manual.plain(first.strip()) in page


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("stretch", "number, at least 1, at most 10"),
        ("buckets", "whole number, at least 2, at most 60"),
        ("caution", "number, at least 0, at most 0.95"),
        ("waste", "number, at least 1, below 1e+09"),
        ("doubt_power", "number, at least -4, at most 1"),
        ("follow", "number, at least 0, below 1e+09"),
    ],
)
def test_of_several_bounds_on_one_side_the_tightest_is_shown(name, says):
    assert manual_keys.takes(TimetableOptions.model_fields[name]) == says


def test_every_key_of_the_configuration_has_a_meaning_and_its_table():
    keys = manual_keys.all_keys()
    about = manual_keys.sections()
    assert len(keys) > 40 and all(key.meaning.endswith((".", "none.")) for key in keys)
    assert {key.section for key in keys} - {""} <= about.keys()
    named = {(key.section, key.name): key for key in keys}
    assert named["log", "files"].takes == "whole number, at least 1, at most 100"
    assert named["site", "mode"].default == '"observe"'
    assert named["slurm", "bin_dir"].default == "none"
    assert named["partitions", "opt_in"].takes == "list of texts"
    assert named["partitions", "groups"].takes == "table"
    assert named["gpu_types.NAME", "memory_gb"].takes == "number, at least 0"
    # A docstring in config/ takes the place of what is said here.
    there = {
        f"{model.lower()}.{name}" for model, name in manual_keys.docstrings(*manual_keys.SCHEMA)
    }
    assert not there & manual_keys._SAID_HERE.keys()


def test_text_means_itself():
    hostile = ".SH x\n'y\n-\\fB \\n"
    text = rendered(manual.page([manual.title("t", 1, "0"), manual.plain(hostile)]))
    assert "long|" * 30 in rendered(
        manual.page([manual.title("t", 1, "0"), manual.term("x", "long|" * 30)])
    ).replace(" ", "")
    assert ".SH x" in text and "'y" in text and "-\\fB \\n" in text


def test_the_command_writes_the_pages_and_tells_where_it_cannot(tmp_path):
    done = CliRunner().invoke(app, ["manual", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert {str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*.?")} == set(
        PAGES
    )
    (tmp_path / "file").write_text("")
    bad = CliRunner().invoke(app, ["manual", str(tmp_path / "file")])
    assert "cannot be written" in str(bad.exception)
