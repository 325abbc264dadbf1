"""A training that is killed, moved and resumed, in this process: real models, real checkpoints."""

import json
import os
import random
import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import Training, check_lineage, checkpoint, lineage

N = 40
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


class Killed(BaseException):
    """Stands for SIGKILL: nothing is saved any more."""


def build(kind="sgd"):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.3), torch.nn.Linear(5, 2))
    if kind == "sgd":
        optimizer: torch.optim.Optimizer
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    return model, optimizer, scheduler


def attempt(path, kill_after=None, save_after=(), kind="sgd", sabotage=None, **options):
    """One attempt; returns the training, the model, and what the loop was given."""
    model, optimizer, scheduler = build(kind)
    given_to_loop: list[int] = []
    defaults = {"dataset_size": N, "epochs": 3, "batch": 7, "log": lambda line: None}
    run = Training(model, optimizer, scheduler=scheduler, path=path, **{**defaults, **options})
    if sabotage is not None:
        sabotage(run, optimizer)
    steps = 0
    if run.attempt > 1:
        torch.rand(7)
    try:
        for batch in run:
            given_to_loop += batch.indices.tolist()
            run.backward(
                torch.nn.functional.cross_entropy(model(X[batch.indices]), Y[batch.indices])
            )
            run.step()
            # Somebody else draws random numbers too.
            random.random(), np.random.rand()
            steps += batch.last
            if steps in save_after:
                run.save()
            if steps == kill_after:
                raise Killed
    except Killed:
        run._signals.restore()
    return run, model, given_to_loop


def files(folder):
    """All files below a folder but the owner of the present attempt."""
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.name != "owner"
    )


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("cut", [1, 5, 6, 11, 17])
def test_resume_is_bit_exact(tmp_path, kind, cut):
    _, whole, order = attempt(tmp_path / "a.pt", kind=kind)
    _, _, first = attempt(tmp_path / "b.pt", kind=kind, save_after=(cut,), kill_after=cut)
    run, resumed, second = attempt(tmp_path / "b.pt", kind=kind)
    assert run.attempt == 2
    assert first + second == order
    assert torch.equal(parameters(whole), parameters(resumed))
    assert check_lineage(lineage(tmp_path / "b.pt"), N, samples=3 * N, seed=0) is None


def test_what_was_not_saved_is_trained_again_and_counts_once(tmp_path):
    _, whole, _ = attempt(tmp_path / "a.pt")
    attempt(tmp_path / "b.pt", save_after=(4,), kill_after=9)
    _, resumed, _ = attempt(tmp_path / "b.pt")
    assert torch.equal(parameters(whole), parameters(resumed))
    assert check_lineage(lineage(tmp_path / "b.pt"), N, samples=3 * N, seed=0) is None


@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    lives=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 12), st.sampled_from([1, 2, 3, 8])),
        max_size=5,
    ),
)
def test_exactly_once_through_kills_batches_and_gpus(tmp_path_factory, data, lives):
    path = tmp_path_factory.mktemp("run") / "c.pt"
    for save_at, kill_at, gpus in lives:
        low = data.draw(st.sampled_from([4, 7, 16, 40]))
        attempt(path, kill_at, (save_at,), batch=(low, 40), gpus=gpus, per_gpu=3)
    run, _, _ = attempt(path, batch=(4, 40), gpus=2, per_gpu=3)
    assert run.samples == 3 * N
    segments = lineage(path)
    assert check_lineage(segments, N, samples=3 * N, seed=0) is None


def test_gpus_2_then_8_then_3_keep_the_global_batch(tmp_path):
    path = tmp_path / "c.pt"
    run, _, first = attempt(path, 2, (2,), batch=16, gpus=2)
    assert run._state.per_gpu == 8
    _, _, second = attempt(path, 2, (2,), batch=16, gpus=8)
    run, _, third = attempt(path, batch=16, gpus=3)
    assert (run.batch, run._state.per_gpu) == (16, 8)
    assert sorted(first + second + third) == sorted(list(range(N)) * 3)
    assert [s.gpus for s in lineage(path)][:4] == [2, 8, 8, 3]
    assert check_lineage(lineage(path), N, samples=3 * N, seed=0) is None


def test_accumulated_passes_are_the_global_batch():
    def grads(per_gpu):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = Training(model, optimizer, dataset_size=N, samples=16, batch=16, per_gpu=per_gpu)
        passes = 0
        for batch in run:
            passes += 1
            run.backward(
                torch.nn.functional.cross_entropy(model(X[batch.indices]), Y[batch.indices])
            )
            run.step()
        return passes, parameters(model)

    (one, whole), (four, parts) = grads(16), grads(5)
    assert (one, four) == (1, 4)
    assert torch.allclose(whole, parts, atol=1e-6)


def off_by_one_batch(run, optimizer):
    run._state.samples -= run.batch
    run._steering._agreed = run._state.samples


def skips_a_batch(run, optimizer):
    run._state.samples += run.batch
    run._steering._agreed = run._state.samples


def other_order(run, optimizer):
    run._state.seed += 1


@pytest.mark.parametrize("sabotage", [off_by_one_batch, skips_a_batch, other_order])
def test_a_sabotaged_position_is_caught(tmp_path, sabotage):
    attempt(tmp_path / "c.pt", 3, (3,))
    run, _, _ = attempt(tmp_path / "c.pt", sabotage=sabotage)
    assert run.samples == 3 * N
    assert check_lineage(lineage(tmp_path / "c.pt"), N, seed=0) is not None
    assert check_lineage(lineage(tmp_path / "c.pt"), N) is not None


def test_an_optimizer_that_is_not_restored_is_caught(tmp_path):
    _, whole, _ = attempt(tmp_path / "a.pt")
    attempt(tmp_path / "b.pt", 3, (3,))
    _, forgetful, _ = attempt(
        tmp_path / "b.pt", sabotage=lambda run, optimizer: optimizer.state.clear()
    )
    assert not torch.equal(parameters(whole), parameters(forgetful))


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "foreign"])
def test_a_broken_checkpoint_falls_back_to_the_previous(tmp_path, damage):
    path = tmp_path / "c.pt"
    attempt(path, 7, (2, 5))
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flip":
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    else:
        torch.save({"a": 1}, path)
    said: list[str] = []
    run, _, _ = attempt(path, log=said.append)
    assert "checkpoint" in said[0] and str(checkpoint.previous(path)) in said[0]
    assert said[1].startswith("resumed at 14 samples")
    assert check_lineage(lineage(path), N, samples=3 * N, seed=0) is None
    assert run.attempt == 2


def test_two_broken_checkpoints_are_an_error_not_a_new_start(tmp_path):
    path = tmp_path / "c.pt"
    attempt(path, 7, (2, 5))
    path.write_bytes(b"x")
    checkpoint.previous(path).write_bytes(b"y")
    with pytest.raises(HadarError, match="from the start"):
        attempt(path)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"hadar": 1, "x": Evil()}, tmp_path / "c.pt")
    with pytest.raises(HadarError, match="trusted=True"):
        attempt(tmp_path / "c.pt")
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "c.pt"
    attempt(path, 3, (3,))
    with pytest.raises(UsageError, match="seed=0, not 1"):
        attempt(path, seed=1)
    with pytest.raises(UsageError, match="dataset_size=40, not 41"):
        attempt(path, dataset_size=41)
    other = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="does not fit"):
        Training(
            other,
            torch.optim.SGD(other.parameters(), lr=0.1),
            dataset_size=N,
            epochs=1,
            batch=4,
            path=path,
        )


def test_a_full_disk_does_not_stop_the_training(tmp_path):
    attempt(tmp_path / "c.pt", 3, (3,))
    said: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        run, _, _ = attempt(tmp_path / "c.pt", 5, (2,), log=said.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run.samples == 54
    assert "cannot be written" in said[1] and "\n" not in said[1]
    assert files(tmp_path) == ["c.pt"]
    assert lineage(tmp_path / "c.pt")[-1].stop == 21


def test_the_folder_of_the_checkpoint_is_made(tmp_path):
    attempt(tmp_path / "new" / "er" / "c.pt", 1, (1,))
    assert lineage(tmp_path / "new" / "er" / "c.pt")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        attempt(tmp_path / "file" / "c.pt")


def test_nothing_is_left_aside(tmp_path):
    attempt(tmp_path / "c.pt", save_after=(1, 2, 3))
    assert files(tmp_path) == ["c.pt", "c.pt.previous"]


def test_a_finished_training_does_nothing_more(tmp_path):
    attempt(tmp_path / "c.pt")
    _, _, again = attempt(tmp_path / "c.pt")
    assert again == []


def test_stop_is_for_good(tmp_path):
    model, optimizer, _ = build()
    for expected in (7, 7):
        run = Training(
            model,
            optimizer,
            dataset_size=N,
            epochs=3,
            batch=7,
            path=tmp_path / "c.pt",
            log=lambda line: None,
        )
        for batch in run:
            run.backward(model(X[batch.indices]).sum())
            run.stop()
            run.step()
        assert run.samples == expected


def test_saves_every_so_often(tmp_path):
    attempt(tmp_path / "c.pt", kill_after=4, every_s=0.0)
    # The fourth step's iteration did not end.
    assert lineage(tmp_path / "c.pt")[-1].stop == 21


def test_a_loader_reads_ahead_and_resumes(tmp_path):
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return index

    def train(kill_after):
        model, optimizer, _ = build()
        run = Training(
            model,
            optimizer,
            dataset_size=N,
            epochs=2,
            batch=7,
            per_gpu=3,
            path=tmp_path / "c.pt",
            log=lambda line: None,
        )
        seen: list[int] = []
        steps = 0
        for batch, indices in run.load(Data()):
            assert indices.tolist() == batch.indices.tolist()
            seen += indices.tolist()
            run.backward(model(X[indices]).sum())
            run.step()
            steps += batch.last
            if steps == kill_after:
                run.save()
                run._signals.restore()
                break
        return seen

    assert sorted(train(3) + train(None)) == sorted(list(range(N)) * 2)


def test_misuse_is_reported(tmp_path):
    model, optimizer, _ = build()

    def make(**options):
        return Training(model, optimizer, **{"dataset_size": N, "batch": 4, "epochs": 1, **options})

    for options in (
        {"epochs": None},
        {"samples": 5},
        {"batch": 0},
        {"batch": (8, 4)},
        {"seed": -1},
        {"schedule": "day"},
        {"dataset_size": 0},
        {"also": {"model": model}},
        {"signal": "NONE"},
    ):
        with pytest.raises(UsageError):
            make(**options)
    run = make()
    with pytest.raises(UsageError, match="inside the loop"):
        run.backward(torch.zeros(1))
    with pytest.raises(UsageError, match="call step"):
        for batch in run:
            run.backward(model(X[batch.indices]).sum())
    run = make()
    with pytest.raises(UsageError, match="call backward"):
        for _ in run:
            run.step()


def test_state_is_readable_json(tmp_path):
    attempt(tmp_path / "c.pt", 3, (3,))
    state = json.loads(checkpoint.read(tmp_path / "c.pt")["state"])
    assert state["samples"] == 21 and state["attempt"] == 1


def test_asked_without_a_checkpoint_it_goes_on_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path))
    write_plan(tmp_path, JobPlan("5", gpus={}, save="n1"))
    said: list[str] = []
    run, _, _ = attempt(None, log=said.append)
    assert run.samples == 3 * N
    assert said == ["was asked to save and cannot, as it has no path for a checkpoint; going on"]
    last = read_progress(tmp_path, "5", os.getuid())
    assert last is not None and last.ack is None and last.finished


def test_a_folder_that_is_not_there_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path / "none"))
    said: list[str] = []
    assert attempt(None, log=said.append)[0].samples == 3 * N
    assert len(said) == 1 and "going on without the controller" in said[0]
