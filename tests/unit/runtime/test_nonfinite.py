"""NaN and infinity in loss and parameters: the last finite checkpoint stays, and it is reported."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from missing import missing, needs_root
from small_training import BATCH, N, X, Y, outside_slurm

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import (
    Copies,
    FixedScale,
    Training,
    check_lineage,
    checkpoint,
    lineage,
)
from slurm_hadar.runtime.finite import LossWatch, nonfinite
from slurm_hadar.runtime.framework_loop import Hosted

pytestmark = pytest.mark.usefixtures(outside_slurm.__name__)


@pytest.fixture(autouse=True)
def no_exit_code(monkeypatch):
    """A training whose end is not saved sets the exit code of this process, which is pytest's."""
    codes: list[int] = []
    monkeypatch.setattr("slurm_hadar.runtime.save_and_leave.fail_at_exit", codes.append)
    return codes


def train(kind, path, bad_from, samples=N, **options):
    """From ``bad_from`` samples on the loss is NaN, and so are the parameters one step later."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    said: list[str] = []
    run = kind(
        model, optimizer, dataset_size=N, samples=samples, batch=BATCH, path=path, every_s=0.0,
        log=said.append, **options,
    )  # fmt: skip
    done = 0
    for batch in run:
        loss = torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices])
        run.backward(loss * (float("nan") if done >= bad_from else 1.0))
        run.step()
        done += len(batch.indices)
    return run, said


KINDS = [
    pytest.param(Training, {}, id="training"),
    pytest.param(Copies, {"round_s": 0.01, "round_epochs": 0.01}, id="copies"),
    pytest.param(FixedScale, {"tasks": 2}, id="fixed scale"),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_what_is_not_finite_replaces_no_checkpoint(tmp_path, kind, options, no_exit_code):
    path = tmp_path / "c.pt"
    _, said = train(kind, path, 3 * BATCH, **options)
    files = [file for file in (path, checkpoint.previous(path)) if file.exists()]
    assert len(files) == 2 or kind is not Training
    for file in files:
        weights = checkpoint.read(file)["parts"]["model"]["weight"]
        assert torch.isfinite(weights).all()
    # Copies save as often as takes 5% of their time, so the last good step may not be saved.
    kept = lineage(path)[-1].stop
    assert kept == 3 * BATCH or (kind is not Training and kept < 3 * BATCH)
    lines = [line for line in said if "not finite" in line]
    assert len(lines) == 1
    assert f"the checkpoint at {kept} samples is kept; going on without saving" in lines[0]
    # The end of the training is not in its checkpoint.
    assert no_exit_code == [74] and "will end with exit code 74" in said[-1]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_with_the_option_it_ends_the_training(tmp_path, kind, options):
    with pytest.raises(SystemExit) as ended:
        train(kind, tmp_path / "c.pt", 3 * BATCH, samples=20 * N, nonfinite="end", **options)
    assert ended.value.code == 1
    assert lineage(tmp_path / "c.pt")[-1].stop <= 3 * BATCH


def test_it_ends_a_training_without_a_checkpoint_too(monkeypatch):
    monkeypatch.setattr("slurm_hadar.runtime.save_and_leave._CHECK_S", 0.0)
    with pytest.raises(SystemExit) as ended:
        train(Training, None, 3 * BATCH, samples=10**6, nonfinite="end")
    assert ended.value.code == 1


def test_a_loss_that_recovers_is_saved_again(tmp_path):
    """A gradient scaler skips the step of such a loss, and the parameters stay finite."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    said: list[str] = []
    run = Training(
        model, optimizer, dataset_size=N, epochs=1, batch=BATCH, per_gpu=4, gpus=1, every_s=0.0,
        path=tmp_path / "c.pt", log=said.append,
    )  # fmt: skip
    stops = []
    for batch in run:
        bad = run.samples == 2 * BATCH and not batch.last
        loss = model(X[batch.indices]).mean()
        run.backward(loss + (float("inf") if bad else 0.0))
        run.step()
        if (tmp_path / "c.pt").exists() and not batch.last:
            stops.append(lineage(tmp_path / "c.pt")[-1].stop)
    # Saved after steps 1, 2, 4; the third had a bad loss in one of its two passes.
    assert stops == [8, 16, 16, 32] and lineage(tmp_path / "c.pt")[-1].stop == N
    assert sum("the loss is not finite at 24 samples" in line for line in said) == 1


def test_the_progress_file_tells(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path))
    train(Training, tmp_path / "c.pt", 3 * BATCH)
    found = read_progress(tmp_path, "5", os.getuid())
    assert found.nonfinite and found.checkpoint.samples == 3 * BATCH
    (tmp_path / "c.pt").unlink()
    train(Training, tmp_path / "c.pt", 10**9)
    assert not read_progress(tmp_path, "5", os.getuid()).nonfinite


def test_a_framework_checkpoint_is_not_replaced_either(tmp_path):
    said: list[str]
    model, written, said = torch.nn.Linear(4, 1), [], []
    run = Hosted(BATCH, every_s=0.0, log=said.append)
    run.take_over(tmp_path / "c", lambda: written.append(run.state.samples))
    run.open(N, N, None)

    class Optimizer:
        param_groups = ({"lr": 0.1},)

    run.begin(Optimizer(), None, model)
    for number, _ in enumerate(run.passes()):
        run.boundary()
        if number == 2:
            with torch.no_grad():
                model.bias.fill_(float("inf"))
        run.loss(torch.tensor(1.0))
        run.trained()
    run.finish()
    assert written == [BATCH, 2 * BATCH]
    assert any("parameter bias is not finite at 24 samples" in line for line in said)
    assert not run.is_finite()


def test_which_value_is_not_finite():
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.tensor([float("-inf"), 0.0]))
    assert nonfinite(model) == ""
    model[1].running_mean[1] = float("nan")
    assert nonfinite(model) == "buffer 1.running_mean"
    with torch.no_grad():
        model[0].weight[0, 1] = float("inf")
    assert nonfinite(model) == "parameter 0.weight"
    assert nonfinite(None) == "" and nonfinite(torch.nn.LazyLinear(3)) == ""


def test_a_loss_of_another_kind_is_not_looked_at():
    watch = LossWatch()
    watch.note(float("nan"))
    assert not watch.bad


def test_only_report_and_end_are_known(tmp_path):
    with pytest.raises(UsageError, match="nonfinite='stop': report or end"):
        train(Training, tmp_path / "c.pt", 0, nonfinite="stop")


def test_a_checkpoint_of_the_release_before_goes_on(tmp_path):
    """``release-before.pt`` was saved by commit e298fe9 at 16 of 40 samples of this training."""
    path = tmp_path / "c.pt"
    path.write_bytes(Path(__file__).with_name("release-before.pt").read_bytes())
    run, said = train(Training, path, 10**9)
    assert said[0].startswith("resumed at 16 samples (attempt 2") and run.samples == N
    assert check_lineage(lineage(path), N, samples=N, seed=0) is None
    assert [segment.attempt for segment in run.segments] == [1, 2]


@pytest.mark.parametrize("which", ["newest", "both"])
def test_a_checkpoint_of_a_newer_format_is_left_alone(tmp_path, which):
    path = tmp_path / "c.pt"
    train(Training, path, 10**9)
    content = checkpoint.read(path)
    newer = {**content, "hadar": checkpoint.FORMAT + 1}
    torch.save(newer, path)
    if which == "both":
        torch.save(newer, checkpoint.previous(path))
    before = path.read_bytes(), checkpoint.previous(path).read_bytes()
    with pytest.raises(HadarError, match=r"has format 2.*install the version that wrote it"):
        train(Training, path, 10**9, samples=2 * N)
    assert (path.read_bytes(), checkpoint.previous(path).read_bytes()) == before


def test_one_with_objects_of_other_kinds_is_not_passed_over(tmp_path):
    path = tmp_path / "c.pt"
    train(Training, path, 10**9)
    torch.save({**checkpoint.read(path), "more": Path("x")}, path)
    with pytest.raises(HadarError, match="trusted=True"):
        train(Training, path, 10**9, samples=2 * N)


def test_a_position_of_a_newer_format_is_refused(tmp_path):
    run = Hosted(BATCH, log=lambda line: None)
    run.take_over(tmp_path / "c", lambda: None)
    run.open(N, N, None)
    kept = run.checkpoint_content().replace('"format": 1', '"format": 2')
    with pytest.raises(HadarError, match="has format 2"):
        run.open(N, N, kept)
    run.signals.restore()


def test_a_process_that_may_not_read_its_checkpoint_does_not_begin_from_an_older_one(tmp_path):
    """As another user, since root may read everything."""
    needs_root("it acts as another user")
    path = tmp_path / "c.pt"
    train(Training, path, 10**9)
    path.chmod(0o600)
    program = f"from slurm_hadar.runtime import checkpoint as c; from pathlib import Path; " \
        f"c.load(Path({str(path)!r}), print)"  # fmt: skip
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and "/pytest-of-" in str(folder):
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program], user=65534, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Permission denied" in done.stderr and "site-packages" in done.stderr:
        missing("this Python cannot be run by other users")
    assert "cannot be read now: Permission denied" in done.stderr and not done.stdout
