"""What accounting tells, good and bad."""

from pathlib import Path
from typing import Any

import made_history
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_history import line, text

from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.tuning import conf, sacct_history, site, sources
from slurm_hadar.tuning.requested_types import OPEN
from slurm_hadar.tuning.usage import usage

SITE = site.of_conf(conf.parse(made_history.CONF, Path("/slurm.conf")))


def read(*lines: str) -> sacct_history.History:
    return sacct_history.read(text(*lines), "past", SITE)


def test_types_by_request_constraint_partition_and_nodes() -> None:
    untyped = "cpu=4,gres/gpu=1,mem=16G"
    found = read(
        line(1, 0, 1, 2, kind="k80"),
        line(2, 0, 1, 2, ReqTRES=untyped, AllocTRES=untyped, Partition="all", Constraints="v100"),
        line(3, 0, 1, 2, ReqTRES=untyped, AllocTRES=untyped, Partition="k80", NodeList="k[1-2]"),
        line(4, 0, 1, 2, ReqTRES=untyped, AllocTRES=untyped, Partition="all", NodeList="k4"),
        line(5, 0, 1, 2, ReqTRES=untyped, AllocTRES=untyped, Partition="all", NodeList="v1,k4"),
        line(6, 0, 1, 2, ReqTRES="", Partition="v100,k80", Constraints="v100|k80"),
    )
    assert found.types == ("v100", "k80")
    assert found.ids == ("1", "2", "3", "4", "6")
    assert found.asked.tolist() == [1, 0, 1, OPEN, OPEN]
    assert found.held.tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]]
    assert found.untyped == 3
    assert found.left_out == {"GPUs of no known type": 1}
    assert found.cpus.tolist() == [4.0] * 5
    assert found.mem_mb.tolist() == [16 * 1024.0] * 5


RECORDED = Path(__file__).parents[2] / "data" / "slurm" / "22.05.8"


def test_recorded_accounting() -> None:
    """Of a real slurmdbd: typed and untyped requests, features with a choice, a name with a |."""
    found = sacct_history.read((RECORDED / "sacct.txt").read_text(), "sacct.txt", SITE)
    jobs = dict(zip(found.ids, range(len(found.ids)), strict=True))
    by_name = {found.job_names[at]: at for at in jobs.values()}
    asked = {name: int(found.asked[at]) for name, at in by_name.items()}
    assert asked == {
        "typed": 0, "waits for v100": 0, "by-feature": 1, "by-partition": 1, "choice": OPEN,
        "array": OPEN, "both types": OPEN, "with steps": OPEN, "requeued": 1, "still running": 0,
    }  # fmt: skip
    assert found.held[by_name["both types"]].tolist() == [1, 1]
    assert found.held[by_name["choice"]].tolist() == [0, 2]
    assert {"880807_1", "880807_2"} <= jobs.keys()
    assert found.left_out == {"no GPU": 1, "cancelled before it started": 1}
    assert np.isinf(found.end_s[by_name["still running"]])
    waited = found.start_s[by_name["waits for v100"]] - found.arrival_s[by_name["waits for v100"]]
    assert waited == 4.0
    assert found.untyped == 0


def test_recorded_accounting_with_steps_and_earlier_runs() -> None:
    """With -D and without -X."""
    plain = sacct_history.read((RECORDED / "sacct.txt").read_text(), "sacct.txt", SITE)
    found = sacct_history.read((RECORDED / "sacct_steps.txt").read_text(), "sacct_steps.txt", SITE)
    assert sorted(found.ids) == sorted(plain.ids)
    assert found.left_out["an earlier run of a job that was requeued"] == 1


def test_capitals_of_a_type_do_not_matter() -> None:
    assert read(line(1, 0, 1, 2, kind="V100")).held.tolist() == [[1, 0]]


def test_what_is_no_job_is_counted_with_its_reason() -> None:
    found = read(
        line(1, 0, 1, 2),
        line("1.batch", 0, 1, 2),
        line(2, 0, 1, 2, AllocTRES="cpu=4", ReqTRES="cpu=4"),
        line(3, 0, None, 1),
        line(4, 3, 1, 2),
        line(5, 0, 1, 1),
        line(6, 0, 1, 2, kind="h100"),
        line(7, 0, 1, 2, Submit="yesterday"),
        line(8, 0, 1, 2, name="a|b|c"),
        line(1, 0, 3, 4),
        line(9, 0, 1, None),
        line(10, 0, None, None),
        "not|a line",
    )
    assert found.ids == ("1", "8", "9", "10")
    assert found.job_names[1] == "c"
    assert found.rows == 12
    assert found.left_out == {
        "no GPU": 1, "cancelled before it started": 1, "times that contradict each other": 1,
        "ran for 0 s": 1, "a GPU type that the site does not have (h100)": 1, "cannot be read": 2,
        "an earlier run of a job that was requeued": 1,
    }  # fmt: skip
    assert found.ended.tolist() == [0, 1]


def test_a_text_that_is_not_saccts_is_one_sentence() -> None:
    for bad, words in (
        ("", "is empty"),
        ("JobID|State\n", "column Submit is missing"),
        (text("a", "b", "c"), "3 of 3 lines"),
    ):
        with pytest.raises(UsageError, match=words):
            sacct_history.read(bad, "past", SITE)


def test_usage_by_hand() -> None:
    """Ten hours: v100 full from 0 to 10; one job waits for it from 2 to 10 while k80 is free,
    which from 4 to 6 is full."""
    found = read(
        *(line(n, 0, 0, 10, gpus=4) for n in (1, 2)),
        line(3, 2, 10, 11, gpus=2),
        *(line(10 + n, 4, 4, 6, kind="k80", gpus=4) for n in range(4)),
    )
    seen = usage(found, SITE)
    assert (seen.to_s - seen.from_s) / 3600 == 11
    v100, k80 = seen.types
    assert (v100.used_gpu_h, v100.idle_gpu_h) == (82.0, 6.0)
    assert (k80.used_gpu_h, k80.offered_gpu_h) == (32.0, 176.0)
    # 2 to 4 and 6 to 10 with 2 GPUs asked for.
    assert k80.while_waited_gpu_h == 12.0
    assert v100.while_waited_gpu_h == 0.0
    wait = seen.waits[0]
    assert (wait.jobs, wait.waited_jobs, wait.waited_h, wait.any_free_h) == (3, 1, 8.0, 6.0)
    assert wait.while_free_h == {"k80": 6.0}
    assert wait.examples == (("3", 6.0),)


def test_more_in_use_than_there_is_never_makes_time_negative() -> None:
    found = read(*(line(n, 0, 0, 1, gpus=4) for n in range(5)))
    v100 = usage(found, SITE).types[0]
    assert (v100.beyond, v100.idle_gpu_h, v100.used_gpu_h) == (12, 0.0, 8.0)


def test_texts_are_what_was_read() -> None:
    found = sacct_history.read(made_history.queue_behind_v100(20), "past", SITE)
    again = sacct_history.read(sacct_history.texts(found, range(20)), "past", SITE)
    assert again.ids == found.ids
    assert np.array_equal(again.held, found.held)
    assert np.allclose(again.start_s, found.start_s)


@pytest.mark.timeout(200)
def test_many_rows_take_seconds() -> None:
    lines = [line(n, n / 50, n / 50 + 1, n / 50 + 2, name=f"j{n}") for n in range(30_000)]
    found = read(*lines)
    assert len(found.ids) == 30_000
    assert usage(found, SITE).waits[0].jobs == 30_000


WORDS = st.sampled_from(
    ["", "1", "1_2", "1.0", "gres/gpu=1", "gres/gpu:v100=2,cpu=4", "gres/gpu:v100=99999999999",
     "gpu:v100:x", "2026-01-05T00:00:00", "2026-01-05T10:00:00", "9999-12-31T23:59:59",
     "0001-01-01", "Unknown", "None", "v[1-2]", "v[1-99999999]", "|", "\n", "\x1b[2J", "nan",
     "-1", "é\u2028"]
)  # fmt: skip


@settings(deadline=None, max_examples=120)
@given(st.lists(st.lists(WORDS | st.text(max_size=8), min_size=1, max_size=16), max_size=8))
def test_hostile_lines_give_an_answer_or_one_clear_sentence(lines: list[list[str]]) -> None:
    body = "\n".join("|".join(cells) for cells in lines)
    try:
        found = sacct_history.read(
            text(line(900, 0, 1, 2), line(901, 0, 1, 2)) + body, "past", SITE
        )
    except UsageError as error:
        words = str(error)
        assert words.isprintable() and len(words) < 400
        return
    assert found.rows >= 2
    if found.ids:
        seen = usage(found, SITE)
        for one in seen.types:
            assert 0 <= one.used_gpu_h <= one.offered_gpu_h + 1e-6
            assert one.idle_gpu_h + one.used_gpu_h == pytest.approx(one.offered_gpu_h)


def test_a_steered_job_counts_by_the_partition_that_it_was_submitted_to() -> None:
    untyped = "cpu=4,gres/gpu=1,mem=16G"
    tres: dict[str, Any] = {"ReqTRES": untyped, "AllocTRES": untyped, "Partition": "v100"}
    steered = [
        line(1, 0, 1, 2, **tres, Comment="mine [hadar1 types=any partitions=all]"),
        line(2, 0, 1, 2, **tres, Comment="[hadar1 types=any]"),
        line(3, 0, 1, 2, **tres),
        line(4, 0, 1, 2, **tres, Comment="[hadar1 nonsense=1]"),
        line(5, 0, 1, 2, **tres, Comment="a|b [hadar1 types=any]"),
    ]
    found = read(*steered)
    assert found.partitions[:4] == ("all", "v100", "v100", "v100")
    assert found.submitted == (True, True, False, True, False)
    assert found.asked.tolist()[:4] == [OPEN, 0, 0, 0] and len(found.ids) == 5
    owners = {"3": "v100,k80", "1": "v100,k80"}
    found = sacct_history.read(text(*steered), "past", SITE, owners=owners)
    assert found.partitions[:3] == ("all", "v100", "v100,k80") and found.submitted[2]
    assert found.asked.tolist()[2] == OPEN


def test_a_history_without_the_owners_partition_is_said_to_be_one() -> None:
    groups = configuration.parse('[partitions.groups]\nall = ["v100", "k80"]\n', "here")
    plain = read(line(1, 0, 1, 2), line(2, 0, 1, 2, kind="k80"))
    (note,) = sources._of_groups(plain, groups)
    assert "2 jobs" in note and "from all;" in note and "job_comment" in note
    assert sources._of_groups(plain, None) == []
    recorded = read(line(1, 0, 1, 2), line(2, 0, 1, 2, Comment="[hadar1 types=any]"))
    assert sources._of_groups(recorded, groups) == []


def test_a_state_file_that_knows_some_jobs_does_not_speak_for_the_others() -> None:
    groups = configuration.parse('[partitions.groups]\nall = ["v100", "k80"]\n', "here")
    lines = [line(n, 0, 1, 2) for n in (1, 2, 3)]
    some = sacct_history.read(text(*lines), "past", SITE, owners={"2": "all"})
    assert some.submitted == (False, True, False)
    (note,) = sources._of_groups(some, groups)
    assert "2 jobs" in note and "from all;" in note
    every = sacct_history.read(text(*lines), "past", SITE, owners=dict.fromkeys("123", "v100"))
    assert sources._of_groups(every, groups) == []
