"""What the soak does to the exchange folder, and how it tells of a job beside an idle GPU."""

import os
import threading
from datetime import datetime
from random import Random
from typing import Any

import pytest

from benchmarks.soak import hung
from benchmarks.soak.liveness import (
    BF_INTERVAL_S,
    CYCLES,
    LONGEST_S,
    SLACK_S,
    Liveness,
    Look,
    backfill_cycles,
    idle_since,
)
from benchmarks.soak.squatters import STRANGER, Squatters
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node

LIMIT_S = BF_INTERVAL_S + SLACK_S


def waiting(**more):
    fields: dict[str, Any] = {"state": JobState.PENDING, "slurm_state": "PENDING"}
    fields |= {"eligible_s": 1.0, "declaration": Declaration()} | more
    return Job(id="7", raw_id=7, uid=0, user="root", name="one", **fields)


def idle(**more):
    return Node("n1", **({"gpus": {"v100": 1}, "state": "IDLE"} | more))


def seen(job, node, seconds, any_gpu=("one",), used=(), cycle_s=BF_INTERVAL_S):
    """A look every 2 s. ``used``: seconds at which another job ends on the node."""
    found = Liveness()
    for second in range(0, int(seconds) + 1, 2):
        since = {"n1": 50.0 + max([0, *(at for at in used if at <= second)])}
        cycles = int(second / cycle_s)
        look = Look(1000.0 + second, 50.0 + second, [job], [node], since, cycles)
        found.look(look, any_gpu)
    return found


def test_a_job_that_waits_beside_an_idle_gpu_is_reported():
    assert not seen(waiting(), idle(), LIMIT_S).wrong
    late = seen(waiting(reason="Resources", partitions=("a", "b")), idle(), LIMIT_S + 4)
    assert late.wrong == [
        f"job 7 waited for {LIMIT_S + 4:.0f} s and 4 backfill cycles beside an idle GPU of n1 "
        "(reason Resources, partitions a,b, 0 restarts)"
    ]
    assert late.longest_s == LIMIT_S + 4


@pytest.mark.parametrize(
    ("job", "node", "any_gpu"),
    [
        ({"state": JobState.RUNNING}, {}, ("one",)),
        ({"held": True}, {}, ("one",)),
        ({"declaration": None}, {}, ("one",)),
        ({"eligible_s": 1e9}, {}, ("one",)),
        ({"not_before_s": 1e9}, {}, ("one",)),
        ({}, {"state": "DOWN", "usable": False}, ("one",)),
        ({}, {"state": "PLANNED"}, ("one",)),
        ({}, {"gpus_used": {"v100": 1}}, ("one",)),
        ({}, {}, ()),
    ],
)
def test_what_has_a_reason_to_wait_is_not(job, node, any_gpu):
    found = seen(waiting(**job), idle(**node), LIMIT_S + 60, any_gpu)
    assert not found.wrong and not found.longest_s


def test_a_node_that_had_another_job_between_two_looks_was_not_idle_all_the_time():
    short_jobs = seen(waiting(), idle(), LIMIT_S + 60, used=range(3, 100, 7))
    assert not short_jobs.wrong and 0 < short_jobs.longest_s <= 8
    # The one that ends last leaves it idle for too long.
    assert seen(waiting(), idle(), LIMIT_S + 60, used=(3, 10)).wrong


def test_a_wait_counts_in_cycles_of_backfill_as_a_busy_machine_has_fewer():
    slow_s = (LIMIT_S + 6) / (CYCLES - 1)
    assert not seen(waiting(), idle(), LIMIT_S + 4, cycle_s=slow_s).wrong
    assert seen(waiting(), idle(), CYCLES * slow_s + 2, cycle_s=slow_s).wrong
    # However few there are.
    assert not seen(waiting(), idle(), LONGEST_S, cycle_s=1000).wrong
    assert seen(waiting(), idle(), LONGEST_S + 2, cycle_s=1000).wrong


def test_time_in_which_slurm_did_not_answer_is_not_counted():
    found = Liveness()
    for second in range(0, 60, 2):
        found.look(Look(1000.0 + second, 50.0 + second, [waiting()], [idle()]), ("one",))
        if second % 10 == 0:
            found.forget()
    assert not found.wrong and 0 < found.longest_s <= 10


def test_a_restart_of_slurmctld_and_a_new_attempt_begin_anew():
    for change in ({"cycles": 0}, {"restarts": 1}):
        found = Liveness()
        for second in range(0, 31, 2):
            new = change if second > 14 else {}
            job, cycles = waiting(restarts=new.get("restarts", 0)), new.get("cycles", second // 5)
            found.look(Look(1e3 + second, 50.0 + second, [job], [idle()], {}, cycles), ("one",))
        assert found.longest_s == 14 and not found.wrong


def test_what_slurm_says_of_cycles_and_of_nodes():
    text = (
        "Main schedule statistics (microseconds):\n\tTotal cycles: 328\n\n"
        "Backfilling stats\n\tTotal backfilled jobs (since last slurm start): 32\n"
        "\tTotal cycles: 31\n\tLast cycle: 808\n"
    )
    assert backfill_cycles(text) == 31 and backfill_cycles("nothing") == 0
    nodes = (
        "NodeName=k1 Arch=x86_64 State=IDLE LastBusyTime=2026-11-25T09:40:54 CfgTRES=cpu=32\n"
        "NodeName=k2 State=IDLE LastBusyTime=Unknown CfgTRES=cpu=32\n"
    )
    busy = datetime(2026, 11, 25, 9, 40, 54).astimezone().timestamp()
    assert idle_since(nodes) == {"k1": busy}


@pytest.mark.skipif(not hung.possible(), reason="a mount needs root and /dev/fuse")
def test_a_folder_hangs_and_is_as_before(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").touch()
    answers: list[list[str] | OSError] = []

    def look():
        try:
            answers.append([path.name for path in folder.iterdir()])
        except OSError as error:
            answers.append(error)

    with hung.hung(folder):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(1.0)
        assert thread.is_alive() and not answers
    thread.join(60)
    assert isinstance(answers[0], OSError)
    look()
    assert answers[1] == ["file"]


@pytest.mark.skipif(os.getuid() != 0, reason="files are given to another user")
def test_a_stranger_lays_names_of_jobs_to_come_and_all_of_them_go(tmp_path):
    mine = tmp_path / "plan.8.json"
    mine.touch()
    squatters = Squatters(tmp_path, Random(1), lambda: 7)
    for _ in range(30):
        squatters.lay()
    there = [path for path in tmp_path.iterdir() if path != mine]
    assert len(there) == len(squatters.taken) > 20
    assert {path.lstat().st_uid for path in there} == {STRANGER}
    kinds = {(path.is_symlink(), path.is_dir(), path.is_fifo()) for path in there}
    assert len(kinds) == 4
    # What stood in the way is moved aside, and goes as well.
    folder = next(path for path in there if path.is_dir() and not path.is_symlink())
    folder.rename(tmp_path / ".plan.9.json.aside")
    squatters.remove()
    assert list(tmp_path.iterdir()) == [mine]
