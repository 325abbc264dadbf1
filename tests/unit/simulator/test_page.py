import re

from html_tags import Tags
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.reports.simulation import Simulated, page


def simulated(policy: str, finished: int = 2, avg: float | None = 1.5) -> Simulated:
    summary: dict[str, object] = {
        "policy": policy, "jobs": 2, "finished": finished, "avg_jct_h": avg, "median_jct_h": avg,
        "p99_jct_h": avg, "makespan_h": avg, "utilization": 0.5, "moves": 3,
        "user_worst_rho": 2.25, "user_jain": 0.75,
        "decide_s_mean": 0.001, "decide_s_max": 0.01, "wall_s": 1.0,
    }  # fmt: skip
    times = [3600.0, 7200.0][:finished]
    return Simulated(policy, summary, times, [0.0, 3600.0], [3600.0, 7200.0], [7200.0, 3600.0], 2)


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = page([simulated("a"), simulated("b", avg=2.0)], "t", ["n"])
    tags = Tags(text).tags
    assert "//" not in text
    assert not [t for t, a in tags if t == "script" or {"src", "href"} & a.keys()]
    (rule,) = [a["content"] for t, a in tags if t == "meta" and "http-equiv" in a]
    assert rule is not None
    assert rule.startswith("default-src 'none'")


def test_the_best_is_marked_and_who_left_jobs_unfinished_cannot_be_it() -> None:
    text = page([simulated("slow", avg=2.0), simulated("fast"), simulated("lazy", 1, 0.1)], "t")
    rows = {row.split("</th>")[0].split(">")[-1]: row for row in re.findall(r"<tr>.*?</tr>", text)}
    assert 'class="won">1.50 h' in rows["fast"]
    assert "2.25<" in rows["fast"] and "0.75<" in rows["fast"]
    assert "won" not in rows["slow"].replace('class="won">2 of 2', "")
    assert "won" not in rows["lazy"]


def test_utilization_is_drawn_as_it_was() -> None:
    paths = re.findall(r'class="line" d="([^"]+)"', page([simulated("a")], "t"))
    assert len(paths) == 2
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", paths[1])]
    # All of the GPUs in the first half, half of them in the second.
    assert heights[1] == 0.0
    assert heights[-2] == 150.0


def test_nothing_finished() -> None:
    text = page([simulated("a", 0, None)], "t")
    assert "0 of 2" in text


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=30))
def test_hostile_names_stay_text(name: str) -> None:
    hostile = f'<script>alert(1)</script>" onload=x {{{{7*7}}}} {name}'
    found = Tags(page([simulated(hostile)], hostile, [hostile])).tags
    expected = Tags(page([simulated("a")], "a", ["a"])).tags
    assert [tag for tag, _ in found] == [tag for tag, _ in expected]
    assert not [a for _, a in found if "onload" in a]
