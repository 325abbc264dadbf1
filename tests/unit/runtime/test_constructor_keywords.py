"""The keywords that scripts write: all of them, their defaults, and the message for a wrong one."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_hadar.runtime import Copies, FixedScale, Session, Training
from slurm_hadar.runtime.core import say
from slurm_hadar.runtime.framework_loop import Hosted

ROOT = Path(__file__).resolve().parents[3]
NEEDED = inspect.Parameter.empty
SESSION = {
    "name": "", "gpus": None, "signal": None, "nonfinite": "report", "log": say,
}  # fmt: skip
WORK = {
    "dataset_size": NEEDED, "batch": NEEDED, "epochs": None, "samples": None, "scheduler": None,
    "schedule": "epoch", "also": None, "seed": 0, "path": None, "learning_rate": "auto",
    "trusted": False,
}  # fmt: skip
KEYWORDS = {
    Training: {**SESSION, **WORK, "every_s": 600.0, "scaler": None, "per_gpu": None},
    Copies: {
        **SESSION, **WORK, "every_s": 0.0, "round_s": 30.0, "round_epochs": 0.125,
        "overhead": 0.02, "optimizer_state": "average", "shares": (),
    },
    Hosted: {**SESSION, "samples": None, "seed": 0, "every_s": 600.0, "learning_rate": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("made", KEYWORDS)
def test_a_script_may_write_each_keyword_and_may_rely_on_its_default(made):
    parameters = inspect.signature(made).parameters.values()
    keywords = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert {one.name: one.default for one in keywords} == KEYWORDS[made]
    first = [(one.name, one.default) for one in parameters if one not in keywords]
    names = ["batch"] if made is Hosted else ["model", "optimizer"]
    assert first == [(name, NEEDED) for name in names]
    assert {one.kind for one in parameters} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }


@pytest.mark.parametrize("made", [Training, Copies])
def test_what_is_needed_comes_first_in_the_help(made):
    names = list(inspect.signature(made).parameters)
    assert names[:5] == ["model", "optimizer", "dataset_size", "batch", "epochs"]


@pytest.mark.parametrize("made", [Training, Copies])
def test_the_help_explains_each_keyword(made):
    text = inspect.getdoc(made) + (inspect.getdoc(Training) if made is Copies else "")
    missing = [name for name in KEYWORDS[made] if f"``{name}" not in text]
    assert missing == []


def parts():
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


GOOD: dict[str, Any] = {"dataset_size": 8, "batch": 4, "epochs": 1}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**GOOD, "epoch": 1}, "unknown keyword 'epoch'; did you mean 'epochs'?"),
        (
            {**GOOD, "data_set_size": 1},
            "unknown keyword 'data_set_size'; did you mean 'dataset_size'?",
        ),
        ({**GOOD, "zzz": 1}, "unknown keyword 'zzz'"),
        ({"batch": 4}, "missing: 'dataset_size'"),
        ({}, "missing: 'dataset_size', 'batch'"),
    ],
)
@pytest.mark.parametrize("made", [Training, Copies])
def test_a_wrong_call_is_answered_by_one_sentence(made, options, sentence):
    with pytest.raises(TypeError) as caught:
        made(*parts(), **options)
    assert str(caught.value) == f"{made.__name__}: {sentence}"


@pytest.mark.parametrize("made", [Training, Copies])
def test_keywords_are_not_taken_by_position(made):
    with pytest.raises(TypeError, match=f"^{made.__name__}: too many positional arguments$"):
        made(*parts(), 8, **GOOD)


@pytest.mark.parametrize("made", [Training, Copies])
def test_model_and_optimizer_may_be_named(made):
    model, optimizer = parts()
    run = made(optimizer=optimizer, model=model, **GOOD)
    run._signals.restore()
    assert run._model is model and run._optimizer is optimizer


def test_a_class_made_of_another_says_its_own_name():
    with pytest.raises(TypeError, match=r"^FixedScale: unknown keyword 'epoch'; did you mean"):
        FixedScale(*parts(), tasks=2, **GOOD, epoch=1)


def test_what_only_a_session_has_is_not_taken_elsewhere():
    for name in ("sharded", "background"):
        with pytest.raises(TypeError, match=f"^Training: unknown keyword '{name}'"):
            Training(*parts(), **{**GOOD, name: True})
    session = Session(sharded=False, log=lambda line: None)
    session._core.signals.restore()
    assert session._core.options.sharded is False


SCRIPT = """\
from typing import Any
from slurm_hadar.runtime import Copies, Training
parts: Any = None
one = Training(parts, parts, dataset_size=9, batch=(32, 256), epochs=3, learning_rate="sqrt")
two = Copies(model=parts, optimizer=parts, dataset_size=9, batch=4, samples=9, shares=[1, 2])
one.step()
two.step()
"""
WRONG = {
    'Training(parts, parts, dataset_size=9, batch=4, epoch=3)': 'did you mean "epochs"?',
    'Training(parts, parts, batch=4)': 'Missing named argument "dataset_size"',
    'Training(parts, parts, dataset_size="9", batch=4)': '"dataset_size" to "Training" has incom',
    'Copies(parts, parts, dataset_size=9, batch=(2, 4))': '"batch" to "Copies" has incompatible',
    'Copies(parts, parts, dataset_size=9, batch=4, scaler=parts)': 'Unexpected keyword',
}  # fmt: skip


def test_mypy_checks_the_keywords_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text("\n".join([SCRIPT, *WRONG]))
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n"
        "[mypy-torch.*,numpy.*]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "script.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(found) == len(WRONG), done.stdout + done.stderr
    first = SCRIPT.count("\n") + 2
    for line, (number, wanted) in zip(found, enumerate(WRONG.values(), first), strict=True):
        assert line.startswith(f"script.py:{number}:") and wanted in line
