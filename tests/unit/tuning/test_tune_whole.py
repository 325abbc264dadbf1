"""``hadar tune`` from end to end on histories whose right advice is known."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import made_history
import pytest
from hadar_program import run_hadar
from html_tags import Tags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import config
from slurm_hadar.cli.main import main
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles import cpu_table
from slurm_hadar.reports import tuning as shown
from slurm_hadar.reports.text import console
from slurm_hadar.tuning import conf, site, sources, study
from slurm_hadar.tuning.draft import applied
from slurm_hadar.tuning.replay import ANY, OWN

WISH = sources.TuneRequest(("srtf",), 60, 60.0, 60.0, 0.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "slurm.conf").write_text(made_history.CONF)
    (tmp_path / "past").write_text(made_history.queue_behind_v100(60))
    (tmp_path / "calm").write_text(made_history.everybody_at_once())
    return tmp_path


def tuned(place: Path, past: str, toml: str = "") -> dict:
    own = config.parse(toml, "hadar.toml") if toml else None
    found, notes = sources.of_history(place / past, place / "slurm.conf", None, own, WISH)
    return study.result(found, study.advise(found), notes)


def test_who_waits_for_v100_while_k80_idle_is_advised_to_open_both(place: Path) -> None:
    done = run_hadar(place, "tune", "past", "--slurm-conf", "slurm.conf", "--policy", "srtf",
                 "--report", "page.html", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["command"]) == (1, "tune")
    result = answer["result"]
    (wait,) = result["waits"]
    assert wait["type"] == "v100" and wait["waited_while_free_h"]["k80"] > 100
    runs = {one["policy"]: one for one in result["policies"]}
    # The replay of what was is what was: nobody overtakes here, and nothing else is in the way.
    assert runs[OWN]["avg_jct_h"] == pytest.approx(runs["as recorded"]["avg_jct_h"], rel=0.02)
    assert runs[ANY]["avg_jct_h"] < 0.75 * runs[OWN]["avg_jct_h"]
    # Where all ask for one type, each that opts in leaves it to the others.
    some = [runs[f"srtf{words}"]["avg_jct_h"] for words in (", 10% opt in", ", 30% opt in", "")]
    assert runs[OWN]["avg_jct_h"] > some[0] > some[1] > some[2]
    first = result["advice"][0]
    assert (first["topic"], first["basis"]) == ("GPU types", "simulated")
    assert first["slurm_conf"][0]["line"].startswith("PartitionName=gpu Nodes=k[1-4],v[1-2] ")
    assert first["hadar_toml"] == ["[partitions.groups]", 'gpu = ["v100", "k80"]']
    assert (
        f"{runs[ANY]['avg_jct_h']:.2f} h instead of {runs[OWN]['avg_jct_h']:.2f} h" in first["gain"]
    )
    idle = next(one for one in result["advice"] if one["topic"] == "idle nodes")
    assert idle["basis"] == "measured"
    for one in result["advice"]:
        config.parse("\n".join(one["hadar_toml"]), "advice")
    assert {row["account"] for row in runs[ANY]["accounts"]} == {"bio", "nlp", "vision"}
    used = next(one for one in result["gpu_types"] if one["type"] == "v100")["used_gpu_h"]
    assert runs["as recorded"]["gpu_h"] == pytest.approx(used)
    assert "PartitionName=gpu" in (place / "page.html").read_text()
    text = run_hadar(place, "tune", "past", "--slurm-conf", "slurm.conf", "--policy", "srtf").stdout
    assert "1. GPU types" in text and "PartitionName=idle" in text


def test_the_advice_once_taken_is_not_given_again(place: Path) -> None:
    found, _ = sources.of_history(place / "past", place / "slurm.conf", None, None, WISH)
    study.advise(found)
    text = applied(made_history.CONF, found.draft.everything())
    after = site.of_conf(conf.parse(text, place / "slurm.conf"))
    tiers = {p.name: (p.priority_tier, p.preempt_mode) for p in after.partitions}
    assert tiers == {
        "v100": (10, "OFF"), "k80": (10, "OFF"), "gpu": (10, "OFF"), "idle": (1, "REQUEUE"),
    }  # fmt: skip
    (place / "slurm.conf").write_text(text)
    again = tuned(place, "past")
    assert [one["topic"] for one in again["advice"]] == ["GPU types"]
    assert again["slurm_conf"] == []


def test_a_job_name_in_another_encoding_costs_no_history(place: Path) -> None:
    """sacct prints what the user typed; UTF-16, as some editors save, still ends in the cure."""
    past = (place / "past").read_text()
    row = past.splitlines()[1]
    line = row.rpartition("|")[0].encode() + b"|caf\xe9"
    (place / "latin").write_bytes(past.encode().replace(row.encode(), line, 1))
    assert tuned(place, "latin")["policies"] == tuned(place, "past")["policies"]
    (place / "wide").write_bytes(past.encode("utf-16"))
    done = run_hadar(place, "tune", "wide", "--slurm-conf", "slurm.conf")
    assert done.returncode == 2 and "make it with: sacct " in done.stderr


def test_a_site_where_nobody_waits_is_reported(place: Path) -> None:
    text = made_history.CONF.replace("MaxTime=2-0", "MaxTime=2-0 DefCpuPerGPU=6 DefMemPerGPU=60000")
    (place / "slurm.conf").write_text(text)
    result = tuned(place, "calm")
    assert result["advice"] == [] and result["slurm_conf"] == []
    assert len(result["fine"]) >= 7
    done = run_hadar(place, "tune", "calm", "--slurm-conf", "slurm.conf", "--policy", "srtf")
    assert "No advice." in done.stdout


def test_a_site_with_the_group_gets_no_advice_on_it(place: Path) -> None:
    text = made_history.CONF + "PartitionName=both Nodes=ALL MaxTime=2-0\n"
    (place / "slurm.conf").write_text(text)
    advice = next(one for one in tuned(place, "past")["advice"] if one["topic"] == "GPU types")
    assert advice["slurm_conf"] == [] and advice["basis"] == "simulated"
    assert advice["hadar_toml"] == ["[partitions.groups]", 'both = ["v100", "k80"]']
    again = tuned(place, "past", "\n".join(advice["hadar_toml"]))
    assert "GPU types" not in [one["topic"] for one in again["advice"]]


def test_partitions_that_differ_get_a_common_one_and_no_group(place: Path) -> None:
    text = made_history.CONF.replace("Nodes=v[1-2]", "Nodes=v[1-2] PriorityTier=3")
    (place / "slurm.conf").write_text(text)
    advice = next(one for one in tuned(place, "past")["advice"] if one["topic"] == "GPU types")
    assert advice["slurm_conf"][0]["line"].startswith("PartitionName=gpu Nodes=k[1-4],v[1-2] ")
    assert advice["hadar_toml"] == [] and "k80 has another PriorityTier than gpu" in advice["why"]


def test_more_cpus_are_simulated_where_the_models_are_known(place: Path) -> None:
    """All had 4 CPUs a GPU, with 8 they would be twice as fast, and nobody waits for anybody."""
    rows = [("resnet50", 1, cpus, gb, cpus) for cpus in (4.0, 8.0) for gb in (8.0, 64.0)]
    (place / "cpus.json").write_text(cpu_table.text(rows, {"source": "site"}))
    own = config.parse(
        f'[profiles]\ncpu_tables = ["{place}/cpus.json"]\n'
        '[simulation.job_names]\n"tr*" = "resnet50"\n',
        "hadar.toml",
    )
    found, notes = sources.of_history(place / "calm", place / "slurm.conf", None, own, WISH)
    result: Any = study.result(found, study.advise(found), notes)
    advice = next(one for one in result["advice"] if one["topic"].startswith("DefCpuPerGPU"))
    assert all("DefCpuPerGPU=8" in line["line"] for line in advice["slurm_conf"])
    assert advice["basis"] == "simulated"
    assert advice["gain"].startswith("mean job time 2.50 h instead of 5.00 h (-50%)")
    assert "24 of them with more CPUs" in advice["gain"]


def test_owners_nodes_are_opened_to_nobody(place: Path) -> None:
    text = made_history.CONF.replace("Nodes=k[1-4]", "Nodes=k[1-4] AllowGroups=owners")
    (place / "slurm.conf").write_text(text)
    result = tuned(place, "past")
    assert "GPU types" not in [one["topic"] for one in result["advice"]]
    assert not [line for line in result["slurm_conf"] if "PartitionName=gpu" in line["line"]]


def test_a_policy_that_runs_out_of_time_is_reported_and_judged_by_nothing(place: Path) -> None:
    found, notes = sources.of_history(
        place / "past", place / "slurm.conf", None, None,
        sources.TuneRequest(("srtf",), 60, 0.0, 60.0, 0.0),
    )  # fmt: skip
    result: Any = study.result(found, study.advise(found), notes)
    assert all("out of time" in one["why_not"] for one in result["policies"][1:])
    assert "GPU types" not in [one["topic"] for one in result["advice"]]
    assert all(one["basis"] != "simulated" for one in result["advice"])


def test_nodes_alone_are_enough_for_the_figures(place: Path) -> None:
    sinfo = "NODELIST|GRES|CPUS|MEMORY|AVAIL_FEATURES|PARTITION\n"
    sinfo += "v[1-2]|gpu:v100:4|32|256000|v100|v100\nk[1-4]|gpu:k80:4|32|256000|k80|k80\n"
    (place / "nodes").write_text(sinfo)
    found, notes = sources.of_history(place / "past", None, place / "nodes", None, WISH)
    result: Any = study.result(found, study.advise(found), notes)
    assert len(result["gpu_types"]) == 2 and len(result["policies"]) == 6
    assert any("slurm.conf" in line for line in result["fine"])
    assert result["slurm_conf"] == []


def test_the_simulators_own_output(place: Path) -> None:
    words = ("--cluster", "v100=8,p100=8,k80=8")
    more = ("--policy", "fifo", "--round", "0", "--jct-out", "fifo.csv")
    made = run_hadar(place, "simulate", "jobs", "mixed_60", *words, *more)
    assert made.returncode == 0, made.stderr
    done = run_hadar(place, "tune", "--jct", "fifo.csv", "--trace", "mixed_60", *words, "--policy",
                 "srtf", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["policies"][0]["policy"] == "fifo"
    assert result["policies"][0]["finished"] == 60
    assert result["gpu_types"] == []
    wrong = run_hadar(place, "tune", "--jct", "fifo.csv", "--trace", "trace_120", *words)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("past", "--slurm-conf", "gone"), "cannot be read"),
        (("gone", "--slurm-conf", "slurm.conf"), "hadar: gone: no such file\n"),
        (("past", "--slurm-conf", "past"), "past shows no node with GPUs; there is nothing to"),
        (("slurm.conf", "--slurm-conf", "slurm.conf"), "not what sacct -P prints"),
        (("past", "--slurm-conf", "slurm.conf", "--since", "soon"), "no time before now"),
        (("past", "--slurm-conf", "slurm.conf", "--since", ""), "no time before now"),
        (("past", "--slurm-conf", "slurm.conf", "--since", "0d"), "no time before now"),
        (("past", "--slurm-conf", "slurm.conf", "--policy", "best"), "no policy 'best'"),
        (("past", "--slurm-conf", "slurm.conf", "--report", "no/where"), "cannot be written"),
        (("--trace", "mixed_60"), "go with --jct"),
    ],
)
def test_slips_are_one_sentence(
    place: Path,
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HADAR_CONFIG", str(place / "none.toml"))
    monkeypatch.setattr("sys.argv", ["hadar", "tune", *words])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and not said.out
    assert says in said.err and said.err.count("\n") == 1


def test_the_page_loads_nothing_runs_nothing_and_escapes_names(place: Path) -> None:
    plain = shown.page(tuned(place, "past"))
    hostile = made_history.queue_behind_v100(60).replace("|nlp|", "|<script src=x>{{7*7}}|")
    (place / "past").write_text(hostile)
    text = shown.page(tuned(place, "past"))
    tags = Tags(text).tags
    assert [tag for tag, _ in tags] == [tag for tag, _ in Tags(plain).tags]
    assert "//" not in text.replace(str(place), "") and "{{7*7}}" in text
    assert not [t for t, a in tags if t == "script" or {"src", "href"} & a.keys()]
    (rule,) = [a["content"] for t, a in tags if t == "meta" and "http-equiv" in a]
    assert rule and rule.startswith("default-src 'none'")


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(max_size=12), min_size=14, max_size=14), st.integers(0, 13))
def test_hostile_cells_end_in_text_and_page(place: Path, cells: list[str], kept: int) -> None:
    """A line of which one cell, or all, are anything at all, among good ones."""
    good = made_history.line(900, 0, 1, 2).split("|")
    one = [*good[:kept], cells[kept].replace("\n", ""), *good[kept + 1 :]]
    past = made_history.text(
        made_history.line(901, 0, 1, 2), made_history.line(902, 0, 1, 3), "|".join(one),
        "|".join(cells).replace("\n", ""),
    )  # fmt: skip
    (place / "odd").write_text(past, newline="")
    wish = sources.TuneRequest((), 10, 60.0, 60.0, 0.0)
    try:
        found, notes = sources.of_history(place / "odd", place / "slurm.conf", None, None, wish)
    except UsageError as error:
        assert str(error).isprintable()
        return
    result: Any = study.result(found, study.advise(found), notes)
    json.dumps(result)
    assert "Advice for" in shown.page(result)
    console(StringIO()).print(shown.text(result))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [StringIO, Terminal])
@pytest.mark.parametrize("width", [40, 80, None])
def test_lines_to_paste_do_not_wrap(kind, width, monkeypatch):
    """A comment that wrapped left the path of slurm.conf on a line of its own, which Slurm takes
    for a setting."""
    monkeypatch.setenv("NO_COLOR", "1")
    old = "PartitionName=gpu Nodes=" + ",".join(f"node{n}" for n in range(40)) + " State=UP"
    where = "in place of line 56 of /" + "/".join(["a-long-folder"] * 12) + "/slurm.conf"
    lines = [{"line": old, "where": where}, {"line": "SchedulerParameters=x", "where": where}]
    toml = 'groups.gpu = "' + "v100," * 60 + '"'
    result = {
        "site": {"gpus": {}, "nodes": 0}, "history": None, "gpu_types": [], "waits": [],
        "policies": [], "slurm_conf": lines, "fine": [], "notes": [],
        "advice": [{"topic": "a", "why": "b", "gain": "c", "slurm_conf": lines,
                    "hadar_toml": [toml]}],
    }  # fmt: skip
    file = kind()
    console(file, width=width).print(shown.text(result))
    printed = file.getvalue().splitlines()
    for one in (f"     {old}", f"       slurm.conf, {where}", f"     {toml}",
                *(f"  {line['line']}   # {where}" for line in lines)):  # fmt: skip
        assert one in printed


def in_words(result: dict, width: int) -> list[str]:
    file = Terminal()
    console(file, width=width).print(shown.text(result))
    return file.getvalue().splitlines()


def test_a_narrow_terminal_breaks_no_word(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns the names of policies were cut into pieces of five letters."""
    monkeypatch.setenv("NO_COLOR", "1")
    result = tuned(place, "past")
    wide, narrow = in_words(result, 200), in_words(result, 80)
    words = {word for line in wide for word in line.split()}
    assert {"recorded", "MAKESPAN", "FAIRNESS"} <= words
    for line in narrow:
        assert set(line.split()) <= words
    assert max(len(line.rstrip()) for line in narrow[: narrow.index("Advice")]) <= 80


def test_why_a_policy_has_no_figures_stands_below_the_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    result = tuned(place, "past")
    none = [one for one in result["policies"] if one["policy"] != "as recorded"]
    for one in none:
        one["why_not"] = "out of time; take fewer jobs"
    lines = in_words(result, 200)
    (said,) = [line for line in lines if "out of time" in line]
    assert said == f"  {', '.join(one['policy'] for one in none)}: out of time; take fewer jobs"
    row = next(line for line in lines if line.startswith("  srtf "))
    assert set(row.split()) == {"srtf", "–"}
    assert said.strip() in shown.page(result)
