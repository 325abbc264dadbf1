"""``hadar simulate idle``: its files, its figures, and what it says about bad input."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slurm_hadar.cli.main import app
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.simulator.idle.fragments import generate, read_fragments, write_fragments
from slurm_hadar.simulator.idle.trainers import read_trainers

HEADER = "node,idle_start_s,idle_end_s,censored\n"
ONE = {
    "name": "net",
    "copies": 3,
    "nodes": [0, 1, 4],
    "samples_per_s": [0, 100, 380],
    "samples": 20000,
    "grow_s": 18,
    "shrink_s": 12,
}


@pytest.fixture
def trainers(tmp_path: Path) -> Path:
    path = tmp_path / "trainers.json"
    path.write_text(json.dumps({"at_once": 2, "trainers": [ONE]}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "idle.csv"
    path.write_text(HEADER + "b,0,500,0\na,0,500,0\nc,100,400,1\n")
    return path


def run(*words: object) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output, done.exception


def test_json_has_the_figures_of_each_policy(trace: Path, trainers: Path) -> None:
    code, text, _ = run("simulate", "idle", trace, "--trainers", trainers, "--tfwd", 120,
                        "--policy", "bftrainer", "--policy", "equal_share", "--json")  # fmt: skip
    assert code == 0
    found = json.loads(text)
    assert (found["version"], found["command"]) == (1, "simulate idle")
    assert [one["policy"] for one in found["result"]] == ["bftrainer", "equal_share"]
    for one in found["result"]:
        assert {"efficiency", "rescales", "preemptions", "lost_work_share", "decide_ms_mean",
                "decide_ms_max"} <= set(one)  # fmt: skip
        assert 0.5 < one["efficiency"] <= 1.0
        assert one["trainers"] == 3


def test_table_and_page(trace: Path, trainers: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, text, _ = run("simulate", "idle", trace, "--trainers", trainers, "--report", page)
    assert code == 0 and "bftrainer" in text
    html = page.read_text()
    assert (
        "<svg" in html and "http://" not in html and "https://" not in html and "bftrainer" in html
    )


def test_first_nodes_are_by_name(trace: Path, trainers: Path) -> None:
    assert read_fragments(trace).first(2).names == ("a", "b")
    code, _, error = run("simulate", "idle", trace, "--trainers", trainers, "--nodes", 4)
    assert code == 1 and "3 nodes, not 4" in str(error)


def test_gzip_and_back(tmp_path: Path) -> None:
    made = generate(nodes=30, days=0.3, seed=4)
    for name in ("x.csv", "x.csv.gz"):
        path = tmp_path / name
        write_fragments(made, path)
        again = read_fragments(path)
        used = sorted({made.names[n] for n in made.node.tolist()})
        assert list(again.names) == used
        assert sorted(again.start_s.tolist()) == made.start_s.tolist()
        assert again.censored.sum() == made.censored.sum()
    assert (
        gzip.decompress((tmp_path / "x.csv.gz").read_bytes()) == (tmp_path / "x.csv").read_bytes()
    )


def test_idle_trace_writes_what_idle_reads(tmp_path: Path, trainers: Path) -> None:
    out = tmp_path / "made.csv.gz"
    code, text, _ = run("simulate", "idle-trace", out, "--nodes", 60, "--days", 0.5, "--json")
    assert code == 0 and json.loads(text)["result"]["fragments"] > 0
    assert run("simulate", "idle", out, "--trainers", trainers)[0] == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,0,5,0\na,x,9,0\n", "line 3: idle_start_s is 'x'"),
        ("a,0,5,0\nb,9,9,0\n", "line 3: idle_end_s 9 is not after"),
        ("a,0,5,0\nb,1,9,2\n", "line 3: censored is '2'"),
        ("a,0,5,0\n\na,4,9,0\n", "line 4: a is idle already in line 2"),
        ("a,0,5\n", "line 2: 3 cells"),
        (",0,5,0\n", "line 2: node is empty"),
        ("a,0,inf,0\n", "line 2: idle_end_s is inf"),
        ("a,-1,5,0\n", "line 2: idle_start_s is -1"),
        ("", "no fragment"),
    ],
)
def test_bad_fragments_are_one_sentence_with_the_line(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + rows)
    with pytest.raises(UsageError) as error:
        read_fragments(path)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_a_missing_column_and_a_broken_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(gzip.compress(b"node,idle_start_s\na,1\n"))
    with pytest.raises(UsageError, match="line 1: column idle_end_s is missing"):
        read_fragments(path)
    path.write_bytes(gzip.compress(HEADER.encode() * 50)[:-9])
    with pytest.raises(UsageError, match="cannot be read"):
        read_fragments(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_fragments(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 0}, "samples must be more than 0"),
        ({"samples": None}, "samples must be a number"),
        ({"nodes": [0, 4, 1]}, "nodes must be counts that increase"),
        ({"samples_per_s": [0, 1]}, "3 nodes, but 2 samples_per_s"),
        ({"samples_per_s": [0, -1, 1]}, "not negative"),
        ({"least": 3, "most": 2}, "least 3 to most 2"),
        ({"most": 9}, "least 1 to most 9"),
        ({"grow_s": "x"}, "grow_s must be a number"),
        ({"copies": 1.5}, "copies must be a whole number"),
        ({"samples": 10**400}, "samples must be a finite number"),
    ],
)
def test_bad_trainers_are_one_sentence(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"trainers": [ONE | change]}))
    with pytest.raises(UsageError) as error:
        read_trainers(path)
    assert said in str(error.value) and "trainer 1 (net)" in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"trainers": [\n{"a": 1,,', "line 2"),
        ("[]", "JSON object"),
        ('{"trainers": []}', "at least one"),
        ('{"trainers": [1]}', "trainer 1: it must be"),
        ('{"net": {"nodes": [0, 1]}}', "--model: net"),
        ("[" * 100_000, "nested"),
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_trainers(path)
    assert said in str(error.value)


def test_curves_by_model(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    entry = {"nodes": [0, 1, 4], "img_per_s": [0, 10, 37], "Jmin": 1.0, "Jmax": 4.0, "Pmax": 500.0,
             "Tcup_s": {"mean": 18.0}, "Tcdw_s": {"mean": 12.0}}  # fmt: skip
    path.write_text(json.dumps({"net": entry, "other": entry}))
    work = read_trainers(path, "net", 7, 3)
    assert (len(work.work), work.at_once) == (7, 3)
    trainer = work.work[0].trainer
    assert trainer.rate[0].tolist() == [0, 10, 19, 28, 37]
    assert (trainer.grow_s, trainer.shrink_s, work.work[0].samples) == (18.0, 12.0, 500.0)
