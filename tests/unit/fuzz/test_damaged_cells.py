"""Cells of the controller's file that a bad disk changed: said, put aside, or left out."""

import sqlite3
from pathlib import Path

import pytest

from benchmarks.fuzz import seeds
from slurm_hadar.controller.journal.store import DamagedStateFile, Store
from slurm_hadar.profiles.gpu_use import GpuUses
from slurm_hadar.profiles.measured import MeasuredStore


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE attained SET seen_s=?", "{}"),
        ("UPDATE attained SET gpu_s=? WHERE rowid=1", b"\xff\x00"),
        ("UPDATE journal SET opened_s=? WHERE outcome IS NOT NULL", "soon"),
        ("UPDATE journal SET details=?", b"{}"),
        ("UPDATE journal SET details=? WHERE outcome IS NULL", "[" * 100_000),
        ("UPDATE journal SET details=? WHERE outcome IS NULL", "7"),
        ("UPDATE policy SET state=?", "{"),
        ("UPDATE decision SET reason=?", 7.5),
    ],
)
def test_what_is_not_what_was_written_is_damage(
    tmp_path: Path, statement: str, value: object
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    connection = seeds.as_database(seeds.journal(), state / "hadar.sqlite")
    # A column of text or numbers converts what it is given; a bad disk does not.
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute(
        "UPDATE sqlite_master SET sql=replace(replace(sql, ' TEXT', ''), ' REAL', '')"
    )
    connection.close()
    connection = sqlite3.connect(state / "hadar.sqlite", isolation_level=None)
    connection.execute(statement, (value,))
    connection.close()
    with pytest.raises(DamagedStateFile, match="is damaged"):
        Store.open(state)
    anew = Store.open(state, repair=True)
    assert anew.open_entries() == [] and "put aside" not in anew.notes[0]
    assert list(state.glob("hadar.sqlite.damaged-*"))
    anew.close()


def test_damage_in_history_is_left_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    connection = seeds.as_database(seeds.journal(), state / "hadar.sqlite")
    # Closed, and all that came of it was seen: nothing is carried on from it.
    connection.execute(
        "UPDATE journal SET details='{', steps=' requeued@x sent@5.0', shown='', effect='['"
        " WHERE outcome IS NOT NULL AND job='3'"
    )
    connection.execute("UPDATE throughput SET samples_per_s='much' WHERE gpus=2")
    connection.close()
    store = Store.open(state)
    (entry,) = store.history("3")
    assert entry.details == {} and entry.steps == (("sent", 5.0),) and not entry.effect
    measured = list(MeasuredStore(store.connection).of("resnet18"))
    assert sorted(one.gpus for one in measured) == [1, 3, 4, 5, 6, 7, 8]
    store.close()


@pytest.mark.parametrize(
    "column", ["gpus", "utilization", "most_memory_mb", "held_idle", "weight_s"]
)
@pytest.mark.parametrize("value", ["x", b"\xff\x00", -1.5, float("inf"), 1e308])
def test_damage_in_what_gpus_did_is_left_out(column: str, value: object, tmp_path: Path) -> None:
    connection = seeds.as_database(seeds.journal(), tmp_path / "hadar.sqlite")
    uses = GpuUses(connection)
    (good,) = uses.of("resnet18", 7)
    assert good.gpus == 1 and good.utilization == 0.5
    connection.execute(f"UPDATE gpu_use SET {column}=?", (value,))
    assert uses.of("resnet18", 7) == []
    # The next report takes the place of what cannot be read, or lies beside it.
    assert uses.record((7, "resnet18", 64), "v100", seeds.TRAINING_USE, 60.0)
    assert uses.of("resnet18", 7) == [good]
    connection.close()
