"""The HTML pages in a real browser, as wide as a phone and as a desk: nothing sticks out, all text
can be read, no two labels of an axis cover each other, and a long tail flattens nothing."""

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from missing import missing
from synthetic_runs import run as synthetic_run

from slurm_hadar.reports import simulation, timeline, tuning, usage
from slurm_hadar.reports.run import JobTimes, TimelineSegment
from slurm_hadar.reports.simulation import Simulated
from slurm_hadar.reports.usage import AccountUse, GroupUse, UsageReport

LONG = "a_policy_or_account_with_a_name_that_no_line_of_a_phone_has_the_space_for"
PHONE, DESK = 390, 1280
SCRIPT = """
const read = (frame) => {
  const view = frame.contentWindow, page = frame.contentDocument;
  const shown = (node) => node.getClientRects().length > 0;
  const small = [], covered = [];
  // Only a timeline may be wider than its card, and be moved in it.
  const cut = [...page.querySelectorAll(".card, .card.scroll")].filter(
    (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 40));
  for (const node of page.querySelectorAll("main *")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!own || !shown(node) || node.localName === "title") continue;
    let size = parseFloat(view.getComputedStyle(node).fontSize);
    if (node.ownerSVGElement) size *= node.getScreenCTM().d;
    if (size < 9.5) small.push([node.textContent.trim().slice(0, 30), size]);
  }
  for (const plot of page.querySelectorAll(".plot")) {
    const boxes = [...plot.querySelectorAll(".x")].filter(shown);
    boxes.map((one) => one.getBoundingClientRect()).reduce((before, now) => {
      if (now.left < before.right + 2) covered.push([before.right, now.left]);
      return now;
    });
  }
  return { width: page.documentElement.scrollWidth, small, covered, cut,
           plots: page.querySelectorAll(".plot").length };
};
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(read);
  document.querySelector("pre").textContent = JSON.stringify(found);
});
"""


class Replayed:
    """A replay of 9 days in which one hour is a hundred times the others."""

    def __init__(self):
        self.policy = LONG
        self.best_by_slice = {hour: 3.6e6 * (100 if hour == 30 else 1) for hour in range(216)}
        self.done_by_slice = {hour: 3e6 * (100 if hour == 30 else 1) for hour in range(216)}

    def summary(self):
        return {key: 1 if "{:,}" in form else 0.5 for key, _, form in simulation._IDLE_COLUMNS}


def simulated(policy, tail_h=400.0):
    hours = [float(at) for at in range(50)]
    summary = {"policy": policy, "jobs": 1000, "finished": 1000, "avg_jct_h": 1234.5,
               "makespan_h": tail_h, "moves": 123_456, "decide_s_max": 0.5}  # fmt: skip
    begin, end = [3600 * at for at in hours], [3600 * (at + 1) for at in hours]
    return Simulated(policy, summary, [60.0 * 1.2**at for at in range(60)],
                     [*begin, 3600 * 50], [*end, 3600 * tail_h],
                     [8 * 3600.0] * 50 + [3600.0], 8)  # fmt: skip


def with_tail(name):
    run = synthetic_run(name, ("v100", "p100", "k80"), moves=True, jobs=120)
    end = 20 * max(one.end_s for one in run.segments)
    return replace(
        run,
        segments=(*run.segments, TimelineSegment("tail", LONG, "k1", (0,), end / 2, end, 0, "k80")),
        jobs=(*run.jobs, JobTimes("tail", LONG, 0.0, end, True)),
    )


def account(name, received=100.0):
    return AccountUse(name, 12, 12_345, 1e6, 9_999, 3, 3600.0, 1e5, received, 1.0, 50.0, 20.0, 12,
                      3.0, 1.0, 44.4, 50.0, 17.8)  # fmt: skip


def tuned():
    use = {"gpus": 8, "offered_gpu_h": 1e6, "used_gpu_h": 5e5, "idle_gpu_h": 5e5,
           "idle_share": 0.5, "idle_while_others_waited_gpu_h": 1e5}  # fmt: skip
    types = [{"type": kind, **use} for kind in ("v100", LONG)]
    line = f"PartitionName={LONG} Nodes={LONG} PriorityTier=10 MaxTime=UNLIMITED"
    return {
        "site": {"gpus": {"v100": 8}, "nodes": 2}, "history": None, "gpu_types": types,
        "waits": [], "policies": [], "fine": [LONG], "notes": [LONG], "slurm_conf": [],
        "advice": [{"topic": "a topic", "why": LONG, "gain": LONG, "basis": "simulated",
                    "slurm_conf": [{"line": line, "where": "line 12"}], "hadar_toml": [line]}],
    }  # fmt: skip


PAGES = {
    "demo": lambda: timeline.page([with_tail("as submitted"), with_tail(LONG)], "A demo", [LONG]),
    "simulate": lambda: simulation.page([simulated("hadar"), simulated(LONG)], LONG, [LONG]),
    "idle": lambda: simulation.idle_page([Replayed(), Replayed()], "idle nodes"),
    "tune": lambda: tuning.page(tuned()),
    "report": lambda: usage.page(
        UsageReport(1e9, 1.1e9, [account("phys"), account(LONG, 1.0)], account("all"), 400.0,
                    [GroupUse(account("managed"), 0.5)], [LONG])
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """What a browser shows of all pages at both widths, in one start of it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        missing("chromium is not installed; apt-get install chromium")
    folder = tmp_path_factory.mktemp("pages")
    views = [(name, width) for name in PAGES for width in (PHONE, DESK)]
    frames = "".join(
        f'<iframe width="{width}" height="900" style="border:0" '
        f'srcdoc="{html.escape(PAGES[name]())}"></iframe>'
        for name, width in views
    )
    page = folder / "all.html"
    page.write_text(f"<meta charset=utf-8><pre></pre>{frames}<script>{SCRIPT}</script>")
    as_root = ["--no-sandbox"] if not os.getuid() else []
    argv = [
        browser, "--headless", "--disable-gpu", "--no-first-run", "--virtual-time-budget=20000",
        f"--user-data-dir={folder}/profile", "--dump-dom", *as_root, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    found = re.search(r"<pre>(\[.*?\])</pre>", done.stdout, re.S)
    assert found, done.stderr[-2000:]
    return dict(zip(views, json.loads(html.unescape(found[1])), strict=True))


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read(looked, name, width):
    seen = looked[name, width]
    assert seen["width"] <= width
    assert seen["small"] == [] and seen["covered"] == []
    # At a desk a table with long names may be moved in its card.
    assert width == DESK or seen["cut"] == []
    assert seen["plots"] == {"simulate": 2, "idle": 1}.get(name, 0)


def test_a_long_tail_is_cut_and_said():
    text = PAGES["simulate"]()
    assert "a few jobs run until 16 d 16 h" in text
    used = re.findall(r'class="line" d="([^"]+)"', text)[-1]
    assert 900 < max(float(x) for x in re.findall(r"[ML]([\d.]+)", used)) <= 1000
    text = PAGES["idle"]()
    assert "a few hours reach" in text
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", text)]
    # All hours but one are drawn in the upper part, that one at the top.
    assert sorted(heights)[0] == 0 and sorted(heights)[-1] < 100
    text = PAGES["demo"]()
    assert "Cut at the right" in text
    bars = re.findall(r'</title><rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)
    ends = sorted(float(x) + float(width) for x, width in bars)
    # The whole of it would leave a twentieth of the width to all but one.
    assert len(ends) > 200 and ends[len(ends) // 2] > 500 and ends[-1] <= 1160
    assert "Cut at" not in simulation.page([simulated("a", 51.0)], "t")
