"""Each run of a job, as sacct prints it."""

from datetime import datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import accounting

LINE = (
    "84_2|2026-01-05T10:00:00|2026-01-05T10:02:00|2026-01-05T11:00:00|2026-01-05T13:00:00|"
    "CANCELLED by 0|600|billing=4,cpu=4,gres/gpu=2,node=1|"
    "billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,node=1|gpu|ann|phys"
)


def at(text):
    return datetime.fromisoformat(text).timestamp()


def test_a_run_is_what_slurm_counted():
    (run,), bad = accounting.parse_runs(LINE + "\n")
    assert bad == 0 and (run.job, run.user, run.account, run.state) == (
        "84_2", "ann", "phys", "CANCELLED",
    )  # fmt: skip
    assert run.gpus == 2 and run.asked_gpu_s == 2 * 600 * 60
    assert run.queued_s == at("2026-01-05T10:02:00") and run.submit_s == run.queued_s - 120
    assert run.held_s(0, inf) == 7200
    # Only what lies between the two times.
    assert run.held_s(run.start_s + 600, run.start_s + 900) == 300
    assert run.held_s(run.end_s, inf) == 0


def test_waiting_running_and_cancelled_before_a_start():
    waits = LINE.replace("2026-01-05T11:00:00|2026-01-05T13:00:00|CANCELLED by 0|600",
                         "Unknown|Unknown|PENDING|UNLIMITED")  # fmt: skip
    waits = waits.replace("billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,node=1", "")
    runs = LINE.replace("2026-01-05T13:00:00|CANCELLED by 0", "Unknown|RUNNING")
    never = LINE.replace("billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,node=1", "")
    found, _ = accounting.parse_runs("\n".join([waits, runs, never]))
    assert [run.started for run in found] == [False, True, False]
    assert found[0].waiting and found[0].gpus == 2 and found[0].asked_gpu_s == 0
    assert found[1].end_s == inf and found[1].held_s(0, found[1].start_s + 60) == 60
    assert found[2].held_s(0, 1e11) == 0


def test_jobs_without_gpus_are_left_out_and_bad_lines_counted():
    cpu = LINE.replace("gres/gpu=2,", "").replace("gres/gpu:v100=2,", "")
    assert accounting.parse_runs(f"{cpu}\n{LINE}\nnonsense\n")[1] == 1
    assert len(accounting.parse_runs(f"{cpu}\n{LINE}\n")[0]) == 1
    assert accounting.parse_runs("") == ([], 0)
    with pytest.raises(SlurmError, match="no line"):
        accounting.parse_runs("sacct: something\n")
    (odd,), _ = accounting.parse_runs(LINE + "|x")
    assert odd.account == "phys|x"


@given(st.lists(st.text(max_size=40) | st.just(LINE), max_size=5).map("|".join))
def test_whatever_is_printed_gives_runs_or_one_error(text):
    try:
        runs, bad = accounting.parse_runs(text)
    except SlurmError:
        return
    assert bad >= 0 and all(run.gpus > 0 for run in runs)
