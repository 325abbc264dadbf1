"""``hadar simulate jobs`` as it is typed."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hadar_program import run_hadar

from slurm_hadar.cli.main import main

_SMALL = ("--cluster", "v100=8,p100=8,k80=8")


def hadar(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_hadar(cwd, "simulate", "jobs", *words)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """What ``hadar simulate jobs`` prints when it ends with 2, in this process: a program of its
    own starts for longer than it takes to refuse."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HADAR_CONFIG", str(tmp_path / "none.toml"))
        monkeypatch.setattr(sys, "argv", ["hadar", "simulate", "jobs", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        return capsys.readouterr()

    return run


def test_json_jct_and_report_of_two_policies(tmp_path: Path) -> None:
    words = ("mixed_60", *_SMALL, "--policy", "srtf", "--policy", "gavel_las", "--json")
    first = hadar(*words, "--jct-out", "jct.csv", "--report", "page.html", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout)
    assert (answer["version"], answer["command"]) == (1, "simulate jobs")
    assert [row["policy"] for row in answer["result"]] == ["srtf", "gavel_las"]
    wanted = {
        "policy", "jobs", "finished", "avg_jct_h", "median_jct_h", "p99_jct_h", "makespan_h",
        "utilization", "moves", "user_worst_rho", "user_jain", "account_jain",
        "decide_s_mean", "decide_s_max", "wall_s",
    }  # fmt: skip
    for row in answer["result"]:
        assert wanted <= row.keys()
        assert row["jobs"] == row["finished"] == 60
        with (tmp_path / f"jct.{row['policy']}.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert list(lines[0]) == ["job_id", "arrival_s", "finish_s", "jct_s", "order"]
        assert {line["order"] for line in lines} == {row["order"]}
        mean = sum(float(line["jct_s"]) for line in lines) / len(lines)
        assert mean / 3600 == pytest.approx(row["avg_jct_h"], rel=1e-5)
        last = max(float(line["finish_s"]) for line in lines)
        assert last / 3600 == pytest.approx(row["makespan_h"], rel=1e-5)
    assert "gavel_las" in (tmp_path / "page.html").read_text()
    again = json.loads(hadar(*words, cwd=tmp_path).stdout)
    for one, other in zip(answer["result"], again["result"], strict=True):
        steady = wanted - {"decide_s_mean", "decide_s_max", "wall_s"}
        assert {key: one[key] for key in steady} == {key: other[key] for key in steady}


def test_costs_estimates_and_counts_reach_the_simulation(tmp_path: Path) -> None:
    def figures(*words: str) -> dict[str, object]:
        done = hadar("mixed_60", *_SMALL, "--policy", "srtf", "--json", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)["result"][0]
        return found

    plain = figures()
    assert figures("--noise", "0.3", "--seed", "5")["avg_jct_h"] != plain["avg_jct_h"]
    assert figures("--steps-error", "2")["avg_jct_h"] != plain["avg_jct_h"]
    assert figures("--elastic")["avg_jct_h"] != plain["avg_jct_h"]
    assert figures("--round", "0")["avg_jct_h"] != plain["avg_jct_h"]


def test_the_table_and_what_was_not_simulated(tmp_path: Path) -> None:
    (tmp_path / "past.txt").write_text(
        "JobID|JobName|Account|Submit|Start|End|AllocTRES\n"
        "1|a|x|2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|gres/gpu:v100=1\n"
        "2|b|x|2026-01-05T10:00:00|Unknown|Unknown|\n"
    )
    (tmp_path / "site.toml").write_text('[simulation.job_names]\n"a*" = "resnet50"\n')
    words = (
        "past.txt",
        "--from-sacct",
        "-c",
        "site.toml",
        "--policy",
        "fifo",
        "--cluster",
        "k80=4",
    )
    done = hadar(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1/1" in done.stdout
    assert "1 rows of the trace are not simulated: line 3: job 2 never started" in done.stderr
    # A V100's hour of ResNet-50 takes a K80 longer.
    hours = float(done.stdout.splitlines()[1].split()[3])
    assert hours > 2.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.csv"], "there is no trace nowhere.csv"),
        (["bad.csv"], "bad.csv, line 3: arrival_s is -1; it must be 0 or more"),
        (["mixed_60", "--policy", "nonsense"], "there is no policy 'nonsense'"),
        (["mixed_60", "--cluster", "v100"], "--cluster 'v100'"),
        (["mixed_60", "--cluster", "v100=4"], "fits nowhere on 4 v100"),
        (["mixed_60", "--option", "patience"], "--option 'patience' is not KEY=VALUE"),
        (["mixed_60", "--policy", "hadar", "--option", "patience=much"], "patience"),
        (["mixed_60", "--option", "nope=1"], "--option nope: no policy named here has it"),
        (
            ["mixed_60", "--policy", "hadar", "--option", "patiense=9"],
            "has it; did you mean patience?",
        ),
        (["mixed_60", "--restart-cost", "-1"], "restart_s"),
        (["mixed_60", "--round", "-5"], "--round"),
        (["mixed_60", "--noise", "2"], "--noise"),
        (["mixed_60", "--report", "no/where.html"], "no/where.html cannot be written"),
        (["mixed_60", "--policy", "gavel_las", "--option", "reset_s=-1"], "reset_s"),
        (["mixed_60", "--policy", "tiresias", "--option", "queues=5,3"], "queues"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    tmp_path: Path, refused, words: list[str], says: str
) -> None:
    (tmp_path / "bad.csv").write_text(
        "job_id,arrival_s,gpus,samples,model\n1,0,1,9,resnet50\n2,-1,1,9,resnet50\n"
    )
    done = refused(*words)
    assert says in done.err
    assert done.err.startswith("hadar: ")
    assert done.err.count("\n") == 1
    assert not done.out


def test_an_option_that_one_of_the_policies_has_is_passed_over_by_the_others(
    tmp_path: Path,
) -> None:
    words = ("mixed_60", *_SMALL, "--policy", "fifo", "--option", "queues=2")
    assert hadar(*words, cwd=tmp_path).returncode == 2
    done = hadar(*words, "--policy", "tiresias", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # A policy that does not declare what it reads may know any.
    (tmp_path / "own.py").write_text(
        "from slurm_hadar import policies\nmine = policies.get('fifo')"
    )
    done = hadar(*words, "--policy", "own.py:mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_lines_of_sacct_that_a_name_broke_are_skipped_and_counted(tmp_path: Path) -> None:
    row = "{}|{}|2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|gres/gpu:v100=1"
    lines = ["JobID|JobName|Submit|Start|End|AllocTRES"]
    lines += [row.format(number, "train") for number in (1, 2, 3)]
    lines += row.format(4, "a\nb").split("\n")
    (tmp_path / "past").write_text("\n".join(lines) + "\n")
    done = hadar("past", "--from-sacct", *_SMALL, "--policy", "fifo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "hadar: 2 lines of past are not understood and skipped: line 5: 2 cells, the header has 6; "
        "line 6: 5 cells, the header has 6\n"
    )
    (tmp_path / "past").write_text("\n".join([*lines[:2], *lines[4:]]))
    done = hadar("past", "--from-sacct", *_SMALL, "--policy", "fifo", cwd=tmp_path)
    assert done.returncode == 2
    assert "2 of 3 lines of past are not understood; the first: line 3: 2 cells" in done.stderr


def test_sacct_has_nothing_for_elastic_jobs(tmp_path: Path) -> None:
    done = hadar("mixed_60", "--from-sacct", "--elastic", *_SMALL, "--policy", "fifo", cwd=tmp_path)
    assert done.returncode == 2
    assert "--elastic needs a trace with models; sacct's output names none" in done.stderr


def test_slurms_order_beside_the_policys(tmp_path: Path) -> None:
    words = ("mixed_60", *_SMALL, "--order", "slurm", "--unmanaged-share", "0.5", "--typed")
    done = hadar(*words, "--policy", "plain", "--policy", "fifo", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain, fifo = json.loads(done.stdout)["result"]
    assert plain["order"] == fifo["order"] == "slurm" and plain["policy"] == "plain"
    assert plain["finished"] == fifo["finished"] == 60
    assert plain["moves"] == 0 and plain["decide_s_mean"] is None
    assert plain["managed_jct_h"] != fifo["managed_jct_h"]
    shown = hadar(*words, "--policy", "plain", "--report", "page.html", cwd=tmp_path)
    assert "UNMANAGED h" in shown.stdout and "slurm" in shown.stdout
    assert "Slurm&#39;s order" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--order", "slurm", "--nic-gbps", "10"), "--order slurm knows no"),
        (("--order", "slurm", "--round", "0"), "with --order slurm it must be above 0"),
        (("--order", "slurm", "--unmanaged-share", "2"), "it must be 0 to 1"),
        (("--order", "slurm", "--max-wait", "inf"), "--max-wait inf: it must be 0 s to 1e9 s"),
        (("--typed",), "need --order slurm"),
        (("--max-wait", "60"), "need --order slurm"),
        (("--policy", "plain"), "plain"),
    ],
)
def test_what_slurms_order_does_not_know(refused, words, said) -> None:
    done = refused("mixed_60", *_SMALL, *words)
    assert said in done.err and not done.out
