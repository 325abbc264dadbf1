"""A model in shards: saved by some processes, resumed by others, never half published."""

import json
import os
import pickle
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sharded_training
import torch
from forks import Forks
from missing import missing
from sharded_training import EPOCHS, SIZE, TOGETHER

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.runtime import Session, check_lineage, checkpoint, lineage, samples
from slurm_hadar.runtime.attempts import SUPERSEDED, attempts_folder

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not torch.distributed.is_gloo_available(), reason="this build of torch lacks gloo"
    ),
]

PROGRAM = Path(sharded_training.__file__)
LEFT = 143


@pytest.fixture(scope="module")
def train():
    """Trains, and gives the exit codes of the processes of each run."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "PMI"))}

    def trained(folder: Path, *runs: dict) -> list[list[int]]:
        every = [{"kind": "fsdp", **run} for run in runs]
        program = forks.start(PROGRAM, [folder, json.dumps(every)], clean)
        _, errors = program.communicate(timeout=500)
        assert program.returncode == 0, errors
        return json.loads((folder / "codes.json").read_text())

    # A process group imports PyTorch's compiler.
    late = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")
    with Forks(*late, str(PROGRAM)) as forks:
        yield trained


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("said.*")))


def read(folder: Path, *numbers: int) -> dict[int, list[int]]:
    """What all processes of these runs read in each epoch."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        for path in folder.glob(f"read.{number}.*"):
            for line in path.read_text().splitlines():
                _, epoch, _, *which = line.split()
                found.setdefault(int(epoch), []).extend(map(int, which))
    return found


def once(epochs: dict[int, list[int]]) -> bool:
    """Whether each sample was read once in each epoch."""
    whole = list(range(SIZE))
    return sorted(epochs) == list(range(EPOCHS)) and all(
        sorted(which) == whole for which in epochs.values()
    )


def reference(order) -> dict[str, torch.Tensor]:
    """The parameters of a plain loop of one process that never stopped."""
    model = sharded_training.make_model()
    optimizer, scheduler = sharded_training.optimizer_and_scheduler(model)
    _, x, y = sharded_training.data().tensors
    for epoch in range(EPOCHS):
        indices = order(epoch)
        for start in range(0, SIZE, TOGETHER):
            some = indices[start : start + TOGETHER]
            torch.nn.functional.mse_loss(model(x[some]), y[some]).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return model.state_dict()


def sampler_order(epoch: int):
    # It takes all that has a length.
    samples: Any = range(SIZE)
    sampler: torch.utils.data.DistributedSampler[int]
    sampler = torch.utils.data.DistributedSampler(samples, 1, 0, seed=3)
    sampler.set_epoch(epoch)
    return list(sampler)


def assert_equal(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    samples, parameters = torch.load(folder / "end.pt")
    assert samples == EPOCHS * SIZE
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(parameters[name], value, rtol=1e-9, atol=1e-12)


def files(folder: Path) -> dict[str, bytes]:
    """All that a next attempt could go on from."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("run.pt*/**/*")) + sorted(folder.glob("run.pt*"))
        if path.is_file()
    }


def position(folder: Path) -> int:
    return json.loads(checkpoint.read(folder / "run.pt")["state"])["samples"]


def test_four_then_two_then_three_processes_and_one_alone_are_one_training(train, tmp_path):
    codes = train(
        tmp_path,
        {"ranks": 4, "term": 2},
        {"ranks": 2, "term": 5},
        {"ranks": 3, "term": 10, "background": True, "every_s": 0.0},
        # Without fully_shard: that there are shards is seen in the checkpoint.
        {"ranks": 1, "kind": "plain"},
        {"ranks": 2},
    )
    assert codes == [[LEFT] * 4, [LEFT] * 2, [LEFT] * 3, [0], [0] * 2], said(tmp_path)
    assert once(read(tmp_path, 0, 1, 2, 3))
    # Each run stopped in the middle of an epoch, and one that is started once more reads nothing.
    assert [len(read(tmp_path, n)[n]) % SIZE for n in range(3)] == [48, 24, 48]
    assert read(tmp_path, 4) == {}
    assert_equal(tmp_path, reference(sampler_order))
    assert "resumed at 240 samples (attempt 4, " in said(tmp_path)
    # Two checkpoints and their shards are kept; nothing else is.
    assert len(list((tmp_path / "run.pt.shards").iterdir())) == 2
    (attempt,) = attempts_folder(tmp_path / "run.pt").iterdir()
    assert [one.name for one in attempt.iterdir()] == ["owner"]


def test_a_save_that_is_killed_is_never_the_newest(train, tmp_path):
    """One process before it wrote its third shard; the first one before it renames the first file
    that names shards, and before it renames its second folder of shards."""
    places: list[list[Any]] = [
        [1, "SIGKILL", "open 3"],
        [0, "SIGKILL", "rename 5"],
        [0, "SIGKILL", "rename 8"],
    ]
    points: list[dict[str, Any]] = [{"at": place, "every_s": 0.0, "ranks": 2} for place in places]
    for run in points:
        run["background"] = run["at"][0] == 1
    codes = train(tmp_path, *points, {"ranks": 2})
    assert [-signal.SIGKILL in run for run in codes] == [True] * 3 + [False], said(tmp_path)
    assert codes[3] == [0, 0], said(tmp_path)
    # Each save after the first one of a run is lost, or that one, and nothing else.
    found = [line.split()[3] for line in said(tmp_path).splitlines() if "resumed at" in line]
    assert found == ["48", "48", "72"]
    assert_equal(tmp_path, reference(sampler_order))
    assert len(list((tmp_path / "run.pt.shards").iterdir())) == 2


def test_a_stale_attempt_stopped_in_a_save_cannot_replace_a_later_ones(train, tmp_path):
    """Before it renames its second folder of shards, and before it renames the file that names
    them."""
    places = [[0, "SIGSTOP", "rename 5"], [0, "SIGSTOP", "rename 10"]]
    stale = [{"at": place, "every_s": 0.0, "ranks": 2} for place in places]
    codes = train(tmp_path, *stale, {"ranks": 3})
    assert codes == [[SUPERSEDED] * 2, [SUPERSEDED] * 2, [0] * 3], said(tmp_path)
    assert said(tmp_path).count("attempt 3 of job 12 (restart 2) has taken over; leaving") == 2
    assert position(tmp_path) == EPOCHS * SIZE
    assert_equal(tmp_path, reference(sampler_order))
    content = checkpoint.read(tmp_path / "run.pt")
    for name, size in content["shards"]["files"].items():
        shard = tmp_path / "run.pt.shards" / content["shards"]["folder"] / name
        assert shard.stat().st_size == size


def test_to_leave_waits_for_a_save_in_the_background(train, tmp_path):
    slow = {"at": [1, "slow", ""], "slow_s": 1.0, "background": True, "every_s": 0.0}
    codes = train(tmp_path, {"ranks": 2, "term": 3, **slow})
    assert codes == [[LEFT] * 2], said(tmp_path)
    assert position(tmp_path) == 3 * TOGETHER
    previous = checkpoint.read(tmp_path / "run.pt.previous")
    # That is what was there when the save began, although the loop went on meanwhile.
    done = json.loads(previous["state"])["samples"] // TOGETHER
    assert 0 < done < 3
    assert previous["parts"]["note"]["steps"] == list(range(done))


def test_a_loop_of_ours_goes_on_anywhere_in_an_epoch_with_any_number_of_processes(train, tmp_path):
    codes = train(
        tmp_path,
        {"kind": "positions", "ranks": 3, "term": 2},
        {"kind": "positions", "ranks": 2, "term": 7},
        # Alone, without fully_shard.
        {"kind": "positions", "ranks": 1},
    )
    assert codes == [[LEFT] * 3, [LEFT] * 2, [0]], said(tmp_path)
    assert once(read(tmp_path, 0, 1, 2))
    assert check_lineage(lineage(tmp_path / "run.pt"), SIZE, samples=EPOCHS * SIZE, seed=0) is None
    assert_equal(tmp_path, reference(lambda epoch: samples.order(0, epoch, SIZE)))


def test_a_restart_by_torchrun_is_an_attempt_of_its_own_within_one_start_of_the_job(tmp_path):
    fields: list[dict[str, Any]] = [{"at": [1, "SIGKILL", "open 3"], "every_s": 0.0}, {}]
    runs = json.dumps([{"kind": "fsdp", "ranks": 2, **run} for run in fields])
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "PMI"))}
    job = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3", "GLOO_SOCKET_IFNAME": "lo"}
    # torchrun leaves its folder of logs behind.
    job["TMPDIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, PROGRAM, tmp_path, runs],
        env={**clean, **job}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resumed at 48 samples (attempt 2, " in done.stderr
    assert "has taken over" not in done.stderr
    (attempt,) = attempts_folder(tmp_path / "run.pt").iterdir()
    assert attempt.name.startswith("2.12.3.")
    assert_equal(tmp_path, reference(sampler_order))


def test_accelerates_loaders_deal_the_same_samples_to_any_number_of_processes(train, tmp_path):
    if not find_spec("accelerate"):
        missing("accelerate is not installed")
    codes = train(
        tmp_path,
        {"kind": "accelerate", "ranks": 2, "term": 2, "sharded": True},
        {"kind": "accelerate", "ranks": 3, "term": 6},
        {"kind": "accelerate", "ranks": 2},
    )
    assert codes == [[LEFT] * 2, [LEFT] * 3, [0, 0]], said(tmp_path)
    assert once(read(tmp_path, 0, 1, 2))
    (tmp_path / "whole").mkdir()
    assert train(tmp_path / "whole", {"kind": "accelerate", "ranks": 2}) == [[0, 0]]
    assert_equal(tmp_path, torch.load(tmp_path / "whole" / "end.pt")[1])


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A session of one process whose tensors are in shards, saved twice."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("SLURM", "HADAR"))]:
        monkeypatch.delenv(name)

    def session(width=4, **options):
        model = torch.nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        options = {"sharded": True, "log": lines.append, **options}
        return model, optimizer, Session("run.pt", model=model, optimizer=optimizer, **options)

    lines: list[str] = []
    model, optimizer, first = session()
    for number in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        first.progress(8)
        assert first.save() and first.samples == 8 * (number + 1)
    first.finish()
    return session, lines


def shard(path: Path) -> Path:
    folder = Path("run.pt.shards") / checkpoint.read(path)["shards"]["folder"]
    return next(folder.glob("*.distcp"))


def test_shards_that_are_cut_short_are_left_for_the_ones_before(alone):
    session, lines = alone
    newest = shard(Path("run.pt"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert session()[2].samples == 8
    assert any(f"shard {newest.absolute()} is damaged or missing" in line for line in lines)
    shard(Path("run.pt.previous")).unlink()
    with pytest.raises(HadarError, match="no older checkpoint is left"):
        session()


def test_no_code_runs_from_a_folder_of_shards(alone, tmp_path):
    session, _ = alone
    listed = shard(Path("run.pt")).with_name(".metadata")
    size = listed.stat().st_size
    mark = tmp_path / "mark"
    attack = pickle.dumps(Touch(str(mark)))
    listed.write_bytes(attack + b"\0" * (size - len(attack)))
    with pytest.raises(UsageError, match=r"names posix\.mkdir"):
        session()
    assert not mark.exists()


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_does_not_fit_the_shards_is_one_message(alone):
    session, _ = alone
    with pytest.raises(UsageError, match=r"does not fit this training"):
        session(width=5)
    with pytest.raises(UsageError, match="is in shards"):
        session(sharded=False)
    with pytest.raises(UsageError, match="sharded=False forbids"):
        session(sharded=False, background=True)
    with pytest.raises(UsageError, match=r"optim=.*hand in the model"):
        Session("other.pt", sharded=True, optim=torch.optim.SGD([torch.zeros(1)], lr=1.0))
    # That there are shards is seen in the checkpoint.
    _, optimizer, again = session(sharded=None)
    assert again.samples == 16 and len(optimizer.state_dict()["state"]) == 2
    again.finish()


def test_a_checkpoint_of_one_file_is_not_taken_for_shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(1, 1)
    session = Session("run.pt", model=model, log=lambda line: None)
    session.finish()
    with pytest.raises(UsageError, match="saved whole by one process"):
        Session("run.pt", model=model, sharded=True, log=lambda line: None)
