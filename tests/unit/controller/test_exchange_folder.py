"""The exchange folder as a tick reads and tidies it."""

import json
import os
import re
import tempfile
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hand_made import NOW, job, ordinary, running
from missing import needs_root

from slurm_hadar.controller.observation import exchange_folder
from slurm_hadar.controller.observation.exchange_folder import KEEP_S, ExchangeFolder
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange import files
from slurm_hadar.exchange import folder as folders
from slurm_hadar.exchange import progress as exchange_progress
from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.exchange.progress import (
    Progress,
    own_files,
    places,
    read_all_progress,
    read_listed,
)
from slurm_hadar.folder_probe import Unanswered
from slurm_hadar.profiles import gpu_sampling_files
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse, new_path, write_use

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
    assert said == [f"{len(ENDED)} files of ended jobs removed from {tmp_path}"]
    assert tidied(tmp_path)[0] == []


def test_one_answer_that_lacks_a_job_does_not_cost_it_its_files(tmp_path):
    laid(tmp_path, ENDED)
    asked = []

    def ended(since):
        asked.append(since)
        return ["84_9"]

    found = ExchangeFolder(tmp_path)
    found.read([])
    found.tidy([], NOW, ended)
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
    monkeypatch.setattr(exchange_folder, "FolderWindow", lambda path: folders.FolderWindow(path, 4))
    found = ExchangeFolder(tmp_path)
    found.read([])
    assert "holds more than" in found.tidy([], NOW)[0]
    found.read([])
    assert found.tidy([], NOW + 60) == [], "once an hour"


def node_use(number, host, when=NOW - 5):
    return NodeUse(str(number), host, 12, when, False, ())


def test_one_listing_serves_all_and_running_managed_jobs_are_read(tmp_path, monkeypatch):
    for number in (1, 2, 3, 90):
        write_use(new_path(tmp_path, str(number)), node_use(number, "v1"))
    looked, real = [], os.scandir

    def scandir(path):
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
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
    monkeypatch.setattr(gpu_sampling_files, "ALL_BYTES", 2 * folders.LEAST)
    uids = {str(number): UID for number in range(5)}
    for number in uids:
        write_use(new_path(tmp_path, number), node_use(number, "v1"))
    turns = [
        gpu_sampling_files.read_listed(folders.listing(tmp_path), uids, turn) for turn in range(3)
    ]
    assert [(len(found), left_out) for found, left_out in turns] == [(2, 3)] * 3
    assert set.union(*(set(found) for found, _ in turns)) == set(uids)


def test_a_user_with_very_many_files_takes_nothing_from_others():
    flood = [(1, 17_000, f"flood {number}") for number in range(1000)]
    few = [(2, 2_000, f"few {number}") for number in range(100)]
    some = [(3, 4_096, f"some {number}") for number in range(200)]
    chosen, left_out = folders.round_robin([*flood, *few, *some], 2 << 20, 0)
    assert {file for _, _, file in few + some} <= set(chosen)
    size = sum(max(folders.LEAST, size) for _, size, file in flood + few + some if file in chosen)
    assert (2 << 20) - 17_000 < size <= 2 << 20 and left_out == 1300 - len(chosen)


def test_parts_of_a_full_folder_follow_one_another_and_own_names_stay(tmp_path):
    for number in range(10):
        (tmp_path / f"progress.7.a{number}.json").touch()
    window = folders.FolderWindow(tmp_path, 4)
    pattern = re.compile(r"progress\.(7)\.a3\.json")
    listed, held = [], []
    for _ in range(6):
        one = window.next()
        listed.append(one)
        held += [Path(path).name for _, _, path in one.owned(pattern, {"7": UID}, 9)]
    assert {name for one in listed[:3] for name in one.names} == {
        f"progress.7.a{number}.json" for number in range(10)
    }
    first = next(n for n, one in enumerate(listed) if "progress.7.a3.json" in one.names)
    assert held == ["progress.7.a3.json"] * (6 - first), "once found, in each part"


STRANGER = 65533


@pytest.fixture
def crowded():
    """A sticky folder in which this test may act as other users."""
    needs_root("it makes files of other users")
    # Not below pytest's own folders, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def report(id_):
    return Progress(
        job=id_, time=NOW, restarts=0, host="v1", pid=1, in_step=False, started=NOW, model="m",
        samples=1, rate=1.0, window_s=1.0, batch=1, gpus=1,
    )  # fmt: skip


def reports_of(folder, id_, uid):
    """A job's process of that user tells its progress; where it lies."""
    child = os.fork()
    if child == 0:
        try:
            os.setgid(uid)
            os.setuid(uid)
            said: list[str] = []
            Exchange(folder, id_, None, said.append).tell(report(id_))
            os._exit(len(said))
        except BaseException:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return [path.name for path in own_files(folder, id_, uid)]


def of_stranger(path, kind="file"):
    if kind == "folder":
        path.mkdir()
        (path / "full").touch()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def test_a_report_is_found_behind_any_number_of_strangers_names(tmp_path):
    path = places(tmp_path, "7")[0]
    files.write_json(path, asdict(report("7")))
    laid_first = [f"progress.7.{number:02x}.json" for number in range(300)]
    listed = folders.Listing(tmp_path, [*laid_first, path.name])
    assert set(read_listed(listed, {"7": UID})[0]) == {"7"}


@pytest.mark.parametrize("name", ["junk.{0}", "progress.{1}.{0:016x}.json"])
def test_reports_are_found_however_full_the_folder_is(crowded, monkeypatch, name):
    for number in range(500):
        of_stranger(crowded / name.format(number, number % 3 + 1))
    uids = {"1": 2001, "2": 2002, "3": 2003}
    for id_, uid in uids.items():
        reports_of(crowded, id_, uid)
    for number in range(500, 1000):
        of_stranger(crowded / name.format(number, number % 3 + 1))
    monkeypatch.setattr(folders.FolderWindow.__init__, "__defaults__", (300,))
    monkeypatch.setattr(folders.listing, "__defaults__", (300,))
    there = {"v1": {"v100": 1}}
    jobs = [running(id_, there, uid=uid) for id_, uid in uids.items()]
    found = ExchangeFolder(crowded)
    assert [set(found.read(jobs).progress) for _ in range(5)] == [set(uids)] * 5
    assert set(read_all_progress(crowded, uids)) == set(uids)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_who_takes_the_names_of_a_report_first_stops_nobody(crowded, kind):
    mine = running("7", {"v1": {"v100": 1}}, uid=2001)
    first, *others = places(crowded, "7")
    of_stranger(first, kind)
    assert reports_of(crowded, "7", 2001) == [others[0].name]
    others[0].unlink()
    for path in others:
        of_stranger(path, kind)
    (random,) = reports_of(crowded, "7", 2001)
    found = ExchangeFolder(crowded)
    assert "7" in found.read([mine]).progress
    assert found.tidy([mine], NOW) == [], "it is heard, so nobody's files are touched"
    # As where so many names are laid that this one is not seen.
    (crowded / random).unlink()
    assert "7" not in found.read([mine]).progress
    (said,) = found.tidy([mine], LATER)
    assert "8 of 8 are free now" in said
    assert reports_of(crowded, "7", 2001) == [first.name]
    assert "7" in found.read([mine]).progress


def test_names_that_cannot_be_freed_are_reported_once(crowded, monkeypatch):
    mine = running("7", {"v1": {"v100": 1}}, uid=2001)
    for path in places(crowded, "7"):
        of_stranger(path)
    found = ExchangeFolder(crowded)
    found.read([mine])
    with monkeypatch.context() as closed:
        # As for a controller that owns neither the folder nor the files.
        closed.setattr(exchange_folder, "_is_away", lambda _: False)
        (said,) = found.tidy([mine], NOW)
        assert "only root or the folder's owner may remove progress.7.*.json" in said
        assert found.tidy([mine], NOW + 60) == []
    assert "8 of 8 are free now" in "".join(found.tidy([mine], NOW + 120))


def test_a_folder_that_gives_no_answer_is_not_looked_into_for_names(tmp_path, monkeypatch):
    there = {"v1": {"v100": 1}}
    mine = running("7", there, uid=UID + 1)
    for path in places(tmp_path, "7"):
        path.touch()
    found = ExchangeFolder(tmp_path)
    found.read([mine])

    def silent(folder):
        raise Unanswered(folder)

    monkeypatch.setattr(exchange_folder, "ensure_answers", silent)
    found.read([mine])
    found.tidy([mine], NOW)
    assert len(list(tmp_path.iterdir())) == 8


def test_reports_of_the_release_before_are_read_and_give_way(crowded):
    old = crowded / "progress.7.0123456789abcdef.json"
    reports_of(crowded, "7", 2001)
    places(crowded, "7")[0].rename(old)
    assert "7" in ExchangeFolder(crowded).read([running("7", {}, uid=2001)]).progress
    assert reports_of(crowded, "7", 2001) == [places(crowded, "7")[0].name]


def test_a_controller_that_takes_over_finds_all_unfinished_files(tmp_path, monkeypatch):
    for number in range(50):
        (tmp_path / f".plan.{number}.json.0123456789abcdef").touch()
    monkeypatch.setattr(folders.listing, "__defaults__", (10,))
    ExchangeFolder(tmp_path).remove_unfinished()
    assert list(tmp_path.iterdir()) == []


def test_very_large_samples_of_one_user_do_not_fill_the_memory(tmp_path):
    """1,500 files of 17 kB: without a bound they take 52 MB."""
    gpu = GpuUse("GPU-0", "A100", 300.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5)
    content = json.dumps({
        "version": 1,
        **asdict(replace(node_use(1, "v1"), gpus=(replace(gpu, name="A" * 80),) * 64)),
    })  # fmt: skip
    assert 14_000 < len(content) < 18_000
    for number in range(1500):
        (tmp_path / f"gpu.1.{number}.json").write_text(
            content.replace('"v1"', f'"v{number}"').replace("GPU-0", f"GPU-{number}")
        )
    found = ExchangeFolder(tmp_path)
    jobs = [running("1", {"v1": {"v100": 1}}, uid=UID)]
    tracemalloc.start()
    try:
        said = found.read(jobs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 900 < len(said.gpus["1"]) < 1300 and peak < 42e6
    (words,) = found.tidy(jobs, NOW)
    assert f"{1500 - len(said.gpus['1'])} files on GPUs" in words


def test_a_report_that_is_far_too_large_is_not_read(tmp_path, monkeypatch):
    path = places(tmp_path, "7")[0]
    path.write_text(json.dumps({"version": 1, "job": "7", "more": "x" * 17_000}))
    read = []
    monkeypatch.setattr(files, "read_owned", lambda *_: read.append(1))
    ExchangeFolder(tmp_path).read([running("7", {}, uid=UID)])
    assert read == []
    path.write_text("{}")
    ExchangeFolder(tmp_path).read([running("7", {}, uid=UID)])
    assert read == [1]


def test_a_look_that_missed_reports_says_so(tmp_path, monkeypatch):
    mine = [running(str(n), {"k1": {"k80": 1}}, uid=UID) for n in (1, 2)]
    for one in mine:
        files.write_json(places(tmp_path, one.id)[0], asdict(report(one.id)))
    assert ExchangeFolder(tmp_path).read(mine).complete
    monkeypatch.setattr(exchange_progress, "ALL_BYTES", 1)
    assert not ExchangeFolder(tmp_path).read(mine).complete
    monkeypatch.undo()
    assert not ExchangeFolder(tmp_path / "away").read(mine).complete

    def hangs(path):
        raise Unanswered(path)

    monkeypatch.setattr(exchange_folder, "ensure_answers", hangs)
    assert not ExchangeFolder(tmp_path).read(mine).complete
