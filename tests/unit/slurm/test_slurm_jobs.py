import contextlib
import gc
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm import array_tasks, jobs
from slurm_hadar.slurm.backend_commands import CommandsCluster
from slurm_hadar.slurm.commands import Commands

DATA = Path(__file__).parents[2] / "data" / "slurm"
FIRST = {"22.05.8": 41036, "24.11.5": 42060, "26.05.5": 98501}
"""The first job of squeue_forms.json: its neighbours have the numbers behind it."""

HOSTILE = 'we"ird\\ na%me'


def read(version: str, name: str, ids: list[str] | None = None, most: int = 100) -> dict[str, Job]:
    found, _ = jobs.parse((DATA / version / name).read_text(), ids, most)
    assert len({job.id for job in found}) == len(found)
    return {job.id: job for job in found}


@pytest.mark.parametrize("version", sorted(FIRST))
def test_every_form_of_job(version: str) -> None:
    first = FIRST[version]
    found = read(version, "squeue_forms.json")

    mixed = found[str(first)]
    assert mixed.state is JobState.RUNNING
    assert mixed.gpus == {"k1": {"k80": 2}, "v1": {"v100": 1}}
    assert mixed.gpu_count == 3
    assert mixed.request.per_job == {"": 3}
    assert mixed.nodes == mixed.required_nodes == ("k1", "v1")
    assert mixed.name == HOSTILE
    assert mixed.comment.startswith("text [x] [hadar1 ") and mixed.comment.endswith(" more")
    assert mixed.managed and mixed.declaration is not None
    assert mixed.declaration.types == ("any",)
    assert mixed.declaration.gpus == (1, 4)

    running = found[f"{first + 1}_0"]
    assert running.raw_id == first + 8 and running.array_job_id == first + 1
    assert running.gpus == {"v1": {"v100": 2}} and running.request.typed
    waiting = [found[f"{first + 1}_{task}"] for task in (2, 3, 4, 5)]
    assert {job.raw_id for job in waiting} == {first + 1}
    assert {job.state for job in waiting} == {JobState.PENDING}
    assert not any(job.held for job in waiting)

    steps = [found[f"{first + 2}_{task}"] for task in (0, 2, 4, 6, 8, 10, 12, 14, 40)]
    assert len([job for job in found.values() if job.array_job_id == first + 2]) == len(steps)
    assert all(job.held and not job.managed and job.declaration is None for job in steps)
    assert "nonsense" in steps[0].declaration_error

    per_task = found[str(first + 3)]
    assert per_task.request.per_task == {"": 1} and per_task.tasks == 2
    assert per_task.cpus_per_task == 3 and per_task.cpus == 6
    assert per_task.features == "v100|k80" and per_task.excluded_nodes == ("v2",)
    assert per_task.dependency == "afterany:1(unfulfilled)"

    whole = found[str(first + 4)]
    assert whole.exclusive and whole.whole_nodes and not steps[0].whole_nodes
    assert whole.mem_per_node_mb == 3072 and whole.mem_per_cpu_mb == 0
    assert whole.time_limit_s == float("inf") and whole.partitions == ("idle", "gpu")

    het = [found[f"{first + 5}+{offset}"] for offset in (0, 1)]
    assert all(job.het and not job.managed for job in het)
    assert [job.raw_id for job in het] == [first + 5, first + 6]

    later = found[str(first + 7)]
    assert not later.exclusive and not later.whole_nodes
    assert not later.requeue and not later.held
    assert later.time_limit_s == 86400 and later.start_s - later.submit_s > 3590


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
def test_later_releases_agree(version: str) -> None:
    found = list(read(version, "squeue.json").values())
    assert [job.state.name for job in found] == [
        "RUNNING", "RUNNING", "PENDING", "PENDING", "RUNNING",
    ]  # fmt: skip
    assert found[0].gpus == {"v1": {"v100": 2}, "v2": {"v100": 2}}
    assert found[0].nodes == ("v1", "v2") and found[0].node_count == 2
    assert found[1].gpus == {"m1": {"p100": 1, "k80": 2}}
    assert found[1].request.per_node == {"p100": 1, "k80": 2}
    assert found[2].held and found[3].held and found[2].comment == "held"
    assert found[4].request.per_job == {"v100": 1}
    assert all(job.mem_per_cpu_mb == 1024 and job.time_limit_s == 3600 for job in found)
    assert found[0].submit_s > 1.7e9 and found[0].cpus == 4 and found[0].cpus_per_task == 2


def test_finished_jobs_of_22_05_stay_visible() -> None:
    found = read("22.05.8", "squeue.json")
    assert found["74"].state is JobState.FINISHED and found["74"].slurm_state == "COMPLETED"
    assert found["80"].state is JobState.FINISHED and not found["80"].held
    assert found["74"].gpus == {} and found["74"].nodes == ("k1",)
    assert [job_id for job_id in found if job_id.startswith("84")] == [
        "84_0", "84_1", "84_2", "84_3",
    ]  # fmt: skip


@pytest.mark.parametrize("version", sorted(FIRST))
def test_ids_restrict(version: str) -> None:
    first = FIRST[version]
    array, steps, het = first + 1, first + 2, first + 5
    asked = [f"{array}_0", f"{array}_4", f"{steps}_40", f"{steps}_41", str(het), "999999"]
    assert set(read(version, "squeue_forms.json", asked, 2)) == {
        f"{array}_0", f"{array}_4", f"{steps}_40", f"{het}+0", f"{het}+1",
    }  # fmt: skip
    assert set(read(version, "squeue_forms.json", [str(array)])) == {
        f"{array}_{task}" for task in range(6)
    }


@pytest.mark.parametrize("version", sorted(FIRST))
def test_long_arrays_are_cut_and_it_is_said(version: str) -> None:
    text = (DATA / version / "squeue_forms.json").read_text()
    found, notes = jobs.parse(text, None, 5)
    steps = FIRST[version] + 2
    assert [job.id for job in found if job.array_job_id == steps] == [
        f"{steps}_{task}" for task in (0, 2, 4, 6, 8)
    ]
    assert notes == [f"array {steps}: 5 of 9 waiting tasks are looked at"]


@pytest.mark.parametrize(
    ("text", "tasks", "cut"),
    [
        ("0-3,7%2", [0, 1, 2, 3, 7], False),
        ("0-14:7", [0, 7, 14], False),
        ("5", [5], False),
        ("1-3,5,186...", [1, 2, 3, 5], True),
        ("1-2,...", [1, 2], True),
    ],
)
def test_task_lists(text: str, tasks: list[int], cut: bool) -> None:
    ranges, was_cut = array_tasks.task_ranges(text)
    assert [task for span in ranges for task in span] == tasks
    assert was_cut is cut


def test_a_huge_array_costs_nothing() -> None:
    ranges, _ = array_tasks.task_ranges("0-3999999%10")
    assert array_tasks._first(ranges, 3) == [0, 1, 2]


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
@settings(max_examples=25, deadline=None)
@given(fraction=st.floats(0, 0.999))
def test_half_a_json_is_an_error_and_never_fewer_jobs(version: str, fraction: float) -> None:
    text = (DATA / version / "squeue.json").read_text().rstrip()
    with pytest.raises(SlurmError) as caught:
        jobs.parse(text[: int(len(text) * fraction)], None, 100)
    assert caught.value.retry


def test_22_05_says_with_status_0_that_it_reached_nobody() -> None:
    text = json.dumps(
        {
            "errors": [
                {
                    "description": "Failed while looking for jobs",
                    "error_number": -1,
                    "error": "Unspecified error",
                    "source": "slurm_load_jobs",
                }
            ],
            "jobs": [],
        }
    )
    with pytest.raises(SlurmError, match=r"Failed while looking for jobs.*slurmctld") as caught:
        jobs.parse(text, None, 100)
    assert caught.value.retry


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["set", "infinite", "number", "nodes"]), inner, max_size=3
        )
    ),
    max_leaves=4,
)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_damaged_record_is_a_job_or_a_clear_error(data: st.DataObject) -> None:
    document = json.loads((DATA / "24.11.5" / "squeue.json").read_text())
    record = document["jobs"][0]
    key = data.draw(st.sampled_from(sorted(record)))
    record[key] = data.draw(VALUES)
    try:
        found, _ = jobs.parse(json.dumps(document), None, 100)
    except SlurmError as error:
        assert str(error)
    else:
        assert len(found) == 5


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": {}}', '{"jobs": [1]}', "nul"])
def test_no_list_of_jobs(text: str) -> None:
    with pytest.raises(SlurmError, match="squeue"):
        jobs.parse(text, None, 100)


@pytest.mark.parametrize(("restarts", "batch"), [(0, False), (1, True)])
def test_a_job_that_was_requeued_is_a_batch_job_whatever_is_shown(restarts, batch) -> None:
    """22.05 shows no batch job any more once slurmd did not answer at a launch."""
    shown = json.loads((DATA / "22.05.8" / "squeue_forms.json").read_text())
    record = next(one for one in shown["jobs"] if one["job_id"] == FIRST["22.05.8"])
    assert record["batch_flag"]
    record |= {"batch_flag": False, "restart_cnt": restarts}
    (job,), _ = jobs.parse(json.dumps({"jobs": [record]}), None, 100)
    assert job.batch == batch and job.managed == batch


@pytest.mark.parametrize(
    ("shown", "nice"),
    [(None, 0), (7, 7), (4_294_966_596, -700), (-700, -700), (2_147_483_645, 2_147_483_645)],
)
def test_a_nice_below_0_is_one_on_each_release(shown, nice) -> None:
    """22.05.8 shows --nice=-700 as 4294966596, 24.11.5 as -700."""
    text = (DATA / "22.05.8" / "squeue_forms.json").read_text()
    record = json.loads(text)["jobs"][0]
    assert jobs.one({**record, "nice": shown}).nice == nice


@pytest.mark.parametrize("key", ["licenses", "burst_buffer"])
def test_what_a_requeue_would_give_to_others_is_known(key) -> None:
    for release, first in FIRST.items():
        shown = json.loads((DATA / release / "squeue_forms.json").read_text())
        record = next(one for one in shown["jobs"] if one["job_id"] == first)
        for text in ("", "matlab:1"):
            (job,), _ = jobs.parse(json.dumps({"jobs": [{**record, key: text}]}), None, 100)
            assert job.external is bool(text)


@pytest.mark.parametrize(
    ("shown", "others"),
    [
        ({}, False),
        ({"tres_per_node": "gres:gpu:v100:2"}, False),
        ({"tres_per_node": "gres/gpu:2", "tres_per_task": "cpu=4"}, False),
        ({"tres_per_node": "gres:gpu:2,gres:nvme:1"}, True),
        ({"tres_per_node": "gres/gpu:2,gres/nvme:1"}, True),
        ({"tres_per_node": "gres:gpu:1", "tres_per_job": "gres:license_server"}, True),
        ({"tres_per_socket": "gres:shard:1"}, True),
        ({"tres_per_task": "cpu=2,gres/fpga:1"}, True),
    ],
)
def test_what_a_job_asks_for_beside_gpus_is_known(shown, others) -> None:
    """In forms of 22.05.8 and 24.11.5."""
    record = json.loads((DATA / "22.05.8" / "squeue_forms.json").read_text())["jobs"][0]
    clean = {key: "" for key in record if key.startswith("tres_per_")}
    assert jobs.one({**record, **clean, **shown}).other_gres is others


def test_a_job_in_segments_of_a_block_topology_is_known() -> None:
    """By a field of 25.05, as its source has it; put into a record of 24.11.5."""
    shown = json.loads((DATA / "24.11.5" / "squeue_forms.json").read_text())
    for size in (0, 4):
        (job, *_), _ = jobs.parse(
            json.dumps({"jobs": [{**shown["jobs"][0], "segment_size": size}]}), None, 100
        )
        assert job.external is bool(size)


def test_an_expedited_requeue_is_known() -> None:
    """By a flag of 25.11, as its source has it; put into a record of 24.11.5."""
    shown = json.loads((DATA / "24.11.5" / "squeue_forms.json").read_text())
    record = next(one for one in shown["jobs"] if one["job_id"] == FIRST["24.11.5"])
    for expedited in (False, True):
        flags = [*record["flags"], *(["EXPEDITED_REQUEUE"] if expedited else [])]
        (job,), _ = jobs.parse(json.dumps({"jobs": [{**record, "flags": flags}]}), None, 100)
        assert job.expedited is expedited


def test_a_failed_launch_is_no_hold_of_the_owners() -> None:
    """What 22.05.8 shows of a job whose launch failed on a node that had been DOWN."""
    shown = json.loads((DATA / "22.05.8" / "squeue_forms.json").read_text())
    record = next(one for one in shown["jobs"] if one["job_id"] == FIRST["22.05.8"])
    record |= {
        "job_state": "PENDING",
        "state_reason": "JobHeldUser",
        "state_description": "launch failed requeued held",
        "priority": 0,
    }
    (job,), _ = jobs.parse(json.dumps({"jobs": [record]}), None, 100)
    assert job.held and job.reason == "launch failed requeued held"
    record["state_description"] = "something else"
    (job,), _ = jobs.parse(json.dumps({"jobs": [record]}), None, 100)
    assert job.held and job.reason == "JobHeldUser"


def test_squeues_answer_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """60,000 jobs are half a gigabyte of JSON."""
    shown = json.loads((DATA / "24.11.5" / "squeue_forms.json").read_text())
    record = next(one for one in shown["jobs"] if one["job_id"] == FIRST["24.11.5"])
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text("#!/bin/sh\necho slurm 24.11.5\n")
    copies = [json.dumps({**record, "job_id": number}) for number in range(1, 1501)]
    (tmp_path / "jobs.json").write_text(f'{{"jobs": [{",".join(copies)}], "errors": []}}')
    (folder / "squeue").write_text(f"#!/bin/sh\nexec cat {tmp_path}/jobs.json\n")
    for program in folder.iterdir():
        program.chmod(0o755)
    printed = (tmp_path / "jobs.json").stat().st_size
    cluster = CommandsCluster(Commands(bin_dir=folder))
    assert cluster.slurm_version == (24, 11, 5)
    del copies
    tracemalloc.start()
    try:
        (job,) = cluster.read_jobs(["1000"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert job.raw_id == 1000
    assert printed > 10_000_000 and peak < printed / 3


@pytest.mark.parametrize("cut", [1.0, 0.9, 0.5])
def test_jobs_are_gone_with_the_last_who_holds_them(cut: float) -> None:
    """Each read brings all jobs anew. In a circle of references they would stay until Python looks
    for such, and the controller's memory would grow by some hundred ticks' jobs at a time."""
    text = (DATA / "22.05.8" / "squeue_forms.json").read_text()
    text = text[: int(cut * len(text))]

    def there() -> int:
        return sum(type(one) is Job for one in gc.get_objects())

    def read_and_drop() -> int:
        reader = jobs.JobsReader(None, 100)
        for start in range(0, len(text), 1000):
            reader.feed(text[start : start + 1000])
        held = there()
        with contextlib.suppress(SlurmError):
            reader.end()
        return held

    # What other tests left is not looked through.
    gc.freeze()
    gc.disable()
    try:
        assert there() == 0
        assert read_and_drop() > 3
        assert there() == 0
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize(
    ("version", "shown", "code"),
    [
        ("22.05.8", 85 << 8, 85),
        ("22.05.8", 0, 0),
        # Ended by USR1, with and without a core file.
        ("22.05.8", 10, 0),
        ("22.05.8", 10 | 128, 0),
        ("24.11.5", {"return_code": {"set": True, "infinite": False, "number": 85}}, 85),
        ("24.11.5", {"return_code": {"set": False, "infinite": False, "number": 0}}, 0),
    ],
)
def test_the_exit_code_of_a_job_that_has_ended(version, shown, code) -> None:
    record = json.loads((DATA / version / "squeue_forms.json").read_text())["jobs"][0]
    assert jobs.one({**record, "exit_code": shown}).exit_code == code
