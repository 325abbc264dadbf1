"""A loop of the user's own: resumable by few lines, and bit for bit the run that never stopped."""

import difflib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Forks
from small_training import outside_slurm

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import Session, own_loop
from slurm_hadar.runtime.attempts import Superseded
from slurm_hadar.runtime.own_loop import samples_in

pytestmark = [pytest.mark.usefixtures(outside_slurm.__name__), pytest.mark.timeout(600)]

PLAIN = Path(__file__).with_name("own_loop_plain.py")
RESUMABLE = Path(__file__).with_name("own_loop_session.py")
# Runs a script once for each stop, in a fork each. It signals itself when the script prints its
# n-th line, for each SIGNAL:n of a stop.
RUN = """
import builtins, os, runpy, signal, sys
script, stops, options = sys.argv[1], sys.argv[2].split("/"), sys.argv[3:]
for number, stop in enumerate(stops):
    child = os.fork()
    if not child:
        break
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), file=open(f"{number}.code", "w"))
else:
    sys.exit(0)
wanted = dict(reversed(word.split(":")) for word in stop.split(",") if word)
os.dup2(os.open(f"{number}.lines", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
shown, count = builtins.print, 0
def counted(*words, **options):
    global count
    shown(*words, **options)
    if "file" not in options:
        count += 1
        if str(count) in wanted:
            os.kill(os.getpid(), signal.Signals[wanted[str(count)]])
builtins.print = counted
sys.argv = [script, *options]
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def forks():
    with Forks("torch", "torch._dynamo", "slurm_hadar.runtime.session") as forks:
        yield forks


def runs(
    forks: Forks, script: Path, folder: Path, stops: str, *options: str
) -> list[tuple[int, list[str]]]:
    """Exit code and what was printed of the attempts, one for each of ``stops``."""
    folder.mkdir(exist_ok=True)
    program = folder / "attempts.py"
    program.write_text(RUN)
    env = {**os.environ, "HADAR_PAUSE_S": "0"}
    running = forks.start(program, [script, stops, *options], env, folder)
    assert running.communicate(timeout=500) and running.returncode == 0
    return [
        (
            int((folder / f"{number}.code").read_text()),
            (folder / f"{number}.lines").read_text().splitlines(),
        )
        for number in range(stops.count("/") + 1)
    ]


def same(one: Path, other: Path) -> bool:
    kept, mine = torch.load(one), torch.load(other)
    return str(kept) == str(mine) and all(
        torch.equal(a, b) for a, b in zip(tensors(kept), tensors(mine), strict=True)
    )


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list):
        for part in value:
            yield from tensors(part)


def test_at_most_eight_changed_lines_make_a_script_resumable():
    lines = difflib.unified_diff(
        PLAIN.read_text().splitlines(), RESUMABLE.read_text().splitlines(), n=0
    )
    changed = [
        line
        for line in lines
        if line[0] in "+-" and not line.startswith(("+++", "---")) and line[1:].strip()
    ]
    assert 0 < len(changed) <= 8, changed


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        # In the middle of an epoch, beside its validation, and of a global batch.
        ([], "SIGTERM:9/SIGTERM:6/SIGTERM:12/SIGTERM:13//"),
        (["--workers", "1"], "SIGTERM:18//"),
        (["--accumulate", "1", "--compile"], "SIGTERM:18//"),
    ],
)
def test_stopped_and_resumed_it_is_the_run_that_never_stopped(forks, tmp_path, options, stops):
    plain, own = tmp_path / "plain", tmp_path / "own"
    ((code, expected),) = runs(forks, PLAIN, plain, "", *options)
    assert code == 0 and "epoch 2" in "".join(expected), expected
    *attempts, again = runs(forks, RESUMABLE, own, stops, *options)
    codes = [143] * stops.count("SIGTERM") + [0]
    assert [code for code, _ in attempts] == codes, (own / "errors").read_text()
    assert [line for _, lines in attempts for line in lines] == expected
    # One that is started once more has nothing to do, and the files are as they were.
    assert again == (0, [])
    for name in ("end.pt", "best.pt"):
        assert same(plain / name, own / name), name


def test_killed_after_a_save_that_was_asked_for_it_does_again_what_was_lost(forks, tmp_path):
    plain, own = tmp_path / "plain", tmp_path / "own"
    ((_, expected),) = runs(forks, PLAIN, plain, "")
    (killed, lines), (code, rest) = runs(forks, RESUMABLE, own, "SIGUSR2:20,SIGKILL:37/")
    assert (killed, lines) == (-signal.SIGKILL, expected[:37])
    assert code == 0
    # The save came at the end of the step in which it was asked for.
    assert rest in (expected[20:], expected[21:])
    assert same(plain / "end.pt", own / "end.pt")


def small(path, **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, Session(path, model=model, optimizer=optimizer, **options)


def loader_of(data: Any, size: int, **more: Any) -> torch.utils.data.DataLoader[Any]:
    """PyTorch reads all that has items and a length."""
    return torch.utils.data.DataLoader(data, size, **more)


def train(model, optimizer, x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_superseded_attempt_overwrites_neither_checkpoint_nor_file(tmp_path):
    loader = loader_of(torch.randn(8, 2), 2)
    model, optimizer, stale = small(tmp_path / "run.pt")
    epochs = stale.epochs(1)
    next(epochs)
    batches = iter(stale.batches(loader))
    train(model, optimizer, next(batches))

    model, optimizer, later = small(tmp_path / "run.pt")
    for _ in later.epochs(1):
        for x in later.batches(loader):
            train(model, optimizer, x)
    with later.replacing(tmp_path / "best.pt") as path:
        torch.save(model.state_dict(), path)
    kept = [(tmp_path / name).read_bytes() for name in ("run.pt", "best.pt")]

    with pytest.raises(Superseded):
        for _ in batches:
            pass
        next(epochs)
    with pytest.raises(Superseded), stale.replacing(tmp_path / "best.pt") as path:
        torch.save({}, path)
    assert [(tmp_path / name).read_bytes() for name in ("run.pt", "best.pt")] == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".run.pt.attempts",
        "best.pt",
        "run.pt",
    ]


def test_a_loader_of_its_own_generator_goes_on_in_its_order(tmp_path):
    def reads(path, stop_at=None):
        generator = torch.Generator().manual_seed(5)
        loader = loader_of(range(10), 3, shuffle=True, generator=generator)
        model, optimizer, session = small(path, every_s=0)
        for epoch in session.epochs(3):
            for number, batch in enumerate(session.batches(loader), session.batch):
                yield epoch, number, batch.tolist()
                if (epoch, number) == stop_at:
                    return
                train(model, optimizer, torch.ones(1, 2))

    expected = list(reads(tmp_path / "whole.pt"))
    found = list(reads(tmp_path / "cut.pt", (1, 2)))
    assert found == expected[:7]
    assert list(reads(tmp_path / "cut.pt")) == expected[6:]


def test_an_epoch_that_is_left_early_counts_what_it_trained(tmp_path):
    loader = loader_of(torch.randn(8, 2), 2)
    model, optimizer, session = small(tmp_path / "run.pt")
    for epoch in session.epochs(9):
        for number, x in enumerate(session.batches(loader)):
            train(model, optimizer, x)
            if number == 2:
                break
        if epoch == 1:
            session.stop()
    assert session.samples == 12
    model, optimizer, again = small(tmp_path / "run.pt")
    assert (again.samples, again.attempt, list(again.epochs(9))) == (12, 2, [])


def test_what_cannot_be_kept_or_would_mean_other_samples_is_refused(tmp_path):
    for words, part in (("no state_dict", {"best": 1.0}), ("name is taken", {"session": {}})):
        with pytest.raises(UsageError, match=words):
            Session(tmp_path / "run.pt", **part)
    with pytest.raises(UsageError, match="path"):
        Session(model=torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="nonfinite"):
        Session(nonfinite="nothing")
    model, optimizer, session = small(tmp_path / "run.pt", every_s=0)
    batches = iter(session.batches(loader_of(torch.randn(8, 2), 2)))
    train(model, optimizer, next(batches))
    with pytest.raises(UsageError, match="inside the loop"):
        session.save()
    next(batches)
    model, optimizer, session = small(tmp_path / "run.pt")
    with pytest.raises(UsageError, match="batch 1 of 4, and the loader has 8"):
        next(iter(session.batches(loader_of(torch.randn(8, 2), 1))))


def test_a_loop_that_saves_by_its_own_code_answers_and_leaves(tmp_path, monkeypatch):
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("HADAR_EXCHANGE", str(exchange))
    monkeypatch.setenv("HADAR_PROGRESS_S", "0")
    said: list[str] = []
    session = Session(samples=100, name="m", every_s=1e9, gpus=1, log=said.append)
    session.progress(8)
    assert (session.should_save(), session.should_leave()) == (False, False)
    write_plan(exchange, JobPlan("12", save="now", gpus={"v100": 1}, restarts=0))

    def leave_when_answered():
        until = time.monotonic() + 60
        while time.monotonic() < until:
            report = read_progress(exchange, "12", os.getuid())
            if report is not None and report.ack is not None:
                break
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    time.sleep(1.1)
    session.progress(8)
    assert session.should_save() and not session.should_leave()
    helper = threading.Thread(target=leave_when_answered)
    helper.start()
    session.saved()
    helper.join()
    report = read_progress(exchange, "12", os.getuid())
    assert (report.ack.save, report.ack.samples) == ("now", 116)
    assert (report.samples, report.batch, report.checkpoint.samples) == (116, 8, 116)
    assert not session.should_save() and session.should_leave()
    with pytest.raises(SystemExit) as left:
        session.leave()
    assert left.value.code == 143
    session.finish()
    assert any("saved at 116 samples as asked" in line for line in said)


def test_in_a_sandbox_a_session_without_a_name_is_not_held_back_and_says_so(tmp_path, monkeypatch):
    pace = {"nodes": {"v1": ["v100"]}, "rates": {"m": {"v100": {"1": 1.0}}}, "time_scale": 1.0}
    (tmp_path / "true_rates.json").write_text(json.dumps(pace))
    monkeypatch.setenv("HADAR_TRUE_RATES", str(tmp_path / "true_rates.json"))
    monkeypatch.setenv("HADAR_EMULATION", "slurm_hadar.sandbox.gpu_emulation")
    monkeypatch.setenv("SLURMD_NODENAME", "v1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    _, _, session = small(tmp_path / "run.pt", log=said.append)
    for batch in session.batches(loader_of(torch.randn(4000, 2), 1000)):
        assert len(batch) == 1000
    session.finish()
    assert sum("not held back" in line and "names no model" in line for line in said) == 1


SEVERAL = """
import os, signal, sys
import torch
from slurm_hadar.runtime import Session, join, ranks
# They leave within an epoch, however fast a step is.
ranks._MOST_STEPS = 2
rank, size, local = join("gloo", init_method="file://" + sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.arange(40), torch.randn(40, 4))
sampler = torch.utils.data.DistributedSampler(data, size, rank, seed=3)
loader = torch.utils.data.DataLoader(data, 2, sampler=sampler)
model = torch.nn.Linear(4, 1)
if size > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
session = Session("run.pt", model=model, optimizer=optimizer)
for epoch in session.epochs(3):
    sampler.set_epoch(epoch)
    for number, (which, x) in enumerate(session.batches(loader), session.batch):
        print("read", epoch, number, *which.tolist(), flush=True)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (rank, epoch, number) == (1, 1, 3) and session.attempt == 1:
            os.kill(os.getpid(), signal.SIGTERM)
print("end", session.samples, *(value.item() for value in model.parameters().__next__()[0]))
"""


def processes(forks: Forks, folder: Path, ranks: int) -> list[tuple[int, list[str], str]]:
    """Exit code, lines and errors of each."""
    program = folder / "several.py"
    program.write_text(SEVERAL)
    env = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    started = [
        forks.start(
            program, [folder / "store"], {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, folder
        )
        for rank in range(ranks)
    ]
    ended = [process.communicate(timeout=300) for process in started]
    (folder / "store").unlink(missing_ok=True)
    return [
        (process.returncode, out.splitlines(), errors)
        for process, (out, errors) in zip(started, ended, strict=True)
    ]


def test_several_processes_leave_together_and_each_goes_on_with_its_own_samples(forks, tmp_path):
    stopped = processes(forks, tmp_path, 2)
    assert [code for code, _, _ in stopped] == [143, 143], stopped
    assert stopped[0][1][-1].split()[1] == "1"
    # In the middle of an epoch a process alone would read other samples.
    ((code, _, errors),) = processes(forks, tmp_path, 1)
    assert code == 1 and "declare gpus=2" in errors
    resumed = processes(forks, tmp_path, 2)
    assert [code for code, _, _ in resumed] == [0, 0], resumed
    for before, after in zip(stopped, resumed, strict=True):
        places = [line.split()[1:3] for line in before[1] + after[1][:-1]]
        assert places == [[str(e), str(n)] for e in range(3) for n in range(10)]
    for epoch in "012":
        read = [
            index
            for _, lines, _ in stopped + resumed
            for line in lines
            if line.split()[:2] == ["read", epoch]
            for index in line.split()[3:]
        ]
        assert sorted(map(int, read)) == list(range(40))
    assert resumed[0][1][-1] == resumed[1][1][-1] and resumed[0][1][-1].startswith("end 120 ")


def test_samples_of_batches_of_all_shapes():
    x = torch.zeros(5, 2)
    for batch in (x, [x, x], (x, "a"), {"x": x, "y": None}, [[x]], ["a"] * 5):
        assert samples_in(batch) == 5
    assert samples_in(3) == 1


def test_a_place_in_a_loader_asks_for_the_folder_of_its_workers(monkeypatch):
    asked: list[list[int]] = []
    monkeypatch.setattr(own_loop, "own_the_folder_of_workers", asked.append)
    loader = [1, 2]
    assert list(own_loop.LoaderPlace(1).open(loader)) == [1, 2] and asked == [loader]
