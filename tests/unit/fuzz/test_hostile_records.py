"""What a user may write into his job's texts spoils nothing of the other jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.declaration import Declaration, decode, encode, merge, parse
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.slurm import jobs, records

DATA = Path(__file__).parents[2] / "data" / "slurm"
RELEASES = ["22.05.8", "24.11.5", "26.05.5"]
HIS = ("name", "comment", "admin_comment", "current_working_directory", "command", "features",
       "dependency", "wckey", "std_out", "submit_line")  # fmt: skip
"""Fields whose text is the owner's own."""
ANY_TEXT = st.text(st.characters(), max_size=60) | st.sampled_from(
    ["[hadar1 ", "[hadar1 model=\ud800]", "[hadar1 gpus=1-" + "9" * 400 + "]", "[hadar1;off=yes]",
     "[hadar1 constraint=%ff%fe]", "x" * 100_000, "\ud83d", "\0", "$(id)", "a=b NodeName=evil"]
)  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_one_jobs_texts_spoil_no_other_job(release: str, data: st.DataObject) -> None:
    document: dict[str, Any] = json.loads((DATA / release / "squeue_forms.json").read_text())
    before, _ = jobs.parse(json.dumps(document), None, 100)
    record = document["jobs"][0]
    for key in data.draw(st.sets(st.sampled_from(HIS), min_size=1)):
        record[key] = data.draw(ANY_TEXT)
    found, _ = jobs.parse(json.dumps(document), None, 100)
    assert [job.id for job in found] == [job.id for job in before]
    assert found[1:] == before[1:]
    assert found[0].gpus == before[0].gpus and found[0].uid == before[0].uid


@settings(max_examples=40, deadline=None)
@given(comment=st.text(st.characters(), max_size=80), constraint=st.text(max_size=30))
def test_a_declaration_comes_back_out_of_any_comment(comment: str, constraint: str) -> None:
    declared = Declaration(model="resnet18", gpus=(1, 4), constraint=constraint)
    try:
        old = decode(comment)
    except UsageError:
        old = None
    whole = merge(comment, declared)
    assert decode(whole) == declared
    if old is None and "[hadar1" not in comment:
        assert whole.startswith(comment)


@given(seconds=st.floats(0, 1e6))
def test_seconds_of_a_declaration_keep_all_their_digits(seconds: float) -> None:
    declared = parse([f"restart_cost={seconds!r}"], "here")
    assert decode(encode(declared)) == declared


@settings(max_examples=30, deadline=None)
@given(reason=st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp", "Cc"]), max_size=60))
def test_a_reason_on_a_node_spoils_no_other_node(reason: str) -> None:
    text = (DATA / "24.11.5" / "nodes.txt").read_text()
    before = records.nodes(text)
    lines = text.splitlines()
    lines[0] += f" Reason={reason} [root@2026-01-01T00:00:00]"
    found = records.nodes("\n".join(lines) + "\n")
    assert found == before
