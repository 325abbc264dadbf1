import json
import os
from dataclasses import asdict

import pytest
from missing import needs_root

from slurm_hadar.exchange import files, heartbeat, plan_file
from slurm_hadar.exchange.progress import (
    FASTEST,
    SLOWEST,
    Ack,
    Progress,
    Saved,
    parse,
    read_all_progress,
    read_progress,
)

ME = os.getuid()
RECORD = Progress(
    job="84_2",
    time=1.7e9,
    restarts=1,
    host="v1",
    pid=7,
    in_step=False,
    started=1.7e9,
    model="resnet18",
    samples=640,
    rate=12.5,
    window_s=3.0,
    batch=64,
    gpus=2,
    checkpoint=Saved(600, 1.7e9, 0.2),
    ack=Ack("n1", 1.7e9, 600),
    restart_s=4.5,
)


def put(folder, name, **changes):
    path = folder / name
    files.write_json(path, {**asdict(RECORD), **changes})
    return path


def test_what_is_written_is_read(tmp_path):
    put(tmp_path, "progress.84_2.aa.json")
    assert read_progress(tmp_path, "84_2", ME) == RECORD
    assert (tmp_path / "progress.84_2.aa.json").stat().st_mode & 0o777 == 0o644
    assert read_progress(tmp_path, "84_3", ME) is None
    assert read_all_progress(tmp_path / "none", {"84_2": ME}) == {}


def test_the_newest_of_the_owner_wins(tmp_path):
    for number, name in enumerate(("old", "new", "broken")):
        path = put(tmp_path, f"progress.84_2.{name}.json", samples=number)
        os.utime(path, ns=(number * 10**9, number * 10**9))
    (tmp_path / "progress.84_2.broken.json").write_text("{")
    os.utime(tmp_path / "progress.84_2.broken.json", ns=(9 * 10**9, 9 * 10**9))
    found = read_progress(tmp_path, "84_2", ME)
    assert found is not None and found.samples == 1


def test_a_file_of_another_user_is_not_believed(tmp_path):
    needs_root("it gives a file to another user")
    path = put(tmp_path, "progress.84_2.aa.json")
    os.chown(path, 12345, 12345)
    assert read_progress(tmp_path, "84_2", ME) is None
    assert read_progress(tmp_path, "84_2", 12345) == RECORD
    plan_file.write_plan(tmp_path, plan_file.JobPlan("84_2", gpus={"v100": 1}))
    os.chown(tmp_path / "plan.84_2.json", 12345, 12345)
    assert plan_file.read_plan(tmp_path, "84_2", {ME}) is None
    assert plan_file.read_plan(tmp_path, "84_2", {ME, 12345}) is not None


def test_links_pipes_and_folders_are_refused_without_waiting(tmp_path):
    real = put(tmp_path, "real.json")
    (tmp_path / "progress.84_2.link.json").symlink_to(real)
    os.mkfifo(tmp_path / "progress.84_2.pipe.json")
    (tmp_path / "progress.84_2.dir.json").mkdir()
    assert read_progress(tmp_path, "84_2", ME) is None
    (tmp_path / "plan.5.json").symlink_to(real)
    assert plan_file.read_plan(tmp_path, "5", {ME}) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60000,
        b'{"version": 1}',
        b'{"version": true}',
        b'{"version": 1, "x": "' + b"a" * files.LIMIT + b'"}',
    ],
)
def test_nonsense_is_no_progress(tmp_path, data):
    (tmp_path / "progress.84_2.aa.json").write_bytes(data)
    assert read_progress(tmp_path, "84_2", ME) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samples", -1),
        ("samples", 1.5),
        ("samples", True),
        ("samples", 10**400),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("rate", -1.0),
        ("rate", 10**400),
        ("rate", "12"),
        ("time", None),
        ("model", "a\nb"),
        ("model", "x" * 1000),
        ("host", 3),
        ("in_step", 1),
        ("finished", "no"),
        ("checkpoint", []),
        ("checkpoint", {"samples": 1}),
        ("checkpoint", {"samples": 1, "time": 1.0, "seconds": float("nan")}),
        ("ack", {"save": "\x1b[2J", "time": 1.0, "samples": 1}),
        ("restart_s", float("-inf")),
        ("noise_scale", {}),
        ("gpus", 10**9),
    ],
)
def test_a_field_of_the_wrong_kind_voids_the_file(tmp_path, key, value):
    path = tmp_path / "progress.84_2.aa.json"
    path.write_text(json.dumps({"version": 1, **asdict(RECORD), key: value}))
    assert read_progress(tmp_path, "84_2", ME) is None


@pytest.mark.parametrize(
    ("reported", "believed"),
    [(0.0, 0.0), (5e-324, 0.0), (9e-7, 0.0), (SLOWEST, SLOWEST), (12, 12.0), (FASTEST, FASTEST)],
)
def test_a_rate_that_no_training_has_is_not_known(tmp_path, reported, believed):
    put(tmp_path, "progress.84_2.aa.json", rate=reported)
    found = read_progress(tmp_path, "84_2", ME)
    assert found is not None and found.rate == believed
    put(tmp_path, "progress.84_2.aa.json", rate=1.01 * FASTEST)
    assert read_progress(tmp_path, "84_2", ME) is None


def test_another_version_or_job_is_not_ours(tmp_path):
    path = tmp_path / "progress.84_2.aa.json"
    path.write_text(json.dumps({"version": 2, **asdict(RECORD)}))
    assert read_progress(tmp_path, "84_2", ME) is None
    put(tmp_path, "progress.9.aa.json")
    assert read_progress(tmp_path, "9", ME) is None
    assert parse({}) is None


def test_plan(tmp_path):
    plan_file.write_plan(
        tmp_path,
        plan_file.JobPlan("7", gpus={"v100": 2}, batch=128, save="n", restarts=3, reason="why"),
    )
    plan = plan_file.read_plan(tmp_path, "7", {ME})
    assert plan is not None
    assert (dict(plan.gpus), plan.batch, plan.save, plan.restarts) == ({"v100": 2}, 128, "n", 3)
    plan_file.remove_plan(tmp_path, "7")
    plan_file.remove_plan(tmp_path, "7")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no job id"):
        plan_file.write_plan(tmp_path, plan_file.JobPlan("../7", gpus={}))
    with pytest.raises(ValueError, match="at most"):
        plan_file.write_plan(
            tmp_path, plan_file.JobPlan("7", gpus={str(n): 1 for n in range(10**4)})
        )
    assert list(tmp_path.iterdir()) == []


def test_heartbeat(tmp_path):
    assert heartbeat.read_heartbeat(tmp_path, ME) is None
    heartbeat.write_heartbeat(tmp_path, "act", 60.0)
    beat = heartbeat.read_heartbeat(tmp_path, ME)
    assert beat is not None and (beat.mode, beat.interval_s, beat.pid) == ("act", 60.0, os.getpid())
    assert heartbeat.read_heartbeat(tmp_path, ME + 1) is None
    heartbeat.write_heartbeat(tmp_path, "rule", 60.0)
    assert heartbeat.read_heartbeat(tmp_path, ME) is None
