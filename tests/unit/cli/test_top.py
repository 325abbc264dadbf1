"""``hadar top``: by textual's own pilot, and in a real terminal of tmux."""

import asyncio
import io
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from slurm_hadar.cli.job_filter import Choice
from slurm_hadar.cli.main import app
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.status import CONTROLLER, ControllerState, GpuCounts, Overview
from slurm_hadar.reports.text import Explanation, StatusRow

pytest.importorskip("textual")
from textual.widgets import Input, OptionList, Static

from slurm_hadar.cli.top_view import Feed, TopView

EVIL = "[bold red]x[/]\x1b[2J\x1b]0;owned\x07\r\n[@click=app.quit]y[/]"
ROWS = [
    StatusRow("9", "bob", "zeta", "PENDING", planned={"k80": 2}, account="phys", raw_id=9),
    StatusRow("84_2", "ann", EVIL, "RUNNING", {"v100": 1}, "v1", {}, 0.5, reason=EVIL, raw_id=86),
    StatusRow("100", "ann", "mid", "PENDING", account="phys", raw_id=100, reason="Priority"),
]
FOUND = Overview(
    1000.0, CONTROLLER, ControllerState("acts", "h", 990.0),
    gpus=[GpuCounts("v100", 2, 1, 1), GpuCounts("k80", 2, 0, 2)], rows=ROWS,
)  # fmt: skip


def explained(job):
    if job == "9":
        raise HadarError("job 9 is another user's")
    return Explanation(row=next(row for row in ROWS if row.id == job), reason=f"because {EVIL}")


def view(found=FOUND, first=FOUND, **more):
    def overview():
        if isinstance(found, Exception):
            raise found
        return found

    return TopView(Feed(overview, explained, **more), Choice(), first)


def driven(top, steps, size=(100, 30)):
    """What ``steps`` give with the view on a screen of that size."""

    async def run():
        async with top.run_test(size=size) as pilot:
            await pilot.pause(0.2)
            return await steps(top, pilot)

    return asyncio.run(run())


def listed(top):
    jobs = top.screen_stack[0].query_one(OptionList)
    return [jobs.get_option_at_index(n).id for n in range(jobs.option_count)]


def shown(top, name):
    return str(top.screen.query_one(name, Static).content)


def test_jobs_are_listed_sorted_and_filtered_by_keys():
    async def steps(top, pilot):
        assert listed(top) == ["9", "84_2", "100"]
        await pilot.press("r")
        assert listed(top) == ["100", "84_2", "9"]
        await pilot.press("r", "s")
        assert listed(top) == ["84_2", "100", "9"] and "by user" in shown(top, "#summary")
        await pilot.press("slash", *"phys")
        assert listed(top) == ["100", "9"] and "2 of 3" in shown(top, "#summary")
        await pilot.press("enter", "q")
        assert top.return_code == 0
        return True

    assert driven(view(), steps)


def test_escape_shows_all_again_and_typing_sorts_nothing():
    async def steps(top, pilot):
        await pilot.press("slash", "s", "r", "q", "escape")
        assert listed(top) == ["9", "84_2", "100"]
        assert "by job " in shown(top, "#summary") + " "
        assert not top.query_one(Input).display
        return True

    assert driven(view(), steps)


def test_a_job_is_explained_and_what_is_refused_is_said():
    async def steps(top, pilot):
        await pilot.press("down", "enter")
        await pilot.pause(0.3)
        console = Console(width=200, file=io.StringIO(), record=True)
        console.print(top.screen.query_one("#explanation", Static).content)
        text = console.export_text()
        assert "because" in text and "\x1b" not in text
        # The jobs below are looked at meanwhile.
        top._look()
        await pilot.pause(0.3)
        await pilot.press("escape")
        await pilot.press("up", "enter")
        await pilot.pause(0.3)
        assert "another user's" in shown(top, "#explanation")
        return True

    assert driven(view(), steps)


def test_a_slurm_that_does_not_answer_leaves_the_last_look_and_says_so():
    async def steps(top, pilot):
        assert listed(top) == ["9", "84_2", "100"]
        assert "Slurm is away" in shown(top, "#summary")
        return True

    assert driven(view(HadarError("Slurm is away")), steps)


def test_ctrl_c_ends_it():
    async def steps(top, pilot):
        await pilot.press("ctrl+c")
        return top.return_code

    assert driven(view(OSError("no access")), steps) == 0


def test_without_a_choice_a_user_sees_their_own_jobs():
    async def steps(top, pilot):
        return listed(top)

    assert driven(view(own="bob"), steps) == ["9"]


def test_five_thousand_jobs_are_shown_in_time():
    many = replace(FOUND, rows=[replace(ROWS[2], id=str(n), raw_id=n) for n in range(1, 5001)])

    async def steps(top, pilot):
        began = time.perf_counter()
        top._show()
        return len(listed(top)), time.perf_counter() - began

    count, took = driven(view(many, many), steps)
    assert count == 5000 and took < 10


@pytest.mark.parametrize(
    ("words", "says"),
    [((), "needs a terminal"), (("--sort", "x"), "--sort takes"), (("--every", "1"), "--every")],
)
def test_what_it_cannot_do_is_one_sentence(tmp_path, words, says):
    site = tmp_path / "hadar.toml"
    site.write_text(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    done = CliRunner().invoke(app, ["top", "-c", str(site), *words])
    assert isinstance(done.exception, HadarError) and says in str(done.exception)


@pytest.mark.skipif(
    shutil.which("tmux") is None,
    reason="tmux is not installed, and the view is compared in a real terminal",
)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_it_fits_a_terminal_and_hostile_names_do_nothing(tmp_path, width, height):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_top as t"
    )
    program += "; t.view().run()"
    tmux = ["tmux", "-S", str(tmp_path / "tmux")]

    def screen():
        done = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True)
        return done.stdout

    def until(words):
        for _ in range(600):
            if words in (found := screen()):
                return found
            time.sleep(0.1)
        raise AssertionError(screen())

    size = ["-x", str(width), "-y", str(height)]
    # Where these are set they count, not the terminal.
    command = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", sys.executable, "-c", program])
    subprocess.run([*tmux, "new-session", "-d", *size, f"{command}; sleep 60"], check=True)
    try:
        until("84_2")
        # It may be drawn for a smaller screen first.
        found = until("PLANNED" if width == 200 else "REASON")
        lines = found.split("\n")
        assert all(len(line) <= width for line in lines) and len(lines) <= height + 1
        assert "[bold red]x[/]" in found and "REASON" in found and "acts on h" in found
        assert ("PLANNED" in found) == (width == 200)
        title = subprocess.run(
            [*tmux, "display-message", "-p", "#{pane_title}"], capture_output=True, text=True
        )
        assert "owned" not in title.stdout
        subprocess.run([*tmux, "send-keys", "Down", "Enter"], check=True)
        assert "because [bold red]x[/]" in until("because")
        subprocess.run([*tmux, "send-keys", "Escape"], check=True)
        until("REASON")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
