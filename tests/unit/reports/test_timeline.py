import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape
from synthetic_runs import run as synthetic_run

from slurm_hadar.reports import drawing
from slurm_hadar.reports.run import ClusterGpu, JobTimes, Run, TimelineSegment
from slurm_hadar.reports.timeline import page

ORDER = ("v100", "p100", "k80")


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_asks_nothing_of_the_network() -> None:
    text = page([synthetic_run("a", ORDER), synthetic_run("b", ORDER, moves=True)], "t", ["n"])
    assert "//" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    tags = _Elements(text).tags
    assert not [t for t, a in tags if {"src", "href", "srcset", "data", "xlink:href"} & a.keys()]
    assert not re.search(r"url\(|@import|fetch\(|import\(", text)
    (policy,) = [a["content"] for t, a in tags if t == "meta" and "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'")


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=40))
def test_hostile_names_stay_text(name: str) -> None:
    hostile = f"<script>alert(1)</script>\" onload=x ' {{{{7*7}}}} {name}"
    run = Run(
        hostile,
        hostile,
        (ClusterGpu(hostile, hostile, 0),),
        (JobTimes("1<b>", hostile, 0, 9, True),),
        (
            TimelineSegment("1<b>", hostile, hostile, (0,), 0, 4, 0, hostile),
            TimelineSegment("1<b>", hostile, hostile, (0,), 5, 9, 1, hostile),
        ),
    )
    harmless = replace(run, name="a", description="a")
    text = page([run], hostile, [hostile])
    found, expected = _Elements(text), _Elements(page([harmless], "a", ["a"]))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected.tags]
    assert not [a for _, a in found.tags if "onload" in a]
    headings = re.findall(r"<h2>(.*?)</h2>", text, re.DOTALL)
    assert any(one.startswith(str(escape(hostile.removesuffix(name)))) for one in headings)


def test_every_segment_is_drawn_where_and_when_it_ran() -> None:
    run = synthetic_run("a", ORDER, moves=True)
    by = drawing.scale([run])
    drawn = drawing.draw(run, by)
    assert len(drawn.lanes) == len(run.gpus)
    assert len(drawn.bars) == len(run.segments)
    for segment in run.segments:
        bar = next(
            b
            for b in drawn.bars
            if b.key == segment.job and b.x == pytest.approx(by.x(segment.start_s))
        )
        assert bar.x + bar.width == pytest.approx(by.x(segment.end_s))
        assert f"{segment.type} on {segment.node}, GPU 0, 1" in bar.title
        assert bar.height == 2 * drawn.lanes[0].height + 1
    assert sum(mark.moved for mark in drawn.marks) == 3
    assert all(bar.x >= 0 and bar.x + bar.width <= drawing.WIDTH for bar in drawn.bars)


def test_bars_of_a_sound_schedule_do_not_cover_each_other() -> None:
    run = synthetic_run("a", ORDER, jobs=40)
    bars = drawing.draw(run, drawing.scale([run])).bars
    for i, one in enumerate(bars):
        for two in bars[i + 1 :]:
            apart = one.x + one.width <= two.x + 1e-6 or two.x + two.width <= one.x + 1e-6
            assert apart or one.y + one.height <= two.y or two.y + two.height <= one.y


def test_gpus_that_are_not_neighbours_get_bars_of_their_own() -> None:
    gpus = tuple(ClusterGpu("n", "v100", i) for i in range(4))
    run = Run("a", "", gpus, (), (TimelineSegment("1", "x", "n", (0, 2, 3), 0, 9, 0, "v100"),))
    assert len(drawing.draw(run, drawing.scale([run])).bars) == 2


def test_a_job_keeps_its_colour_in_every_run() -> None:
    one = synthetic_run("a", ORDER)
    two = synthetic_run("b", ORDER[::-1])
    two = replace(
        two,
        jobs=tuple(replace(j, job="9" + j.job) for j in two.jobs),
        segments=tuple(replace(s, job="9" + s.job) for s in two.segments),
    )
    by = drawing.scale([one, two])
    shades = [
        {bar.key[-3:]: bar.colour for bar in drawing.draw(run, by).bars} for run in (one, two)
    ]
    assert shades[0] == shades[1]
    assert len(set(shades[0].values())) == len(one.jobs)
    assert all(re.fullmatch("#[0-9a-f]{6}", shade) for shade in shades[0].values())


def test_an_empty_run_and_a_long_one_are_drawn() -> None:
    empty = Run("nothing", "", (), (), ())
    text = page([empty], "t")
    assert "No run completed all jobs." in text
    assert "not recorded" in text
    long = replace(
        synthetic_run("a", ORDER),
        samples=tuple((float(t), float(t % 7)) for t in range(100_000)),
    )
    assert len(page([long, empty], "t")) < 200_000


@pytest.mark.parametrize("moves", [False, True])
def test_the_drawing_is_well_formed(moves: bool) -> None:
    text = page([synthetic_run("a & b <c>", ORDER, moves=moves)], "t")
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.S):
        ElementTree.fromstring(svg)
    assert ("moved while it ran" in text) is moves
