"""The live page in a browser, before a real Slurm and a controller that dies and comes back."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "web"))
from page_service import HADAR, browser

from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

HBATCH = HADAR.with_name("hbatch")
WAIT_MS = 240_000
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1
#HADAR types=any model=transformer samples=400000 checkpoint=restart lose=600
exec sleep 900
"""


@pytest.fixture
def box(make_sandbox):
    return make_sandbox(
        options=SandboxOptions(
            mode="act",
            settings={
                "guards": {"min_between_moves_s": 0.0},
                "moving": {"settle_s": 1.0},
                "controller": {"interval_s": 1.0},
            },
        )
    )


class Site:
    """Its programs, in the order in which a test starts them."""

    def __init__(self, box, stack, folder):
        self.box, self._stack, self._folder = box, stack, folder
        self.env = {**os.environ, **box.env}
        self.started = 0

    def sbatch(self, *words, program="sbatch", script=None):
        argv = [program, "--parsable", "-o", "/dev/null", *words]
        done = subprocess.run(
            argv, env=self.env, cwd=self._folder, input=script, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def controller(self):
        self.started += 1
        log = (self._folder / f"run{self.started}.log").open("w")
        process = subprocess.Popen([HADAR, "run"], env=self.env, stdout=log, stderr=log)
        self._stack.callback(log.close)
        self._stack.callback(process.wait, 60)
        self._stack.callback(process.terminate)
        return process

    def page(self):
        process = subprocess.Popen(
            [HADAR, "web", "--port", "0"], env=self.env, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.wait, 60)
        self._stack.callback(process.terminate)
        return process.stdout.readline().split()[-1]


def test_a_job_and_its_controller_are_followed_from_the_first_look_to_a_move(box, tmp_path):
    with ExitStack() as stack:
        site = Site(box, stack, tmp_path)
        tab = stack.enter_context(browser()).new_page()
        tab.set_default_timeout(WAIT_MS)
        others = [
            site.sbatch("-p", kind, "-N", "1", "--exclusive", f"--gres=gpu:{kind}:1",
                        "--wrap", "exec sleep 900")
            for kind, nodes in kinds(box)
            if kind in ("v100", "p100")
            for _ in range(nodes)
        ]  # fmt: skip
        url = site.page()
        # No controller has run yet: the queue is Slurm's.
        tab.goto(url)
        state = tab.locator("#state")
        state.get_by_text("No controller answers here").wait_for()
        state.get_by_text("the queue as Slurm shows it").wait_for()
        assert tab.locator("#rows tr").count() == 0

        first = site.controller()
        state.get_by_text("Controller acts").wait_for()
        tab.evaluate("document.title = 'never loaded again'")
        job = site.sbatch("-J", "bert <b>", "-p", "p100,v100", program=HBATCH, script=SCRIPT)
        row = tab.locator(f"#job-{job}")
        row.get_by_text("PENDING").wait_for()
        row.get_by_text("bert <b>").wait_for()
        row.get_by_text("Slurm: ").wait_for()

        # Where a p100 is freed it starts, and where a v100 is freed it moves.
        kind_of = dict(line.split() for line in box.run("squeue", "-h", "-o", "%i %P").splitlines())
        for kind in ("p100", "v100"):
            box.run("scancel", next(id_ for id_ in others if kind_of[id_] == kind))
            tab.wait_for_function(
                "([id, kind]) => {"
                " const cells = document.querySelector(`#job-${id}`)?.querySelectorAll('td');"
                " return cells && cells[2].textContent.includes('RUNNING')"
                " && cells[3].textContent.includes(kind); }",
                arg=[job, kind],
                timeout=WAIT_MS,
            )
        row.locator("td").nth(8).get_by_text("1", exact=True).wait_for()

        first.send_signal(signal.SIGKILL)
        state.get_by_text("No controller answers here").wait_for()
        # Slurm's own queue goes on below.
        box.run("scancel", job)
        site.controller()
        state.get_by_text("Controller acts").wait_for()
        row.wait_for(state="detached")
        assert tab.title() == "never loaded again"

        # The day before the restart is still there, with the move.
        tab.goto(f"{url}timeline")
        bars = tab.locator(f'#day a[href$="jobs/{job}"] rect')
        assert bars.count() == 2 and bars.first.get_attribute("class") != bars.last.get_attribute(
            "class"
        )
        assert tab.locator("#moves tbody tr").count() == 1
        assert tab.locator("#moves").get_by_text("moved").count()


def kinds(box):
    """(partition, its nodes)."""
    found = [line.split() for line in box.run("sinfo", "-h", "-o", "%R %D").splitlines()]
    return [(name, int(nodes)) for name, nodes in found]
