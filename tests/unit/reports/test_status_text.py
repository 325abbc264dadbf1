import io
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import RenderableType
from synthetic_runs import run as synthetic_run

from slurm_hadar.reports import compare, formats, status, text
from slurm_hadar.reports.job_report import JobReport, Problem, format_report
from slurm_hadar.reports.status import ControllerState, GpuCounts, MovesToday, Overview
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


def shown(what: RenderableType, file: io.StringIO | None = None, width: int = 160) -> str:
    file = file or io.StringIO()
    text.console(file, width=width).print(what)
    return file.getvalue()


def lines(rows, width=None, why=False):
    return [line.plain for line in status.table(rows, width, why)]


def test_each_job_has_a_line() -> None:
    head, first, second = lines([ROW, StatusRow("85", "bob", "b", "PENDING", reason="no room")])
    assert head.split()[:4] == ["JOB", "USER", "NAME", "STATE"] and head.endswith("REASON")
    assert first.split()[:2] == ["84_2", "ada"] and "42%" in first and "1,236" in first
    assert second.split()[:2] == ["85", "bob"] and second.endswith("no room")
    assert lines([]) == ["No managed jobs."]


def test_at_80_columns_no_header_is_cut_and_the_reason_has_room() -> None:
    head, line, _ = lines([ROW, replace(ROW, id="123456_1234", name="n" * 200)], 80)
    assert "…" not in head and cell_len(head) <= 80
    assert "moves to p100: saves" in line and "RUNNING" in line and "2 v100" in line
    # The least important columns go first.
    assert "MOVES" not in head and "JOB" in head and "STATE" in head


def test_where_there_is_little_room_nothing_is_said_that_tells_nothing() -> None:
    waits = StatusRow("85", "bob", "b", "PENDING", reason="Slurm: Priority; no GPU is free")
    limit = replace(waits, reason="Slurm: QOSMaxGRESPerUser; no GPU is free")
    bare = replace(waits, reason="Slurm: Resources")
    head, *found = lines([waits, limit, bare], 80)
    assert found[0].endswith("  no GPU is free") and "Slurm: QOSMaxGRES" in found[1]
    assert found[2].endswith("  Slurm: Resources")
    # No job has a speed or a place: so there is more room for the reasons.
    assert not {"ON", "DONE", "PLANNED", "SAMPLES/S"} & set(head.split())
    assert {"ON", "DONE"} <= set(lines([waits, ROW], 80)[0].split())
    everything = lines([waits])
    assert "DONE" in everything[0] and "Slurm: Priority; no GPU" in everything[1]
    assert "Slurm: Priority; no GPU" in " ".join(lines([waits], 80, why=True))


NAMES = st.text(max_size=40) | st.text("\x00\x1b\x07\n[]mHJ\u202e\u4e2d\U0001f600", max_size=40)
ROWS = st.builds(
    StatusRow,
    id=st.from_regex(r"[1-9]\d{0,8}(_\d{1,4})?", fullmatch=True),
    user=NAMES,
    name=NAMES,
    state=st.sampled_from(["RUNNING", "PENDING", "OUT_OF_MEMORY"]),
    here=st.dictionaries(NAMES, st.integers(1, 9), max_size=3),
    reason=NAMES,
)


@settings(max_examples=30)
@given(st.lists(ROWS, max_size=5), st.integers(20, 250), st.booleans())
def test_whatever_a_job_is_called_each_line_fits_and_no_character_acts(rows, width, why) -> None:
    found = status.table(rows, width, why)
    if not why:
        assert len(found) == max(1, len(rows)) + bool(rows)
    for line in found:
        assert cell_len(line.plain) <= width
        assert not any(unicodedata.category(c) == "Cc" for c in line.plain)


def test_why_tells_the_whole_reason_below_its_job() -> None:
    long = "word " * 60
    found = lines([replace(ROW, reason=long)], 80, why=True)
    assert "REASON" not in found[0]
    assert " ".join(" ".join(found[2:]).split()) == long.strip() and len(found) > 5


def overview(**more):
    usual = {
        "observed_s": 1000.0,
        "source": status.CONTROLLER,
        "controller": ControllerState("acts", "login1", 990.0),
    }
    return Overview(**{**usual, **more})


def summed(found, now=1000.0):
    return "\n".join(line.plain for line in status.summary(found, now))


def test_the_summary_counts_gpus_jobs_moves_and_hours() -> None:
    said = summed(
        overview(
            gpus=[GpuCounts("v100", 8, 5, 2, planned=1, backfilled=2, down=1)],
            managed={"running": 3, "pending": 1},
            others={"running": 7},
            today=MovesToday({"moved": 2, "not saved": 1}, 3.25, 0.5),
            trust=2.0,
        )
    )
    for words in (
        "acts on login1, last tick 10 s ago",
        "v100: 5 used, 2 idle, 1 planned, 2 of the used backfilled, 1 down, of 8",
        "3 running, 1 pending; not managed: 7 running",
        "3 moves (2 moved, 1 not saved); 3.2 GPU-hours gained, 0.5 lost",
        "counts 2.0 times what you declare",
    ):
        assert words in said
    assert "counts as you declare it" in summed(overview(trust=1.0))
    assert "Your work" not in summed(overview())


def test_the_time_of_what_is_shown_is_said_once() -> None:
    assert summed(overview()).count("ago") == 1
    # The heartbeat is of a tick that is under way, or that failed.
    newer = ControllerState("acts", "login1", 1030.0)
    said = summed(overview(controller=newer), 1040.0)
    assert "last tick 10 s ago" in said and "As of       40 s ago: the tick since then" in said


def test_a_controller_that_answers_while_slurm_does_not_is_not_gone() -> None:
    fault = "its latest tick failed: Slurm refused a request or did not answer"
    acts = ControllerState("acts", "login1", 1590.0, fault)
    said = summed(overview(controller=acts), 1600.0)
    assert "As of       10 min 00 s ago: each tick since then failed" in said and fault in said
    silent = summed(overview(controller=ControllerState("silent", "login1", 1010.0)), 1600.0)
    assert "As of       10 min 00 s ago: the tick since then has no result yet" in silent
    assert "NO TICK on login1 since" in silent and "it answers, and may wait for Slurm" in silent
    assert "SILENT" not in silent and "goes on alone" not in silent


def test_a_silent_controller_is_a_banner() -> None:
    silent = overview(controller=ControllerState("silent", "login1", 100.0), source=status.SLURM)
    (line, *_) = status.summary(silent, 4000.0)
    assert "SILENT on login1 since" in line.plain and "1 h 05 min" in line.plain
    assert any("red" in str(span.style) for span in line.spans)
    assert "NONE: no heartbeat" in summed(overview(controller=ControllerState("never seen")))


def test_no_colour_outside_a_terminal_nor_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    line = status.table([ROW], 160)[1]
    assert "\x1b[32m" in shown(line, _Terminal())
    assert "\x1b" not in shown(line)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(line, _Terminal())


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
        reason="price 0.3, gain 1.2",
        moves=[MoveRow(1_700_000_000.0, "move k80 -> v100", ""), MoveRow(1.0, "start", "done")],
        notes=["observe mode"],
    )
    out = shown(text.explain(found))
    for words in (
        "Job 84_2", "resnet18", "2 v100 (now)", "3,016", "cannot run", "table (Gavel)",
        "stays on 2 v100", "gain 1.2", "under way", "observe mode", "42%, 1,23",
    ):  # fmt: skip
        assert words in out
    assert "Job 1" in shown(text.explain(Explanation(StatusRow("1", "u", "n", "PENDING"))))


def test_explain_gives_speeds_in_parts_of_the_fastest_where_only_those_are_known() -> None:
    how = "estimated from the GPU's specification (unknown model)"
    rows = [
        RateRow("v100", 1, None, how, relative=1.0, origin="estimate"),
        RateRow("k80", 1, None, how, relative=0.18, origin="estimate"),
    ]
    out = shown(text.explain(Explanation(ROW, rates=rows)))
    assert "OF THE FASTEST" in out and "100%" in out and "18%" in out and "SAMPLES/S" not in out
    # A controller of an earlier release says no part.
    old = [replace(row, relative=None) for row in rows]
    out = shown(text.explain(Explanation(ROW, rates=old)))
    assert "SAMPLES/S" in out and "%  " not in out.partition("Speed")[2]


def test_a_very_long_name_leaves_the_first_line_of_explain_one_line() -> None:
    row = StatusRow("162109", "ann", "sweep-" * 170, "RUNNING")
    first = shown(text.explain(Explanation(row)), width=80).splitlines()[0]
    assert first.startswith("Job 162109  sweep-") and first.rstrip().endswith("RUNNING")


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


STAYING = "stays on 2 x v100 (v1), ends in 3 min; no free placement is worth a restart of 30 s"


def test_the_reason_does_not_repeat_where_the_job_is() -> None:
    row = replace(ROW, reason=f"decided 5 s ago: {STAYING}")
    _, line = lines([row])
    assert line.endswith("decided 5 s ago: stays: ends in 3 min; " + STAYING.partition("; ")[2])
    # Below its job it is whole, and of one that waits nothing says it otherwise.
    assert STAYING in "".join(lines([row], why=True))
    assert STAYING in lines([replace(row, here={})])[1]


def test_at_80_columns_the_plan_goes_before_the_place_is_cut() -> None:
    row = replace(ROW, nodes="gpu[01-02]", name="train", moves=0)
    head, line = lines([row], 80)
    assert "PLANNED" not in head and "2 v100 (gpu[01-02])" in line
    assert "PLANNED" in lines([row], 160)[0]


def test_nothing_is_said_of_a_controller_that_acts_and_does_not_answer_at_once() -> None:
    acts = Overview(1000.0, status.SLURM, ControllerState("acts", "vm", 1000.0))
    said = "\n".join(line.plain for line in status.summary(acts, 1000.0))
    assert "acts on vm" in said and "no controller" not in said
    assert "no hadar run answered at its socket (status.socket), which is on vm" in said


def test_commands_to_paste_do_not_wrap():
    command = "run: hadar set 84_2 " + " ".join(f"option{n}=value" for n in range(40))
    row = StatusRow("1", "u", "n", "PENDING")
    found = shown(text.explain(Explanation(row, reason=command, notes=[command])), width=80)
    assert found.splitlines().count(command) == 2
    # A screen that cannot show more than its width wraps it.
    found = shown(text.explain(Explanation(row, notes=[command]), paste=False), width=80)
    assert "option39" in found and max(map(len, found.splitlines())) <= 80
    report = JobReport(
        "1", "PENDING", 0.0, now=[command], next=[command], problems=[Problem("bad", [command])],
        undo=[command],
    )  # fmt: skip
    found = shown(format_report(report), width=80)
    assert [line.strip() for line in found.splitlines()].count(command) == 4
