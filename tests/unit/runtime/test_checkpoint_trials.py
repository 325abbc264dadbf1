"""What a stranger broke: damaged files, odd tensors, shared folders, AMP, frameworks."""

import json
import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from missing import missing, needs_root
from small_training import BATCH, N, X, Y, outside_slurm

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.runtime import Training, check_lineage, checkpoint, leaving, lineage
from slurm_hadar.runtime.attempts import Attempt, attempts_folder
from slurm_hadar.runtime.finite import nonfinite
from slurm_hadar.runtime.ranks import Ranks

pytestmark = pytest.mark.usefixtures(outside_slurm.__name__)


def make(path, said=None, **options):
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    settings = {"dataset_size": N, "epochs": 1, "batch": BATCH, "path": path, **options}
    log = said.append if said is not None else (lambda line: None)
    return Training(model, optimizer, log=log, **settings), model


def train(run, model, until=10**9):
    for batch in run:
        run.backward(torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices]))
        run.step()
        if run.samples >= until:
            break


def test_a_damaged_newest_file_does_not_replace_the_good_one_before(tmp_path):
    path = tmp_path / "c.pt"
    train(*make(path, every_s=0.0))
    good = checkpoint.previous(path).read_bytes()
    path.write_bytes(path.read_bytes()[:2000])
    run, model = make(path)
    train(run, model, run.samples + BATCH)
    assert run.save()
    # A kill before that rename would have left the good one alone.
    assert checkpoint.previous(path).read_bytes() == good
    run.save()
    assert checkpoint.is_whole(path) and checkpoint.is_whole(checkpoint.previous(path))
    assert checkpoint.previous(path).read_bytes() != good


def odd_tensors():
    dense = torch.eye(3)
    yield dense.to_sparse()
    yield dense.to_sparse_csr()
    yield dense.to_sparse_csc()
    yield dense.to(torch.float8_e4m3fn)
    yield dense.to(torch.complex64)
    yield dense.to(torch.bool)
    yield torch.empty(0)
    yield torch.empty(2, device="meta")
    yield torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
    yield torch.tensor(7, dtype=torch.int32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tensor", list(odd_tensors()), ids=lambda t: f"{t.dtype} {t.layout}")
def test_tensors_of_every_kind_may_be_in_a_model(tensor):
    model = torch.nn.Linear(2, 2)
    model.register_buffer("odd", tensor)
    assert nonfinite(model) == ""
    model.odd_parameter = torch.nn.Parameter(tensor, requires_grad=False)
    assert nonfinite(model) == ""


@pytest.mark.filterwarnings("ignore")
def test_a_value_that_is_not_finite_is_found_in_odd_tensors_too():
    bad = torch.eye(3)
    bad[1, 1] = float("nan")
    for tensor in (bad.to_sparse(), bad.to_sparse_csr(), bad.to(torch.complex64), bad.half()):
        model = torch.nn.Module()
        model.odd = torch.nn.Parameter(tensor, requires_grad=False)
        assert nonfinite(model) == "parameter odd"


def test_with_a_scaler_the_parameters_decide(tmp_path):
    """An infinite loss makes the scaler skip the step; TERM in that very step saves all before."""
    said: list[str] = []
    run, model = make(tmp_path / "c.pt", said, scaler=torch.amp.GradScaler("cpu"), epochs=2)
    with pytest.raises(SystemExit) as left:
        for batch in run:
            loss = torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices])
            bad = run.samples == 3 * BATCH
            run.backward(loss * (float("inf") if bad else 1.0))
            run.step()
            if bad:
                os.kill(os.getpid(), signal.SIGTERM)
    assert left.value.code == 143 and f"saved at {4 * BATCH} samples on TERM; leaving" in said
    assert lineage(tmp_path / "c.pt")[-1].stop == 4 * BATCH


def test_leaving_without_a_save_is_reported(tmp_path):
    said: list[str] = []
    run, model = make(tmp_path / "c.pt", said)
    with pytest.raises(SystemExit):
        for batch in run:
            run.backward(model(X[batch.indices]).mean() * float("nan"))
            run.step()
            os.kill(os.getpid(), signal.SIGTERM)
    assert said[-1] == f"leaving at {BATCH} samples without saving"


def test_a_file_system_that_does_not_answer_for_a_while_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_hadar.runtime.save_and_leave._CHECK_S", 0.0)
    run, model = make(tmp_path / "c.pt")
    steps: list[int]
    real, steps = Path.stat, []

    def stat(path, **options):
        if path.name == "owner" and len(steps) in (2, 3):
            raise PermissionError(13, "Permission denied")
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    for batch in run:
        run.backward(model(X[batch.indices]).mean())
        run.step()
        steps.append(1)
    assert run.samples == N and lineage(tmp_path / "c.pt")[-1].stop == N


def test_a_pass_that_is_broken_off_does_not_count_as_given(tmp_path):
    run, model = make(tmp_path / "c.pt", per_gpu=3, gpus=1)
    for number, batch in enumerate(run):
        run.backward(model(X[batch.indices]).mean())
        if number == 4:
            break
        run.step()
    for batch in run:
        run.backward(model(X[batch.indices]).mean())
        run.step()
        if not batch.last:
            run.save()
    assert check_lineage(lineage(tmp_path / "c.pt"), N, samples=N, seed=0) is None


def test_a_save_that_works_at_last_takes_the_exit_code_back(tmp_path, monkeypatch):
    run, model = make(tmp_path / "c.pt")
    refused = [OSError(28, "No space left on device")]
    real = checkpoint.save

    def save(*arguments):
        if refused:
            raise refused[0]
        real(*arguments)

    monkeypatch.setattr(checkpoint, "save", save)
    train(run, model)
    try:
        assert leaving._failing is not None
        refused.clear()
        assert run.save() and leaving._failing is None
    finally:
        leaving.fail_at_exit(0)


def test_processes_that_read_different_files_do_not_train_together(monkeypatch):
    ranks = Ranks()
    monkeypatch.setattr(ranks, "gather", lambda value: [value, 0])
    with pytest.raises(UsageError, match=r"position.*differs between the processes \(1920, 0\)"):
        ranks.must_agree(1920, "the position")
    ranks.must_agree(0, "the position")


def test_another_user_of_a_shared_folder_goes_on_or_leaves_nothing(tmp_path):
    needs_root("it acts as two other users")
    for folder in (tmp_path, *tmp_path.parents):
        if "/pytest-of-" in str(folder):
            folder.chmod(0o755)
    shared, sticky = tmp_path / "group", tmp_path / "sticky"
    for folder, mode in ((shared, 0o770), (sticky, 0o1777)):
        folder.mkdir()
        os.chown(folder, 0, 100)
        folder.chmod(mode)

    def begin(folder, uid, gid):
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                os.setgroups([100])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                Attempt.begin(folder / "c.pt", "7", 0)
                code = 0
            except UsageError:
                code = 5
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert (begin(shared, 65534, 65534), begin(shared, 1, 1)) == (0, 0)
    # Where only the owner may remove what is there, the other one gives up without a trace.
    assert (begin(sticky, 65534, 65534), begin(sticky, 1, 1)) == (0, 5)
    assert len(list(attempts_folder(sticky / "c.pt").iterdir())) == 1
    assert begin(sticky, 65534, 65534) == 0


def test_lightning_says_which_checkpoint_it_leaves_out(tmp_path):
    if not find_spec("lightning"):
        missing("the extra lightning is not installed")
    from slurm_hadar.runtime.lightning import HadarLightningCallback

    said: list[str]
    said, path = [], tmp_path / "run.ckpt"
    run = HadarLightningCallback(path, batch=8, log=said.append)
    torch.save({"a": 1}, checkpoint.previous(path))
    path.write_bytes(b"PK\x03\x04 cut")
    assert run.resume() == str(checkpoint.previous(path))
    assert said == [f"checkpoint {path} is damaged; going on from {checkpoint.previous(path)}"]
    run._run.signals.restore()


class Stop(Exception):
    pass


class HuggingFace:
    """A Trainer on a tiny model. ``nan_at``: the step from which the loss is NaN."""

    def __init__(self, output, nan_at=10**9, stop_at=0, epochs=3, nonfinite="report", **arguments):
        if not find_spec("transformers"):
            missing("the extra huggingface is not installed")
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from slurm_hadar.runtime.huggingface import HadarTransformersCallback

        torch.manual_seed(3)
        steps = []

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 1)

            def forward(self, x, labels):
                steps.append(1)
                loss = torch.nn.functional.mse_loss(self.net(x), labels)
                return {"loss": loss * (float("nan") if len(steps) > nan_at else 1.0)}

        class Stops(TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if state.global_step == stop_at:
                    raise Stop

        settings = TrainingArguments(
            output_dir=str(output), num_train_epochs=epochs, logging_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=True, max_grad_norm=0.0, **arguments,
        )  # fmt: skip
        data = [{"x": X[i], "labels": Y[i]} for i in range(N)]
        self.said: list[str] = []
        self.run = HadarTransformersCallback(
            batch=BATCH, nonfinite=nonfinite, every_s=1e9, log=self.said.append
        )
        self.trainer = Trainer(
            Module(),
            settings,
            train_dataset=data,
            eval_dataset=data[:8],
            callbacks=[self.run, Stops()],
        )

    def train(self):
        found = self.run.resume(self.trainer)
        self.trainer.train(resume_from_checkpoint=found)
        return found


@pytest.fixture
def own_saves():
    return {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}


def folders(output):
    return sorted(path.name for path in output.glob("checkpoint-*"))


def test_hugging_face_keeps_the_last_finite_checkpoints(tmp_path, own_saves):
    first = HuggingFace(tmp_path, nan_at=7, **own_saves)
    try:
        first.train()
    finally:
        leaving.fail_at_exit(0)
    assert folders(tmp_path) == ["checkpoint-4", "checkpoint-6"]
    assert any("the checkpoint at 48 samples is kept" in line for line in first.said)
    again = HuggingFace(tmp_path, **own_saves)
    assert again.train().endswith("checkpoint-6")


def test_hugging_face_removes_no_checkpoint_of_a_later_attempt_at_its_end(tmp_path):
    """With save_total_limit=1 the trainer then removes all but the best."""
    first = HuggingFace(
        tmp_path, epochs=1, save_strategy="steps", save_steps=2, save_total_limit=1,
        eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
    )  # fmt: skip
    load_best, there = first.trainer._load_best_model, []

    def then_stalls():
        load_best()
        Attempt.begin(tmp_path / "checkpoint", "", 0)
        shutil.copytree(tmp_path / folders(tmp_path)[-1], tmp_path / "checkpoint-99")
        there.extend(folders(tmp_path))

    first.trainer._load_best_model = then_stalls
    with pytest.raises(SystemExit) as ended:
        first.train()
    assert ended.value.code == 77
    assert len(there) > 1 and folders(tmp_path) == there


def test_hugging_face_on_a_full_disk_goes_on(tmp_path, monkeypatch):
    """Safetensors has an error of its own for that."""
    run = HuggingFace(tmp_path, save_strategy="no", epochs=1)
    from safetensors import SafetensorError

    def full(*_, **__):
        (run.run._run.attempt.folder / "checkpoint-5").mkdir()
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(run.trainer, "save_model", full)
    try:
        run.train()
        assert leaving._failing is not None
    finally:
        leaving.fail_at_exit(0)
    assert any("cannot be written (No space left on device)" in line for line in run.said)
    assert [path.name for path in run.run._run.attempt.folder.iterdir()] == ["owner"]


def test_hugging_face_resumes_twice_in_one_process_and_from_another_folder(
    tmp_path, monkeypatch, own_saves
):
    monkeypatch.chdir(tmp_path)
    once = HuggingFace("out", stop_at=5, **own_saves)
    with pytest.raises(Stop):
        once.train()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    once.trainer.args.output_dir = str(tmp_path / "out")
    handler = once.trainer.callback_handler
    handler.callbacks = [one for one in handler.callbacks if type(one).__name__ != "Stops"]
    once.train()
    assert once.run.samples == 3 * N and not leaving._failing
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_hugging_face_leaves_out_a_folder_with_a_file_cut_short(tmp_path, own_saves):
    HuggingFace(tmp_path, **own_saves).train()
    newest = max(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    model = newest / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-8])
    again = HuggingFace(tmp_path, epochs=4, **own_saves)
    found = again.run.resume(again.trainer)
    assert found is not None and found != str(newest)
    assert f"checkpoint {newest} is damaged; going on from the one before" in again.said
    again.run._run.signals.restore()
    (tmp_path / found / "notes.txt").write_text("a script's own")
    assert HuggingFace(tmp_path, epochs=4, **own_saves).run.resume(again.trainer) == found
    # One of an earlier commit has no list of its files.
    mark = newest / "hadar.json"
    record = {k: v for k, v in json.loads(mark.read_text()).items() if k != "files"}
    mark.write_text(json.dumps(record))
    third = HuggingFace(tmp_path, epochs=4, **own_saves)
    assert third.run.resume(third.trainer) == str(newest)
    third.run._run.signals.restore()


def test_hugging_face_leaves_a_checkpoint_of_a_newer_format_alone(tmp_path):
    there = tmp_path / "checkpoint-3"
    there.mkdir()
    mark = {"format": 2, "samples": 24, "time": 1.0, "asked": True, "files": {}}
    (there / "hadar.json").write_text(json.dumps(mark))
    newer = HuggingFace(tmp_path)
    with pytest.raises(HadarError, match=f"checkpoint {there} has format 2, .* formats up to 1"):
        newer.run.resume(newer.trainer)
    newer.run._run.signals.restore()
    assert folders(tmp_path) == ["checkpoint-3"]


def test_lightning_leaves_a_checkpoint_of_a_newer_format_alone(tmp_path):
    if not find_spec("lightning"):
        missing("the extra lightning is not installed")
    import lightning.pytorch as pl

    from slurm_hadar.runtime.lightning import HadarLightningCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            return self.net(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(epochs):
        run = HadarLightningCallback(path, batch=BATCH, log=lambda line: None)
        trainer = pl.Trainer(
            max_epochs=epochs, callbacks=[run], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1,
        )  # fmt: skip
        data = torch.utils.data.TensorDataset(X, Y)
        trainer.fit(Module(), run.loader(data), ckpt_path=run.resume())

    path = tmp_path / "run.ckpt"
    fit(1)
    content = torch.load(path, weights_only=False)
    ours = content["callbacks"]["slurm_hadar"]
    ours["position"] = json.dumps({**json.loads(ours["position"]), "format": 2})
    torch.save(content, path)
    written = path.read_bytes()
    with pytest.raises(HadarError, match=f"checkpoint {path} has format 2, .* formats up to 1"):
        fit(2)
    assert path.read_bytes() == written


def test_hugging_face_ends_on_nan_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_hadar.runtime.save_and_leave._CHECK_S", 0.0)
    run = HuggingFace(tmp_path, nan_at=2, epochs=50, nonfinite="end", save_strategy="no")
    with pytest.raises(SystemExit) as ended:
        run.train()
    assert ended.value.code == 1 and run.run.samples < 10 * BATCH


def test_an_unreadable_newest_checkpoint_is_not_passed_over(tmp_path, monkeypatch, own_saves):
    HuggingFace(tmp_path, **own_saves).train()
    real = Path.read_text

    def read_text(path, *arguments, **options):
        if path.name == "hadar.json" and path.parent.name == "checkpoint-15":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    assert "checkpoint-15" in folders(tmp_path)
    monkeypatch.setattr(Path, "read_text", read_text)
    again = HuggingFace(tmp_path, **own_saves)
    with pytest.raises(HadarError, match="cannot be read now: Permission denied"):
        again.run.resume(again.trainer)
    again.run._run.signals.restore()
    shutil.rmtree(tmp_path / "checkpoint-15")
