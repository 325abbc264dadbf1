"""Links that jobs share: fair shares, and what the simulator charges for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import machines, on, scripted, work

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.simulator.contention import Contention, Fabric, max_min, networked, ring_bytes
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate


def shares(demand, pairs, capacity):
    who, where = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return max_min(np.array(demand, float), who, where, np.array(capacity, float))


def test_who_wants_little_gets_it_and_the_others_share_the_rest() -> None:
    found = shares([1.0, 100.0, 100.0], [(0, 0), (1, 0), (2, 0)], [10.0])
    assert found.tolist() == [1.0, 4.5, 4.5]


def test_a_flow_bound_elsewhere_leaves_its_part_to_the_others() -> None:
    # Flow 0 crosses a narrow link; flow 1 shares the wide one with it.
    found = shares([9.0, 9.0], [(0, 0), (0, 1), (1, 1)], [2.0, 10.0])
    assert found.tolist() == [2.0, 8.0]


@st.composite
def networks(draw):
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.1, 100.0), min_size=links, max_size=links))
    flows = draw(st.integers(1, 8))
    demand = draw(st.lists(st.floats(0.01, 200.0), min_size=flows, max_size=flows))
    crossed = [
        draw(st.sets(st.integers(0, links - 1), min_size=1, max_size=links)) for _ in range(flows)
    ]
    pairs = [(at, link) for at, some in enumerate(crossed) for link in sorted(some)]
    return demand, pairs, capacity


@given(networks())
@settings(max_examples=120, deadline=None)
def test_shares_are_max_min_fair(network) -> None:
    demand, pairs, capacity = network
    found = shares(demand, pairs, capacity)
    load = np.zeros(len(capacity))
    for flow, link in pairs:
        load[link] += found[flow]
    assert (found > 0).all() and (found <= np.array(demand) * (1 + 1e-6)).all()
    assert (load <= np.array(capacity) * (1 + 1e-6)).all()
    for flow, wanted in enumerate(demand):
        if found[flow] >= wanted * (1 - 1e-6):
            continue
        # Bertsekas and Gallager: it has a full link on which nobody has more than it.
        assert any(
            load[link] >= capacity[link] * (1 - 1e-6)
            and all(found[other] <= found[flow] * (1 + 1e-6) for other, at in pairs if at == link)
            for who, link in pairs
            if who == flow
        )


FABRIC = Fabric(nic_gbps=8.0, oversubscription=2.0, overlap=0.0)
"""Cards of 1 GB/s, uplinks of racks of two nodes of 1 GB/s."""


def pairs_of_gpus(jobs: int, gigabytes: float = 1.0, fabric: Fabric = FABRIC):
    """Jobs of two GPUs that compute 1 s per unit of work, on four nodes of one GPU in two racks."""
    cluster = machines("fast=4", "1", 2)
    jobs_ = work([[[1.0]]] * jobs, counts=(2,), types=("fast",), total=100.0)
    object.__setattr__(jobs_, "gradients", np.full(jobs, gigabytes * 1e9))
    known = networked(jobs_, cluster, fabric)
    return cluster, known, Contention(known, cluster, fabric)


def test_alone_a_ring_costs_its_bytes_over_the_card() -> None:
    assert ring_bytes(1e9, 2) == 1e9 and ring_bytes(1e9, 4) == 1.5e9
    _, known, links = pairs_of_gpus(1)
    assert known.network.factor[0].tolist() == [1.0, 0.5, 0.5]
    seats = [((0, 0, 1), (1, 0, 1))]
    assert links.factors(np.array([0]), seats).tolist() == [1.0]
    assert links.alone(np.array([0]), seats).tolist() == [0.5]


def test_what_hides_behind_compute_costs_nothing() -> None:
    _, known, _ = pairs_of_gpus(1, gigabytes=0.4, fabric=Fabric(8.0, 2.0, overlap=0.5))
    assert known.network.factor[0].tolist() == [1.0, 1.0, 1.0]
    _, known, _ = pairs_of_gpus(1, gigabytes=1.0, fabric=Fabric(8.0, 2.0, overlap=0.5))
    assert known.network.factor[0, 1] == pytest.approx(1 / 1.5)


def test_two_jobs_over_two_racks_share_the_uplinks() -> None:
    _, _, links = pairs_of_gpus(2)
    far = [((0, 0, 1), (2, 0, 1)), ((1, 0, 1), (3, 0, 1))]
    # Each wants 0.5 GB/s of an uplink of 1 GB/s: just enough.
    assert links.factors(np.array([0, 1]), far).tolist() == [1.0, 1.0]
    _, _, links = pairs_of_gpus(2, gigabytes=3.0)
    # Alone 1 s + 3 s; with half of the uplink 6 s an iteration.
    assert links.factors(np.array([0, 1]), far) == pytest.approx([4 / 6, 4 / 6])
    near = [((0, 0, 1), (1, 0, 1)), ((2, 0, 1), (3, 0, 1))]
    assert links.factors(np.array([0, 1]), near).tolist() == [1.0, 1.0]


def test_the_simulation_charges_it_and_says_how_much_time_it_took() -> None:
    cluster, known, links = pairs_of_gpus(2, gigabytes=3.0)
    place = {
        "j0": on("fast", 2, nodes={"fast-1": {"fast": 1}, "fast-3": {"fast": 1}}),
        "j1": on("fast", 2, nodes={"fast-2": {"fast": 1}, "fast-4": {"fast": 1}}),
    }
    seen: list[list[float]] = []
    script = scripted({0.0: place})

    def decide(view, state):
        seen.append(view.jobs.network.slowed.tolist())
        return script(view, state)

    out = simulate(known, cluster, decide, RoundSetting(clock=Clock(100.0), links=links))
    # Both are there until the end: 6 s a unit.
    assert out.finish_s.tolist() == pytest.approx([600.0, 600.0])
    assert seen[0] == [1.0, 1.0] and seen[1] == pytest.approx([1 / 6, 1 / 6])
    assert out.communication_share == pytest.approx(5 / 6)
    assert out.summary()["communication_share"] == pytest.approx(5 / 6)
    alone = simulate(known, cluster, decide, RoundSetting(clock=Clock(100.0)))
    assert alone.finish_s.tolist() == pytest.approx([400.0, 400.0])
    assert "communication_share" not in alone.summary()


def test_a_job_that_comes_slows_the_one_that_is_there() -> None:
    cluster, known, links = pairs_of_gpus(2, gigabytes=3.0)
    one = {"j0": on("fast", 2, nodes={"fast-1": {"fast": 1}, "fast-3": {"fast": 1}})}
    two = one | {"j1": on("fast", 2, nodes={"fast-2": {"fast": 1}, "fast-4": {"fast": 1}})}
    out = simulate(
        known,
        cluster,
        scripted({0.0: one, 200.0: two}),
        RoundSetting(clock=Clock(100.0), links=links),
    )
    # 50 units at 4 s, the other 50 at 6 s.
    assert out.finish_s[0] == pytest.approx(500.0)


@pytest.mark.parametrize(
    "bad", [{"nic_gbps": 0.0}, {"oversubscription": 0.5}, {"overlap": 1.5}, {"nic_gbps": np.nan}]
)
def test_a_network_that_cannot_be_is_refused(bad) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        Fabric(**bad)
