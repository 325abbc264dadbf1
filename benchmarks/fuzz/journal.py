"""The journal's file, damaged in its bytes or in its cells: said, put aside, and begun anew."""

import random
import shutil
import sqlite3
from pathlib import Path

from benchmarks.fuzz import mutations, reports, seeds
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.profiles.gpu_use import GpuUses
from slurm_hadar.profiles.measured import MeasuredStore, RateSample

_CELLS = (
    ("journal", ("job", "kind", "phase", "opened_s", "changed_s", "details", "outcome")),
    ("decision", ("job", "time_s", "placement", "reason")),
    ("attained", ("job", "gpu_s", "seen_s")),
    ("steering", ("job", "text")),
    ("policy", ("name", "state")),
    ("gpu_use", ("uid", "model", "batch", "utilization", "power_w", "held_idle", "weight_s")),
    ("throughput", ("uid", "model", "gpus", "samples_per_s", "weight_s", "runs", "last_run")),
)


def read_journal(data: bytes, folder: Path) -> object:
    """Open the file as a controller does, read all of it, and put it aside where it is damaged.

    Raises HadarError where the file is refused; whatever is raised then, what comes after putting
    it aside works, or the file is said to be of a newer version.
    """
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(mode=0o700)
    (state / "hadar.sqlite").write_bytes(data)
    try:
        return _all_of(Store.open(state))
    except HadarError as error:
        if "newer" not in str(error):
            anew = Store.open(state, repair=True)
            try:
                anew.begin("1", "move", "asked", 1.0, {})
                assert anew.open_entries()
            except sqlite3.Error:
                pass
            finally:
                anew.close()
        raise


def _all_of(store: Store) -> object:
    try:
        with store.readable_errors():
            found = [
                store.open_entries(), store.history("3"), store.counts_since("move", 0.0),
                store.last_time("3", "move"), store.last_times("move"), store.decisions.last(),
                store.counts_after("move", "not", "moved"),
                store.steerings(["3"]), store.policy_state("hadar"),
                store.serve({"3": (2, seeds.CLOSED)}, seeds.CLOSED + 9),
            ]  # fmt: skip
            store.end(store.begin("1", "move", "asked", 1.0, {}), "done", 2.0)
            store.forget(seeds.CLOSED + 1)
            measured = MeasuredStore(store.connection)
            measured.record(RateSample("resnet18", "v100", 2, 64, 200.0, 60.0, 7))
            found.append(list(measured.of("resnet18")))
            uses = GpuUses(store.connection)
            uses.record((7, "resnet18", 64), "v100", seeds.TRAINING_USE, 60.0)
            known = uses.of("resnet18", 7)
            found.append(gpu_use.rows(reports.SEEN, reports.JOB, known))
            found.append(gpu_use.too_small(reports.JOB, known, {"k80": 12.0}))
            return found
    finally:
        store.close()


def damage(draw: random.Random, data: bytes) -> bytes:
    """Bytes of the file, or a cell of it, are others."""
    if draw.randrange(2):
        return mutations.binary(draw, data)
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "one.sqlite"
        connection = seeds.as_database(data, path)
        try:
            table, columns = draw.choice(_CELLS)
            column = draw.choice(columns)
            value = draw.choice(
                (None, 7, -1.5, 1e308, 2**62, b"\xff\x00", b"{}", "", "x", "{", "[]", "null", "{}",
                 '{"a": NaN}', "[" * 5000, mutations.PLANES, "9" * 400)
            )  # fmt: skip
            where = draw.choice(("", " WHERE rowid=1"))
            connection.execute(f"UPDATE OR IGNORE {table} SET {column}=?{where}", (value,))
        except sqlite3.IntegrityError:
            pass
        finally:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
        return path.read_bytes()
