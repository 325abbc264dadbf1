import json
import zipfile
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from missing import missing
from small_training import outside_slurm

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.runtime import check_lineage
from slurm_hadar.runtime.framework_loop import Hosted
from slurm_hadar.runtime.samples import digest, order

pytestmark = pytest.mark.usefixtures(outside_slurm.__name__)


class Optimizer:
    def __init__(self):
        self.param_groups = [{"lr": 0.1}]


def opened(tmp_path, dataset_size, total, kept=None, passes=1, batch=8, written=None, **options):
    run = Hosted(batch, log=lambda line: None, **options)
    write = written.append if written is not None else (lambda text: None)
    run.take_over(tmp_path / "c", lambda: write(run.checkpoint_content()))
    run.open(dataset_size, total, kept, passes)
    return run


def ranks(run, rank, size, passes):
    """As if it were one of several processes."""
    run._ranks.rank, run._ranks.size = rank, size
    run._parts = size * passes
    return run


@settings(max_examples=40, deadline=None)
@given(
    st.integers(20, 90),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(9, 20),
    st.integers(20, 200),
)
def test_all_processes_together_are_given_each_sample_of_an_epoch_once(
    tmp_path_factory, size, processes, passes, batch, total
):
    folder = tmp_path_factory.getbasetemp()
    done = 0
    runs = [
        ranks(opened(folder, size, total, batch=batch, passes=passes), rank, processes, passes)
        for rank in range(processes)
    ]
    while done < total:
        epoch, start = divmod(done, size)
        parts = [list(run.passes()) for run in runs]
        assert len({len(part) for part in parts}) == 1
        assert all(indices for part in parts for indices in part)
        given_ = sorted(index for part in parts for indices in part for index in indices)
        stop = min(size, start + total - done)
        real = order(0, epoch, size)[start:stop]
        total_digest = sum(row[0] for run in runs for row in run._given) % 2**64
        assert total_digest == digest(real)
        if stop - start >= processes * passes:
            assert given_ == sorted(real.tolist())
        else:
            assert set(given_) == set(real.tolist())
        for run, part in zip(runs, parts, strict=True):
            steps = [run.trained() for _ in part]
            assert sum(steps) * passes == len(steps)
            assert steps[passes - 1 :: passes] == [True] * sum(steps)
        done = runs[0].state.samples
        assert {run.state.samples for run in runs} == {done}
        assert runs[0].at_end
    assert done == total and runs[0].finished
    assert next(iter(runs[0].passes()), None) is None


def test_it_goes_on_where_the_checkpoint_ends_and_reading_ahead_counts_nothing(tmp_path):
    written: list[Any] = []
    first = opened(tmp_path, 30, 60, written=written, every_s=0.0)
    first.begin(Optimizer(), None)
    reader = first.passes()
    seen = []
    for number in range(3):
        seen += next(reader)
        if number == 0:
            next(reader)
        assert first.trained()
        first.boundary()
    # Four passes were read, three went in; each step was saved.
    assert first.state.samples == 24 and len(written) == 3
    kept = json.loads(written[-1])
    assert kept["samples"] == 24 and kept["attempt"] == 1

    second = opened(tmp_path, 30, 60, written[-1])
    second.begin(Optimizer(), None)
    while not second.finished:
        for _ in second.passes():
            second.trained()
            second.boundary()
    second.finish()
    segments = second.state.segments
    assert check_lineage(segments, 30, samples=60, seed=0) is None
    assert [segment.attempt for segment in segments] == [1, 2, 2]
    assert segments[0].digest == digest(order(0, 0, 30)[:24])


def test_a_checkpoint_that_the_framework_writes_of_its_own_accord_is_complete(tmp_path):
    run = opened(tmp_path, 30, 60)
    run.begin(Optimizer(), None)
    for _ in run.passes():
        run.trained()
    kept = json.loads(run.checkpoint_content())
    assert kept["samples"] == 30 and kept["segments"][0][:3] == [0, 0, 30]
    run.signals.restore()


def test_a_full_disk_is_said_and_the_training_goes_on(tmp_path):
    said: list[str] = []
    run = Hosted(8, log=said.append, every_s=0.0)

    def write():
        raise RuntimeError("[enforce fail] no space\nmore")

    run.take_over(tmp_path / "c", write)
    run.open(30, 60, None)
    run.begin(Optimizer(), None)
    next(reader := run.passes())
    run.trained()
    run.boundary()
    assert next(reader) and "cannot be written ([enforce fail] no space)" in said[-1]
    run.signals.restore()


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (0, {}, "a range"),
        ((8, 4), {}, "a range"),
        (8, {"seed": -1}, "seed"),
        (8, {"samples": 0}, "samples"),
        (8, {"signal": "XYZ"}, "no signal"),
    ],
)
def test_what_makes_no_sense_is_refused(batch, options, message):
    with pytest.raises(UsageError, match=message):
        Hosted(batch, **options)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UsageError, match="accumulated passes"):
        opened(tmp_path, 30, 60, passes=9)
    kept = opened(tmp_path, 30, 60).checkpoint_content()
    with pytest.raises(UsageError, match="dataset_size=30, not 31"):
        opened(tmp_path, 31, 60, kept)


def test_a_lightning_checkpoint_that_was_cut_short_is_not_taken(tmp_path):
    if not find_spec("lightning"):
        missing("the extra lightning is not installed")
    from slurm_hadar.runtime.lightning import HadarCallback

    path = tmp_path / "run.ckpt"
    run = HadarCallback(path, batch=64)
    assert run.resume() is None
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(HadarError, match="is damaged"):
        run.resume()
    with zipfile.ZipFile(tmp_path / "run.ckpt.previous", "w") as archive:
        archive.writestr("a", "b")
    assert run.resume() == str(tmp_path / "run.ckpt.previous")
    with pytest.raises(UsageError, match="the batch and the order"):
        run.loader([1], batch_size=3)
    run._run.signals.restore()


def test_a_hugging_face_checkpoint_without_its_mark_is_not_taken(tmp_path):
    if not find_spec("transformers"):
        missing("the extra huggingface is not installed")
    from slurm_hadar.runtime.huggingface import _whole

    for number, text in ((7, ""), (8, "{"), (9, '{"samples": 9}')):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "hadar.json").write_text(text)
    assert _whole(tmp_path) == []
    (tmp_path / "checkpoint-9" / "hadar.json").write_text('{"samples": 9, "time": 1.5}')
    assert [folder.name for folder, _ in _whole(tmp_path)] == ["checkpoint-9"]
