"""Two controllers that take turns, each with a state folder of its own: what one wrote is not held
against owners by the other."""

import json
import os
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import RATES, config, nodes, observation, running
from hand_made import job as any_job

from slurm_hadar.controller.actuation.pending import lent_places
from slurm_hadar.controller.actuation.pending.lent_places import Lent, Memory
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import observed, steering_store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import NAME, read_heartbeat
from slurm_hadar.slurm.traffic import Traffic

ALICE, BOB = 1001, 1002
DECLARED = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=1000)
FULL = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)


class Slurm(SimpleNamespace):
    """It takes every request; ``jobs``: what it shows."""

    def __init__(self):
        super().__init__(
            jobs=[], sent=[], fails=False, traffic=Traffic(), queries=Counter(),
            slurm_version=(24, 11, 5), notes=[],
        )  # fmt: skip

    def read_config(self):
        return {"PriorityType": "priority/multifactor"}

    def read_limits(self, _):
        return {}

    def read_topology(self):
        return {}

    def read_priorities(self):
        return {}

    def read_jobs(self, *_, **__):
        return self.jobs

    def apply(self, updates):
        self.sent += [(update.job_id, dict(update.fields)) for update in updates]
        return [None for _ in updates]


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "exchange").mkdir()
    slurm = Slurm()

    def read(cluster, now, *_):
        if cluster.fails:
            raise SlurmError("Slurm does not answer")
        return observation(cluster.jobs, FULL, steering={}, now=now, slurm_version=(24, 11, 5))

    monkeypatch.setattr(observed, "read", read)
    text = (
        f'[site]\nrights = "operator"\nmode = "act"\nexchange_dir = "{tmp_path}/exchange"\n'
        f'state_dir = "{tmp_path}/state"\n[queue]\nexchange = "all"\n'
    )
    with closing(Store.open(tmp_path / "state")) as store:
        found = config(text)
        site = SimpleNamespace(config=found, slurm=slurm, store=store)
        site.tick = lambda: Controller(
            found, slurm, store, RATES, os.getuid(), sleep=lambda _: None
        ).tick()
        yield site


def another_wrote(site, ago_s):
    beat = {"version": 1, "host": "login2", "pid": 1, "mode": "act", "time": time.time() - ago_s,
            "interval_s": 10.0}  # fmt: skip
    (site.config.site.exchange_dir / NAME).write_text(json.dumps(beat))


def nice(value, ago_s):
    """A record of an update of the job's Nice."""
    return Steering(time=time.time() - ago_s, was={"Nice": "0"}, wrote={"Nice": str(value)})


def waits(id_, uid, **more):
    now = time.time()
    times = {"submit_s": now - 7200, "eligible_s": now - 7200}
    who = {"uid": uid, "user": f"u{uid}", "account": f"a{uid}"}
    return any_job(id_, **{"declaration": DECLARED, "priority": 5000, **times, **who, **more})


def another_exchanged(site, ago_s):
    """This controller gave both jobs a Nice once, and the other one another since."""
    site.store.keep_policy_state(
        lent_places.NAME,
        lent_places.as_state(
            Memory({"1": Lent("2", -7, -7, 0), "2": Lent("1", 7, 7, 0)}, ours=("1", "2"))
        ),
    )
    for id_, own in (("1", -7), ("2", 7)):
        steering_store.keep(site.config, site.store, id_, nice(own, 9000))
        # As the other controller does with its own file.
        with closing(Store.open(site.config.site.state_dir.with_name("other"))) as other:
            steering_store.keep(site.config, other, id_, nice(own * 10, 4000))
    site.slurm.jobs = [waits("1", ALICE, nice=-70), waits("2", BOB, nice=70)]
    another_wrote(site, ago_s)


def barred(site):
    return lent_places.remembered(site.store.policy_state(lent_places.NAME)).barred


def accused(report):
    return [one for one in report.messages if "exchanges its place until" in one]


def test_who_steps_back_accuses_no_owner(site):
    another_exchanged(site, 5)
    report = site.tick()
    assert not report.acted and accused(report) == []
    assert report.observation.steered("1").wrote == {"Nice": "-70"}


def test_who_takes_over_accuses_no_owner_then_nor_later(site):
    another_exchanged(site, 3000)
    for _ in range(3):
        report = site.tick()
        assert report.acted and accused(report) == [] and not report.observation.nice_changed
    assert not barred(site)


def test_what_the_other_one_wrote_is_known_in_later_ticks_too(site):
    """Of a job that the tick which takes over need not change."""
    for names, ago_s, folder in (("v100,k80", 9000, "state"), ("p100,v100,k80", 4000, "other")):
        was, wrote = {"Partition": "gpu"}, {"Partition": names}
        with closing(Store.open(site.config.site.state_dir.with_name(folder))) as store:
            ours = Steering(time=time.time() - ago_s, was=was, wrote=wrote)
            steering_store.keep(site.config, store, "3", ours)
    site.slurm.jobs = [running("3", {"v1": {"v100": 1}}, partitions=("v100",))]
    another_wrote(site, 3000)
    for _ in range(2):
        report = site.tick()
        assert report.acted and site.slurm.sent == []
        assert report.observation.steered("3").wrote == {"Partition": "p100,v100,k80"}


def test_neither_where_the_first_tick_fails(site):
    another_exchanged(site, 3000)
    site.slurm.fails = True
    with pytest.raises(SlurmError):
        site.tick()
    folder = site.config.site.exchange_dir
    assert read_heartbeat(folder, os.getuid()).host != "login2"
    site.slurm.fails = False
    for _ in range(2):
        report = site.tick()
        assert report.acted and accused(report) == [] and not barred(site)


def test_a_job_that_left_a_place_which_the_other_one_took_from_it_bars_nobody(site):
    another_exchanged(site, 3000)
    site.slurm.jobs[0] = replace(
        site.slurm.jobs[0], nice=0, held=True, priority=0, reason="JobHeldUser"
    )
    with closing(Store.open(site.config.site.state_dir.with_name("other"))) as other:
        steering_store.keep(site.config, other, "1", Steering(time=time.time() - 3500))
    assert accused(site.tick()) == [] and not barred(site)


def test_who_alone_acts_still_holds_a_changed_nice_against_its_owner(site):
    another_exchanged(site, 3000)
    site.tick()
    site.store.keep_policy_state(lent_places.NAME, lent_places.as_state(Memory(ours=("1", "2"))))
    site.slurm.jobs[0] = replace(site.slurm.jobs[0], nice=-500)
    for id_ in ("1", "2"):
        steering_store.keep(site.config, site.store, id_, nice(-70 if id_ == "1" else 70, 1))
    (said,) = accused(site.tick())
    assert said.startswith("job 1: Nice -500 is not what") and set(barred(site)) == {ALICE}
