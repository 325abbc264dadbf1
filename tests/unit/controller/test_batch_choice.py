"""From ``batch=64:512`` and the noise scale of a job to what a policy may choose, and back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hand_made import CONFIG, NOW, config, decide, job, look, observation, only, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.entry_details import batch_of_entry
from slurm_hadar.controller.snapshot import batch_choice
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.placement import Placement
from slurm_hadar.exchange.progress import Progress

RANGE = Declaration(
    model="resnet18", types=("any",), batch=(64, 256), samples=10**8, checkpoint="yes"
)
V1 = {"v1": {"v100": 1}}


def progress(batch=64, noise=None, restarts=0):
    return Progress(
        job="1", time=NOW, restarts=restarts, host="v1", pid=1, in_step=True, started=NOW - 900,
        model="resnet18", samples=10**6, rate=0.0, window_s=0.0, batch=batch, gpus=1,
        noise_scale=noise,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "sizes"),
    [
        ({"batch": (64, 512)}, (64, 128, 256, 512)),
        ({"batch": (64, 300)}, (64, 128, 256, 300)),
        ({"batch": (64, 64)}, ()),
        ({"batch": None}, ()),
        ({"batch": (64, 512), "checkpoint": ""}, ()),
        ({"batch": (64, 512), "pin": True}, ()),
        ({"batch": (64, 512), "fork": (1, 4)}, ()),
        ({"batch": (1, 10**12)}, tuple(2**k for k in range(12))),
    ],
)
def test_a_range_gives_doublings(declared, sizes):
    known = {"checkpoint": "yes", **declared}
    assert batch_choice.allowed(job(declaration=Declaration(types=("any",), **known))) == sizes


def test_a_view_knows_sizes_rates_noise_and_the_present_batch():
    reports = {"1": progress(batch=128, noise=700.0)}
    jobs = [running("1", V1, declaration=RANGE), job("2")]
    view = look(observation(jobs, progress=reports)).view
    batches = view.jobs.batches
    assert batches is not None
    assert batches.sizes.tolist() == [[64, 128, 256], [0, 0, 0]]
    assert batches.noise.tolist() == [700.0, 0.0]
    assert batches.base.tolist() == [64.0, 0.0]
    assert batches.present.tolist() == [128, 0]
    v100 = view.types.index("v100")
    assert batches.rate[0, v100, 0, 0] == view.jobs.rate[0, v100, 0]
    # The table knows ResNet-18 to be faster with a larger batch.
    assert (np.diff(batches.rate[0, v100, 0]) > 0).all()
    assert not batches.rate[1, :, :, 1:].any()


def test_no_range_no_trait():
    assert look(observation([job()])).view.jobs.batches is None


def test_what_an_earlier_attempt_said_is_its_noise_but_not_its_batch():
    reports = {"1": progress(batch=128, noise=700.0)}
    view = look(
        observation([running("1", V1, declaration=RANGE, restarts=1)], progress=reports)
    ).view
    assert view.jobs.batches is not None
    assert view.jobs.batches.noise.tolist() == [700.0]
    assert view.jobs.batches.present.tolist() == [0]


def test_another_batch_on_the_same_gpus_is_a_move():
    observed = observation(
        [running("1", V1, declaration=RANGE, requeue=True)],
        progress={"1": progress(noise=700.0)},
    )
    other = Placement({"v100": 1}, batch=256, reason="dictated")
    action = only(decide(observed, {"1": other}), Kind.MOVE)
    assert action.placement is not None
    assert action.placement.batch == 256


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (64, progress(noise=700.0)),  # it has it
        (256, progress(noise=None)),  # its runtime has no choice
        (96, progress(noise=700.0)),  # not one that it may have
        (None, progress(noise=700.0)),
        (256, progress(noise=700.0, restarts=3)),  # it has not said yet what it has now
        (256, None),
    ],
)
def test_no_move_where_the_batch_is_right_or_nobody_knows(batch, said):
    observed = observation(
        [running("1", V1, declaration=RANGE, requeue=True)], progress={"1": said} if said else {}
    )
    same = Placement({"v100": 1}, batch=batch, reason="dictated")
    assert not decide(observed, {"1": same}).of(Kind.MOVE)


def test_a_script_that_takes_another_batch_all_the_same_is_moved_once():
    runs = running("1", V1, declaration=RANGE)
    wish = {"1": Placement({"v100": 1}, {"v1": {"v100": 1}}, batch=256)}
    found = decide(observation([runs], progress={"1": progress(noise=700.0)}), wish)
    comment = steering.merge("", only(found, Kind.MOVE).steering)
    again = replace(runs, restarts=1, admin_comment=comment)
    reports = {"1": progress(noise=700.0, restarts=1)}
    assert not decide(observation([again], progress=reports), wish).actions
    less = {"1": Placement({"v100": 1}, {"v1": {"v100": 1}}, batch=128)}
    assert (
        only(decide(observation([again], progress=reports), less), Kind.MOVE).steering.batch == 128
    )


def test_the_journal_keeps_the_batch():
    assert batch_of_entry(json.loads(json.dumps({"batch": 128}))) == 128
    assert batch_of_entry({"batch": None}) is None
    assert batch_of_entry({}) is None
    assert batch_of_entry({"batch": "many"}) is None


def test_ones_takes_a_larger_batch_when_the_noise_scale_is_known():
    site = config('[controller]\npolicy = "ones"\n')
    assert CONFIG.controller.policy != "ones"
    calm = observation(
        [running("1", V1, declaration=RANGE, requeue=True)], progress={"1": progress(noise=None)}
    )
    assert not [
        a for a in decide(calm, site=site).actions if a.placement and a.placement.batch != 64
    ]
    noisy = observation(
        [running("1", V1, declaration=RANGE, requeue=True)], progress={"1": progress(noise=1e6)}
    )
    action = only(decide(noisy, site=site), Kind.MOVE)
    assert action.placement is not None
    assert action.placement.batch == 256
    assert "batch 256, worth" in action.reason
