"""What jobs' own samplers tell: into the profiles, and to people."""

import sqlite3
from dataclasses import replace

import pytest
from hand_made import NOW, job, observation, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.controller.profiling.gpu_use import (
    GpuUseLearner,
    in_vain,
    present,
    rows,
    too_small,
)
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import GpuRequest, JobState
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_sampling import GpuUse, TrainingUse, training_use
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.profiles.gpu_use import GpuUses
from slurm_hadar.profiles.measured import MOST_ROWS_PER_USER

TWO = {"v1": {"v100": 2}}
MODEL = Declaration(model="m", types=("any",), batch=(64, 64))


def gpu(utilization=0.5, held=0.0, unused=0.0, memory=1024.0, power=100.0, seconds=600.0):
    busy = seconds - held - unused
    return GpuUse("GPU-a", "P", seconds, utilization, memory, 2 * memory, power, busy, held, unused)


def node_use(*gpus, host="v1", when=NOW - 10, finished=False):
    return NodeUse("1", host, 12, when, finished, gpus)


def look(*files, progress=None, **more):
    given_progress = {"1": progress} if progress else {}
    mine = running("1", TWO, declaration=MODEL, **more)
    return observation([mine], gpus={"1": list(files)}, progress=given_progress)


def progress_report(rate=50.0, restarts=0, batch=64):
    return Progress("1", NOW, restarts, "v1", 1, False, NOW, "m", 0, rate, 60.0, batch, 2)


def test_only_the_present_attempt_counts():
    assert present(look(node_use(gpu(), gpu())), "1").gpus == 2
    for old in (
        node_use(gpu(), when=NOW - 2000),
        node_use(gpu(), when=NOW - 301),
        node_use(gpu(), host="k1"),
        node_use(gpu(), finished=True),
    ):
        assert present(look(old), "1") is None
    started = look(node_use(gpu(), when=NOW - 10), start_s=NOW - 5)
    assert present(started, "1") is None
    waits = observation([job("1", JobState.PENDING)], gpus={"1": [node_use(gpu())]})
    assert present(waits, "1") is None


def test_the_rate_is_of_the_present_attempt_too():
    files = node_use(gpu(), gpu())
    assert present(look(files, progress=progress_report()), "1").joules_per_sample == 200.0 / 50.0
    assert present(look(files, progress=progress_report(restarts=1)), "1").joules_per_sample is None


def test_a_look_computes_what_gpus_do_once(monkeypatch):
    asked = []

    def counted(*args):
        asked.append(args)
        return training_use(*args)

    monkeypatch.setattr(gpu_use, "training_use", counted)
    shown = look(node_use(gpu(), gpu()), progress=progress_report())
    learned(shown)
    assert [in_vain(shown, "1") for _ in range(3)] == [""] * 3 and len(asked) == 1
    # Of others nothing is taken: another time, another report, another attempt.
    assert present(replace(shown, now=NOW + 600), "1") is None
    slower = replace(shown, progress={"1": progress_report(25.0)})
    assert present(slower, "1").joules_per_sample == 200.0 / 25.0
    mine = replace(shown.jobs["1"], start_s=NOW - 5)
    assert present(replace(shown, jobs={"1": mine}), "1") is None
    assert present(shown, "1").joules_per_sample == 200.0 / 50.0


def learned(shown, lessons=None):
    lessons = lessons or GpuUseLearner(None)
    lessons.learn(shown)
    return lessons.uses_of(shown.jobs["1"])


def test_the_profiles_learn_what_a_job_does_with_all_of_its_gpus():
    (known,) = learned(look(node_use(gpu(0.4), gpu(0.6, held=60.0)), progress=progress_report()))
    assert (known.gpu_type, known.gpus, known.batch, known.uid) == ("v100", 2, 64, 1000)
    assert known.utilization == pytest.approx(0.5) and known.power_w == 200.0
    assert known.joules_per_sample == 4.0 and known.most_memory_mb == 2048.0
    assert known.held_idle == pytest.approx(0.05) and known.weight_s == 600.0
    # One of two GPUs only, or GPUs of two types: nothing that could be compared.
    assert learned(look(node_use(gpu()))) == []
    mixed = {"v1": {"v100": 1}, "k1": {"k80": 1}}
    both = [node_use(gpu()), node_use(gpu(), host="k1")]
    shown = observation([running("1", mixed, declaration=MODEL)], gpus={"1": both})
    assert learned(shown) == []


def test_a_window_that_was_taken_is_not_taken_again():
    lessons = GpuUseLearner(None)
    shown = look(node_use(gpu(), gpu(), when=NOW - 100))
    learned(shown, lessons)
    assert learned(shown, lessons)[0].weight_s == 600.0
    (known,) = learned(look(node_use(gpu(), gpu(), when=NOW - 40)), lessons)
    assert 600.0 < known.weight_s < 660.0


def test_a_window_counts_once_where_each_tick_is_a_process_of_its_own():
    state = sqlite3.connect(":memory:", isolation_level=None)
    shown = look(node_use(gpu(), gpu(), when=NOW - 100))
    learned(shown, GpuUseLearner(state))
    assert learned(shown, GpuUseLearner(state))[0].weight_s == 600.0


def test_what_is_newer_counts_more_and_the_most_memory_stays():
    uses = GpuUses()
    for utilization, memory in ((0.2, 4096.0), (0.8, 1024.0)):
        use = training_use(0.0, [gpu(utilization, memory=memory)])
        assert uses.record((7, "m", 64), "v100", use, 600.0)
    (known,) = uses.of("m", 7)
    assert 0.5 < known.utilization < 0.6 and known.most_memory_mb == 8192.0
    assert uses.of("m", 8) == []


def test_the_profiles_outlive_the_process_and_one_user_cannot_fill_them(tmp_path):
    def opened():
        return GpuUses(sqlite3.connect(tmp_path / "x", isolation_level=None))

    use = training_use(0.0, [gpu()])
    uses = opened()
    with uses._connection:
        for number in range(MOST_ROWS_PER_USER + 1):
            uses.record((7, f"m{number}", None), "v100", use, 1.0)
    assert opened().of(f"m{MOST_ROWS_PER_USER}", 7) and opened().of("m1", 7)
    assert not opened().of("m0", 7)
    assert not uses.record((8, "", None), "v100", use, 1.0)
    assert not uses.record((8, "m", None), "v100", use, 0.0)


FIGURE = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(st.tuples(FIGURE, st.floats(1, 1e4)), min_size=1, max_size=8))
def test_a_mean_lies_within_what_was_reported(steps):
    uses = GpuUses()
    for value, seconds in steps:
        use = training_use(0.0, [gpu(value, seconds=seconds)])
        uses.record((7, "m", 1), "v100", use, seconds)
    (known,) = uses.of("m", 7)
    values = [value for value, _ in steps if value is not None]
    if not values:
        assert known.utilization is None
    else:
        assert min(values) - 1e-9 <= known.utilization <= max(values) + 1e-9


def test_a_job_that_holds_its_gpus_for_nothing_is_pointed_at():
    idle = gpu(0.0, held=570.0)
    words = in_vain(look(node_use(idle, idle)), "1")
    assert words == "its GPUs were held and idle for 95% of 10 min 00 s"
    nobody = gpu(0.0, unused=600.0)
    assert "not used for 100%" in in_vain(look(node_use(nobody, nobody)), "1")
    assert in_vain(look(node_use(gpu(), gpu())), "1") == ""
    begins = gpu(0.0, held=100.0, seconds=100.0)
    assert in_vain(look(node_use(begins, begins)), "1") == ""
    assert in_vain(look(), "1") == ""


def test_explain_shows_now_and_what_is_known():
    shown = look(node_use(gpu(held=60.0), gpu(held=60.0)), progress=progress_report())
    found = rows(shown, shown.jobs["1"], learned(shown))
    words = "50% busy, up to 2 GB of a GPU, 200 W, 4 J per sample, held and idle 10% of the time"
    assert found == [("last 10 min 00 s", words), ("2 v100, batch 64", words)]
    shown = look(node_use(gpu(None, memory=0.0, power=None)))
    assert rows(shown, shown.jobs["1"], [])[0][1].startswith("1 of 2 GPUs: ")


def test_a_type_with_less_memory_than_it_held_is_a_hint_to_its_owner():
    memory = {"v100": 16.0, "k80": 12.0, "new": 0.0}
    shown = look(node_use(gpu(memory=7000.0), gpu()))
    known, mine = learned(shown), shown.jobs["1"]
    assert "k80 has less" in too_small(mine, known, memory)
    assert "gpu_mem=14G" in too_small(mine, known, memory)
    declared = replace(mine, declaration=replace(MODEL, gpu_mem=1))
    typed = replace(mine, request=GpuRequest(per_node={"v100": 1}))
    narrow = replace(mine, declaration=replace(MODEL, types=("v100",)))
    assert all(too_small(one, known, memory) == "" for one in (declared, typed, narrow))
    assert too_small(mine, [], memory) == ""


def test_no_value_is_said_so():
    use = TrainingUse(0.0, 1, None, None, None, None, None, 0.0, 0.0, 60.0)
    assert gpu_use._words(use) == "no data"


def test_files_of_an_earlier_attempt_do_not_hide_the_present_one():
    lessons = GpuUseLearner(None)
    old = node_use(gpu(), gpu(), host="k1", when=NOW - 3000, finished=True)
    (known,) = learned(look(old, node_use(gpu(), gpu())), lessons)
    assert known.weight_s == 600.0
    # Reports count what was sampled, also of one GPU of two, and each sample once.
    assert learned(look(node_use(gpu(held=300.0))), lessons)
    (row,) = lessons.sampled.since(0)
    assert (row.job, row.gpu_s, row.idle_gpu_s, row.energy_j) == ("1", 1200.0, 0.0, 120_000.0)
    shown = look(node_use(gpu(held=300.0), when=NOW))
    lessons.learn(shown)
    (row,) = lessons.sampled.since(0)
    assert row.gpu_s == 1210.0 and row.idle_gpu_s == 5.0
