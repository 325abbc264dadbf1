"""What the files that everybody may read say of a job's owner."""

from collections import Counter
from contextlib import closing
from types import SimpleNamespace

from hand_made import NOW, RATES, config, dictate, nodes, observation, running
from looking import Looking

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.slurm.traffic import Traffic

KNOWN = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=10_000)


def test_how_far_its_owner_is_believed_stands_in_no_plan_file(tmp_path):
    """The reason of a move goes into the plan file that the job reads."""
    shown = observation(
        [running("1", {"k1": {"k80": 1}}, declaration=KNOWN)], nodes(k1=1), steering={}
    )
    cluster = SimpleNamespace(
        traffic=Traffic(lambda: NOW), queries=Counter(), read_config=lambda: {}
    )

    def decide(view, memory):
        return dictate(view, {"1": {"v100": 1}}), memory

    with closing(Store.open(tmp_path / "state")) as store:
        controller = Looking(config(), cluster, store, RATES, 0, lambda: NOW, decide=decide)
        store.connection.execute("INSERT INTO declared_work VALUES (1000, ?, 300, 100)", (11,))
        controller.shown = shown
        report = controller.plan()
    (move,) = report.diff.of(Kind.MOVE)
    assert "declared work counts" not in move.reason
    assert "its declared work counts 3.0 times" in report.plan.placements["1"].reason
