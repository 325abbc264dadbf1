"""Why `hadar explain` calls a GPU type unused."""

from dataclasses import replace

import pytest
from hand_made import RATES, config, job, look, running, seen

from slurm_hadar.controller.presentation.speeds import rate_rows
from slurm_hadar.controller.snapshot.chaining import ChainRecord
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.domain.declaration import Declaration

SITE = config('[partitions]\nchain = ["gpu"]\n')
KNOWN = Declaration(
    types=("any",), checkpoint="yes", model="ResNet-50", batch=(64, 64), samples=2_000_000
)
IN_TIME = "the rest of its work does not fit in its time limit there"


def unused(one, past=None):
    """Type -> why one GPU of it is not used, of those with a reason."""
    shown = seen([one])
    rows = rate_rows(one.id, shown, look(shown, SITE, past), RATES, SITE)
    assert {row.gpu_type for row in rows} == {"v100", "p100", "k80"}
    found = {row.gpu_type: row.source.partition("; not used: ")[2] for row in rows if row.gpus == 1}
    return {kind: why for kind, why in found.items() if why}


def speed(kind):
    (rate,) = RATES.rates("ResNet-50", 64, [kind], [1])[0][0]
    return rate


def test_nothing_is_said_of_types_that_are_usable():
    assert unused(job(declaration=KNOWN, time_limit_s=1e9)) == {}


def test_a_type_that_the_owner_excludes():
    one = job(declaration=replace(KNOWN, types=("v100", "p100")), time_limit_s=1e9)
    assert unused(one) == {"k80": "its owner excludes this type"}
    one = job(declaration=replace(KNOWN, gpu_mem=16 * 1024), time_limit_s=1e9)
    assert unused(one) == {"k80": "it has less memory than gpu_mem=16G"}


def test_a_type_in_none_of_its_partitions():
    one = job(declaration=KNOWN, time_limit_s=1e9, partitions=("v100", "p100"))
    why = "its partitions, its constraint or a reservation leave it no node of this type"
    assert unused(one) == {"k80": why}


@pytest.mark.parametrize("requeues", [0, 5])
def test_a_type_too_slow_for_the_time_limit_and_the_requeues_that_are_left(requeues):
    assert speed("k80") < speed("p100") < speed("v100")
    seconds = KNOWN.samples / speed("v100") * 1.2 + 60
    declared = replace(KNOWN, max_requeues=requeues)
    one = job(declaration=declared, time_limit_s=seconds / (1 + requeues))
    more = ", its requeues counted" if requeues else ""
    assert unused(one) == {"p100": IN_TIME + more, "k80": IN_TIME + more}
    # The type that it has is in use, whatever its limit.
    on_k80 = running("1", {"k1": {"k80": 1}}, declaration=declared, time_limit_s=one.time_limit_s)
    assert unused(on_k80) == {"p100": IN_TIME + more}
    if requeues:
        spent = ControllerHistory(chains={"1": ChainRecord(requests=5, asked=0)})
        on_v100 = running("1", {"v1": {"v100": 1}}, declaration=declared, restarts=5,
                          time_limit_s=one.time_limit_s)  # fmt: skip
        assert set(unused(on_v100, past=spent)) == {"p100", "k80"}
