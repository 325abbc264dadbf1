"""The exchange folder as a tick reads and tidies it."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import NOW, job, ordinary, running
from missing import needs_root

from slurm_hadar.controller.seen import exchange_folder
from slurm_hadar.controller.seen.exchange_folder import KEEP_S, ExchangeFolder
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.gpu_sampling_files import NodeUse, new_path, read_all_uses, write_use
from slurm_hadar.runtime import folder as folders

UID = os.getuid()
OLD, LATER = NOW - KEEP_S - 1, NOW + 3601.0
ENDED = (
    "plan.7.json",
    "plan.84_2.json",
    "progress.7.0123456789abcdef.json",
    "progress.84_2.a.json",
    "gpu.7.0123456789abcdef.json",
    ".gpu.7.a.json.0123456789abcdef",
    ".heartbeat.json.0123456789abcdef",
)
STRANGE = (
    "heartbeat.json",
    "notes.txt",
    "plan.7.json.mine",
    "gpu.x.y.json",
    ".gpu.1",
    "plan..json",
)


def laid(folder, names, when=OLD, uid=None):
    for name in names:
        path = folder / name
        path.write_text("{}")
        os.utime(path, (when, when))
        if uid is not None:
            os.chown(path, uid, uid)


def tidied(folder, jobs=(), now=NOW):
    found = ExchangeFolder(folder)
    found.read(jobs)
    return found.tidy(jobs, now), sorted(path.name for path in folder.iterdir())


def test_what_ended_jobs_left_is_removed_and_nothing_else(tmp_path):
    laid(tmp_path, (*ENDED, *STRANGE))
    said, left = tidied(tmp_path)
    assert left == sorted(STRANGE)
    assert said == [f"{len(ENDED)} files of jobs that ended are removed from {tmp_path}"]
    assert tidied(tmp_path)[0] == []


def test_one_answer_that_lacks_a_job_does_not_cost_it_its_files(tmp_path):
    laid(tmp_path, ENDED)
    asked = []
    found = ExchangeFolder(tmp_path)
    found.read([])
    found.tidy([], NOW, lambda since: asked.append(since) or ["84_9"])
    left = sorted(path.name for path in tmp_path.iterdir())
    assert asked == [NOW - KEEP_S] and left == ["plan.84_2.json", "progress.84_2.a.json"]


@pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.FINISHED])
def test_files_of_a_job_that_may_go_on_stay(tmp_path, state):
    task = job("84_9", state, array_job_id=84)
    laid(tmp_path, ENDED[:5])
    _, left = tidied(tmp_path, [job("7", state), task])
    assert left == sorted(ENDED[:5])
    # An array's task is known by its own number, too.
    laid(tmp_path, ["gpu.90.a.json"])
    own = replace(job("85_9", state, array_job_id=85), raw_id=90)
    assert "gpu.90.a.json" in tidied(tmp_path, [own])[1]


def test_an_ended_job_and_an_unmanaged_one(tmp_path):
    laid(tmp_path, ["plan.7.json", "plan.9.json"])
    _, left = tidied(tmp_path, [job("7", JobState.FINISHED), ordinary("9")])
    assert left == ["plan.9.json"]


def test_files_that_somebody_wrote_lately_stay(tmp_path):
    laid(tmp_path, ENDED, NOW - KEEP_S + 1)
    assert tidied(tmp_path) == ([], sorted(ENDED))


def test_a_folder_or_a_link_by_that_name_stays(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "plan.7.json").mkdir()
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "x" / "gpu.7.a.json").symlink_to(target)
    for path in (target, *(tmp_path / "x").iterdir()):
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    assert tidied(tmp_path / "x")[1] == ["gpu.7.a.json", "plan.7.json"] and target.exists()


@pytest.mark.parametrize("owner", ["root", "controller"])
def test_files_of_others_go_where_the_folder_is_the_controllers(owner):
    """In a sticky folder only a file's owner, the folder's owner and root may remove it."""
    needs_root("it makes files of other users")
    import pwd

    controller, user = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("nobody").pw_uid
    # Not below pytest's own folders, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _tidied_by(controller, user, folder, owner)


def _tidied_by(controller, user, folder, owner):
    if owner == "controller":
        os.chown(folder, controller, controller)
    folder.chmod(0o1777)
    laid(folder, ["plan.7.json"], uid=controller)
    laid(folder, ["gpu.7.a.json"], uid=user)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(controller)
            os.setuid(controller)
            said, left = tidied(folder)
            os._exit(0 if said and left == (["gpu.7.a.json"] if owner == "root" else []) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_it_is_done_once_an_hour_and_a_full_folder_in_several_ticks(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange_folder, "_MOST_REMOVED", 2)
    names = [f"plan.{number}.json" for number in range(5)]
    laid(tmp_path, names)
    found = ExchangeFolder(tmp_path)

    def look(now):
        found.read([])
        found.tidy([], now)
        return len(list(tmp_path.iterdir()))

    assert [look(NOW), look(NOW), look(NOW)] == [3, 1, 0]
    laid(tmp_path, names[:1])
    assert look(NOW + 60) == 1 and look(LATER) == 0


def test_a_folder_without_end_is_not_read_to_its_end(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert not folders.listing(tmp_path, 5).cut
    listed = folders.listing(tmp_path, 4)
    assert listed.cut and len(listed.names) == 4
    assert folders.listing(tmp_path / "none").names == []
    found = ExchangeFolder(tmp_path)
    monkeypatch.setattr(exchange_folder, "listing", lambda path: listed)
    found.read([])
    assert "holds more than" in found.tidy([], NOW)[0]


def node_use(number, host, when=NOW - 5):
    return NodeUse(str(number), host, 12, when, False, ())


def test_one_listing_serves_all_and_running_managed_jobs_are_read(tmp_path, monkeypatch):
    for number in (1, 2, 3, 90):
        write_use(new_path(tmp_path, str(number)), node_use(number, "v1"))
    looked = []
    monkeypatch.setattr(
        os, "scandir", lambda path, real=os.scandir: looked.append(path) or real(path)
    )
    there = {"v1": {"v100": 1}}
    jobs = [
        running("1", there, uid=UID),
        job("2", uid=UID),
        running("3", there, uid=UID + 1),
        replace(running("84_2", there, uid=UID), raw_id=90),
    ]
    said = ExchangeFolder(tmp_path).read(jobs)
    assert set(said.gpus) == {"1", "84_2"} and len(looked) == 1


def test_of_very_many_files_each_tick_reads_the_next_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_hadar.profiles.gpu_sampling_files.MOST_FILES", 2)
    uids = {str(number): UID for number in range(5)}
    for number in uids:
        write_use(new_path(tmp_path, number), node_use(number, "v1"))
    turns = [set(read_all_uses(tmp_path, uids, turn=turn)) for turn in range(3)]
    assert all(len(found) == 2 for found in turns) and set.union(*turns) == set(uids)
