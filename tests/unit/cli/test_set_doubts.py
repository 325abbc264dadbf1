"""``hadar set`` says what of its words has no effect."""

import pytest
from typer.testing import CliRunner

from slurm_hadar.cli import jobs
from slurm_hadar.cli.main import app
from slurm_hadar.domain.declaration import Declaration, parse


@pytest.mark.parametrize(
    ("words", "before", "says"),
    [
        (["lose=5"], Declaration(), "job 7: lose=5 has no effect without checkpoint=restart"),
        (["lose=5"], Declaration(checkpoint="watch:/x"), ""),
        (["signal=USR1"], Declaration(), "job 7: signal=USR1 has no effect"),
        (["checkpoint=signal"], Declaration(batch=(8, 64)), "batch=8:64 has no effect"),
        (["pin=yes"], Declaration(batch=(8, 64), checkpoint="signal"), ""),
    ],
)
def test_what_has_no_effect_is_said_in_one_line(monkeypatch, words, before, says):
    found = parse(words, "here", before)
    monkeypatch.setattr(jobs, "_change", lambda *_: {"7_1": found, "7_2": found})
    done = CliRunner().invoke(app, ["set", "7", *words])
    assert done.exit_code == 0 and done.stdout == f"job 7: {words[0]}\n"
    assert done.stderr.count("\n") == bool(says) and says in done.stderr
