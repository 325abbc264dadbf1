"""The policies for idle nodes, as the live side will call them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies.bftrainer import equal as bftrainer_equal
from slurm_hadar.policies.bftrainer import policy as bftrainer
from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.policies.bftrainer.records import NO_TRAINER, IdleView, Trainer

DECIDES = (bftrainer.decide, bftrainer.decide_plain, bftrainer_equal.decide)


def trainer(most: int = 8, per_node: float = 100.0, user: str = "", least: int = 1) -> Trainer:
    rate = per_node * np.arange(most + 1, dtype=np.float64) ** 0.95
    rate[:least] = 0.0
    return Trainer(f"t{most}", rate[None, :], 18.0, 12.0, user)


def view(nodes: int, trainers: list[Trainer], since: list[float] | None = None) -> IdleView:
    return IdleView(
        now=1000.0,
        nodes=np.arange(nodes),
        since_s=np.array(since if since is not None else [900.0] * nodes),
        holder=np.full(nodes, NO_TRAINER),
        trainers=tuple(trainers),
    )


def random_view(seed: int, types: int = 1) -> IdleView:
    random = np.random.default_rng(seed)
    nodes = int(random.integers(0, 30))
    trainers = []
    for j in range(int(random.integers(0, 5))):
        one = trainer(int(random.integers(1, 9)), float(random.uniform(1, 200)), "ab"[j % 2])
        rate = one.rate * random.uniform(0.3, 1.0, (types, 1))
        trainers.append(replace(one, rate=rate))
    holder = random.integers(-1, max(len(trainers), 1), nodes) if trainers else np.full(nodes, -1)
    for j, one in enumerate(trainers):
        holder[np.flatnonzero(holder == j)[one.most :]] = NO_TRAINER
    return IdleView(
        now=5000.0,
        nodes=np.sort(random.choice(100, nodes, replace=False)),
        since_s=random.integers(0, 6, nodes).astype(np.float64) * 800.0,
        holder=holder,
        trainers=tuple(trainers),
        gpu_type=random.integers(0, types, nodes),
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(DECIDES), st.sampled_from((1, 1, 1, 2)))
def test_maps_are_valid_and_the_same_twice(
    seed: int, decide: Callable[..., Any], types: int
) -> None:
    seen = random_view(seed, types)
    before = seen.holder.copy()
    first, stays = decide(seen, IdleSurvival.unknown())
    second, again = decide(seen, IdleSurvival.unknown())
    assert (first.holder == second.holder).all() and stays.to_dict() == again.to_dict()
    assert (seen.holder == before).all()
    assert first.holder.shape == seen.holder.shape
    assert ((first.holder >= -1) & (first.holder < max(len(seen.trainers), 1))).all()
    for j, one in enumerate(seen.trainers):
        assert (first.holder == j).sum() <= one.most
        if types == 1:
            grown = ((first.holder == j) & (before != j)).any()
            shrunk = ((first.holder != j) & (before == j)).any()
            assert not (grown and shrunk)


@pytest.mark.parametrize("decide", DECIDES)
def test_idle_nodes_are_handed_out(decide: Callable[..., Any]) -> None:
    plan, _ = decide(view(10, [trainer(), trainer()]), IdleSurvival.unknown())
    assert np.bincount(plan.holder).tolist() == [5, 5]


@pytest.mark.parametrize("decide", DECIDES)
def test_caps_of_the_cluster_and_of_a_user(decide: Callable[..., Any]) -> None:
    trainers = [trainer(user="ann"), trainer(user="ann"), trainer(user="bob")]
    capped = replace(view(20, trainers), most_nodes=9, user_caps={"ann": 3})
    plan, _ = decide(capped, IdleSurvival.unknown())
    counts = np.bincount(plan.holder[plan.holder >= 0], minlength=3)
    assert counts[0] + counts[1] == 3
    assert counts[2] == 6


def test_a_large_trainer_is_not_stopped_for_one_node() -> None:
    holder = np.array([0] * 20 + [NO_TRAINER])
    one = view(21, [trainer(64)])
    plan, _ = bftrainer.decide(replace(one, holder=holder), IdleSurvival.unknown())
    assert (plan.holder == holder).all()
    plan, _ = bftrainer.decide(
        replace(one, holder=holder, forward_s=3600.0), IdleSurvival.unknown()
    )
    assert (plan.holder == 0).all()


@pytest.mark.parametrize("types", [1, 2])
def test_looking_less_far_than_a_restart_still_starts(types: int) -> None:
    one = replace(trainer(), rate=np.repeat(trainer().rate, types, axis=0))
    seen = replace(view(4, [one]), forward_s=5.0, gpu_type=np.arange(4) % types)
    plan, _ = bftrainer.decide(seen, IdleSurvival.unknown())
    assert (plan.holder == 0).all()


def test_old_nodes_go_to_the_trainer_on_old_nodes() -> None:
    since = [0.0] * 4 + [990.0] * 4 + [0.0] * 4 + [990.0] * 4
    holder = np.array([1] * 4 + [0] * 4 + [NO_TRAINER] * 8)
    seen = replace(view(16, [trainer(), trainer()], since), holder=holder)
    plan, _ = bftrainer.decide(seen, IdleSurvival.unknown())
    assert plan.holder[8:].tolist() == [1] * 4 + [0] * 4


def test_a_shrink_that_pays_frees_the_youngest_nodes() -> None:
    slow, fast = trainer(8, 1.0), trainer(4, 1000.0)
    since = [10.0 * n for n in range(8)]
    seen = replace(view(8, [slow, fast], since), holder=np.zeros(8, np.int64))
    plan, _ = bftrainer.decide(seen, IdleSurvival.unknown())
    assert plan.holder.tolist() == [0] * 4 + [1] * 4
    assert plan.notes


def test_fewer_nodes_than_a_trainer_needs_are_not_kept() -> None:
    big, small = trainer(8, 100.0, least=4), trainer(8)
    seen = replace(view(2, [big, small]), holder=np.zeros(2, np.int64))
    plan, _ = bftrainer.decide(seen, IdleSurvival.unknown())
    assert plan.holder.tolist() == [1, 1]


def _weeks(stays: IdleSurvival, rounds: int) -> IdleSurvival:
    """Node 0 leaves every two minutes; node 1 stays."""
    for at in range(rounds):
        now = 120.0 * at
        seen = replace(
            view(2, []),
            now=now,
            since_s=np.array([now, 0.0]),
        )
        stays = stays.updated(seen)
    return stays


def test_stays_are_learned_from_what_was_seen() -> None:
    stays = _weeks(IdleSurvival.unknown(), 2000)
    now = 240_000.0
    seen = replace(view(2, []), now=now, since_s=np.array([now, 0.0]))
    young, old = stays.updated(seen).chance(seen, 120.0).tolist()
    assert young > 0.3
    assert old < 0.01


def test_a_shaky_node_is_not_worth_a_stop() -> None:
    since = [0.0] * 6 + [240_000.0, 240_000.0]
    one = replace(
        view(8, [trainer(64)], since), now=240_000.0, holder=np.array([0] * 6 + [NO_TRAINER] * 2)
    )
    fresh, _ = bftrainer.decide(one, IdleSurvival.unknown())
    learned, _ = bftrainer.decide(one, _weeks(IdleSurvival.unknown(), 2000))
    assert (fresh.holder == 0).all()
    # Two nodes for two minutes would pay; not when they are likely to go and stop six others.
    fewer = replace(one, forward_s=80.0)
    assert (bftrainer.decide(fewer, IdleSurvival.unknown())[0].holder == 0).all()
    assert (
        bftrainer.decide(fewer, _weeks(IdleSurvival.unknown(), 2000))[0].holder[6:] == NO_TRAINER
    ).all()
    assert learned.holder.shape == (8,)


def test_what_was_learned_survives_json() -> None:
    stays = _weeks(IdleSurvival.unknown(), 10)
    again = IdleSurvival.from_dict(json.loads(json.dumps(stays.to_dict())))
    assert again.to_dict() == stays.to_dict()
    assert (
        IdleSurvival.from_dict(IdleSurvival.unknown().to_dict()).to_dict()
        == IdleSurvival.unknown().to_dict()
    )


@pytest.mark.parametrize("change", [{"left": [[1.0]]}, {"nodes": "x"}, {"now": "soon"}])
def test_damaged_memory_is_one_sentence(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        IdleSurvival.from_dict(IdleSurvival.unknown().to_dict() | change)


def test_types_without_rates_are_refused() -> None:
    seen = replace(view(2, [trainer()]), gpu_type=np.array([0, 1]))
    with pytest.raises(UsageError, match="2 GPU types"):
        bftrainer.decide(seen, IdleSurvival.unknown())


@pytest.mark.parametrize("rate", [[[1.0, 2.0]], [[0.0, -1.0]], [[0.0, np.nan]], [0.0, 1.0]])
def test_bad_curves_are_refused(rate: object) -> None:
    with pytest.raises(UsageError):
        Trainer("t", np.array(rate), 1.0, 1.0)
