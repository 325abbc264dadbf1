import io

import pytest
from rich.console import RenderableType
from synthetic_runs import run as synthetic_run

from slurm_hadar.reports import compare, formats, text
from slurm_hadar.reports.text import Explanation, MoveRow, RateRow, StatusRow

ROW = StatusRow(
    id="84_2",
    user="ada",
    name="train[bold]x\x1b[31m",
    state="RUNNING",
    here={"v100": 2},
    nodes="v1",
    planned={"p100": 1},
    done=0.42,
    samples_per_s=1236.5,
    moves=3,
    reason="moves to p100: saves 12 min",
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(what: RenderableType, file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    text.console(file, width=160).print(what)
    return file.getvalue()


def test_status_shows_each_job_on_a_line() -> None:
    out = shown(text.status([ROW, StatusRow("85", "bob", "b", "PENDING", reason="no room")], ["!"]))
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:4] == ["JOB", "USER", "NAME", "STATE"]
    assert lines[1][:2] == ["84_2", "ada"]
    assert "42%" in lines[1] and "1,236" in lines[1]
    assert lines[2][:2] == ["85", "bob"] and "room" in lines[2]
    assert lines[-1] == ["!"]


def test_names_can_neither_colour_nor_style() -> None:
    out = shown(text.status([ROW]))
    assert "train[bold]x [31m" in out
    assert "\x1b" not in out


def test_no_colour_outside_a_terminal_nor_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[32m" in shown(text.status([ROW]), _Terminal())
    assert "\x1b" not in shown(text.status([ROW]))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(text.status([ROW]), _Terminal())


def test_no_jobs_is_said() -> None:
    assert shown(text.status([])).strip() == "No managed jobs."


def test_explain_tells_all() -> None:
    found = Explanation(
        row=ROW,
        declaration=[("model", "resnet18"), ("types", "any")],
        rates=[
            RateRow("v100", 2, 3016.0, "table (Gavel)", here=True),
            RateRow("k80", 2, 0.0, "table (Gavel)"),
        ],
        decided_s=1_700_000_000.0,
        decision="stays on 2 v100",
        reason="price 0.3, payoff 1.2",
        moves=[MoveRow(1_700_000_000.0, "move k80 -> v100", ""), MoveRow(1.0, "start", "done")],
        notes=["observe mode"],
    )
    out = shown(text.explain(found))
    for words in (
        "Job 84_2", "resnet18", "2 v100 (now)", "3,016", "cannot run", "table (Gavel)",
        "stays on 2 v100", "payoff 1.2", "under way", "observe mode", "42%, 1,23",
    ):  # fmt: skip
        assert words in out
    assert "Job 1" in shown(text.explain(Explanation(StatusRow("1", "u", "n", "PENDING"))))


def test_the_comparison_in_the_terminal_marks_the_best() -> None:
    runs = [
        synthetic_run("plain", ("v100", "p100", "k80")),
        synthetic_run("slurm-hadar", ("k80", "p100", "v100")),
    ]
    line = next(x for x in shown(compare.table(runs)).splitlines() if "Makespan" in x)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1].endswith("*") and not cells[2].endswith("*")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0, "0 s"), (59.4, "59 s"), (412, "6 min 52 s"), (3599.6, "1 h 00 min"),
     (200_000, "2 d 07 h")],
)  # fmt: skip
def test_durations(seconds: float | None, words: str) -> None:
    assert formats.duration(seconds) == words


def test_other_figures() -> None:
    assert formats.clock(80) == "1:20"
    assert formats.clock(7387) == "2:03:07"
    assert [formats.rate(r) for r in (None, 0.421, 31.46, 1240.4)] == [
        "–",
        "0.421",
        "31.5",
        "1,240",
    ]
    assert formats.gpus({"v100": 2, "k80": 1}) == "1 k80 + 2 v100"
    assert formats.percent(0.734) == "73%"
