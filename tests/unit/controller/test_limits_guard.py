"""Moves after which limits of the accounting database would not let a job start again."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hand_made import CONFIG, NOW, observation, ordinary, running

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.running.limits_guard import LimitsGuard
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import MinuteLimit, Minutes
from slurm_hadar.slurm.records import BillingRule
from slurm_hadar.slurm.size_limits import SizeLimit, SizeLimits

HAS = {"cpu": 4.0, "mem": 4096.0, "node": 1.0, "billing": 4.0, "gres/gpu": 1.0}
PHYS = {"account": "phys", "qos": "normal"}
HERE = running("1", {"k1": {"k80": 1}}, **PHYS)
"""Of 120 minutes on 4 CPUs it ran 1000 s; 180 s more are counted until it is requeued."""
USED, USED_NOW = 4 * 1180 / 60, 4 * 1000 / 60
WIDER = AccountLimits()


class Slurm:
    """What the guard asks of a cluster."""

    def __init__(self, limit=None, use=None, limits=WIDER, enforce="associations,limits,safe"):
        self.settings = {"ClusterName": "c", "AccountingStorageEnforce": enforce}
        self.limits, self.use, self.asked = limits, use, []
        self.read = 0
        self.minutes = Minutes(
            {"root": (), "phys": (limit,) if limit else ()},
            {("phys", name): () for name in ("ann", "bob")},
            {"normal": (), "gold": (MinuteLimit("QOS gold", "GrpTRESMins", "cpu", 1, 0),)},
            {"phys": "root"},
        )

    def read_config(self):
        return self.settings

    def read_limits(self, cluster):
        self.read += 1
        if self.limits is None:
            raise SlurmError("slurmdbd is away")
        return self.limits

    def read_minutes(self, users):
        self.asked.append(set(users))
        if self.minutes is None:
            raise SlurmError("scontrol: too busy")
        return self.minutes

    def read_use(self):
        return dict.fromkeys(range(1, 20), HAS) if self.use is None else self.use


def cpu(left, name="GrpTRESMins", tres="cpu"):
    """A limit of the account that leaves so many minutes, apart from what rounding hides."""
    return MinuteLimit("account phys", name, tres, 1000.0, 1000.0 - left - 2.001)


def move(one=HERE, gpus=None, kind=Kind.MOVE, **fields):
    placement = Placement(gpus or {"v100": 1}) if kind is Kind.MOVE else None
    return Action(kind, one, fields, Steering(), "", placement)


def refused(slurm, *actions, others=(), site=CONFIG, moving=(), partitions=None, rule=None):
    actions = actions or (move(),)
    jobs = [*(action.job for action in actions), *others]
    shown = observation(jobs, partitions=partitions)
    shown = replace(shown, billing_rule=rule) if rule else shown
    return guard_of(slurm, shown, site, moving).refused(actions)


def guard_of(slurm, shown, site=CONFIG, moving=(), rights="operator") -> LimitsGuard:
    rules = AccountingLimits(slurm, operator(site, rights))
    return LimitsGuard(slurm, rules, shown, site, moving)


def operator(site, rights="operator"):
    return site.model_copy(update={"site": site.site.model_copy(update={"rights": rights})})


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        (cpu(USED), True),
        (cpu(USED - 1), False),
        (cpu(USED_NOW, "GrpTRESRunMins"), True),
        (cpu(USED_NOW - 1, "GrpTRESRunMins"), False),
        (cpu(USED / 4, tres="gres/gpu"), True),
        (cpu(USED / 4 - 1, tres="gres/gpu"), False),
        (cpu(0, tres="license/x"), True),
        # The limit of its whole time, what ran and is not counted yet, and what it runs until then.
        (cpu(120 + 15 + 3, "GrpWall", "wall"), True),
        (cpu(120 + 15 + 2, "GrpWall", "wall"), False),
    ],
)
@pytest.mark.parametrize("kind", [Kind.MOVE, Kind.STOP])
def test_what_it_has_used_must_fit_in_once_more(limit, fits, kind):
    found = refused(Slurm(limit), move(kind=kind))
    assert found == {} if fits else str(limit) in found["1"]
    assert fits or "whole time limit" in found["1"]


def test_a_type_that_is_limited_is_needed_in_full_by_a_job_that_comes_to_it():
    v100 = "gres/gpu:v100"
    assert refused(Slurm(cpu(119, tres=v100)))
    assert not refused(Slurm(cpu(120, tres=v100)))
    assert not refused(Slurm(cpu(0, tres="gres/gpu:k80")))
    assert refused(Slurm(cpu(0, tres="gres/gpu:k80")), move(kind=Kind.STOP))


def test_more_gpus_count_in_full():
    two = move(gpus={"v100": 2})
    more = 120 * 8 - 4 * (7200 - 1180) / 60
    assert not refused(Slurm(cpu(more)), two) and refused(Slurm(cpu(more - 1)), two)


@pytest.mark.parametrize("tres", ["cpu", "mem", "billing"])
def test_what_cannot_be_known_does_not_fit(tres):
    much = MinuteLimit("account phys", "GrpTRESMins", tres, 1e15, 0)
    assert not refused(Slurm(much))
    assert refused(Slurm(much), move(CPUsPerTask="9"))
    assert refused(Slurm(much), move(kind=Kind.STOP, TresPerNode="gpu:4"))
    assert refused(Slurm(much), move(replace(HERE, time_limit_s=inf)))


@pytest.mark.parametrize(("tres", "fits"), [("cpu", False), ("mem", False), ("gres/gpu", True)])
def test_what_other_whole_nodes_have_is_not_known(tres, fits):
    alone = replace(HERE, whole_nodes=True)
    assert not refused(Slurm(cpu(1e9, tres=tres)), move())
    assert (refused(Slurm(cpu(1e9, tres=tres)), move(alone)) == {}) is fits


def test_a_dearer_partition_is_billed_as_the_sum_of_its_weights():
    there = [
        Partition("gpu", billing="CPU=1"),
        Partition("v100", billing="CPU=1,GRES/gpu=5,Mem=0.5G"),
    ]
    dear = move(Partition="v100")
    more = 120 * (4 + 5 + 0.5 * 4) - 4 * (7200 - 1180) / 60
    for left, fits in ((more, True), (more - 1, False)):
        slurm = Slurm(cpu(left, tres="billing"))
        assert bool(refused(slurm, dear, partitions=there)) is not fits
    same = Slurm(cpu(USED, tres="billing"))
    assert not refused(same, partitions=there) and refused(same, dear, partitions=there)


@pytest.mark.parametrize(
    ("rule", "each"), [("MAX", 5 + 2), ("MAX_AND_GRES", 5 + 4 + 2), ("SUM", 4 + 5 + 0.5 * 4 + 2)]
)
def test_with_max_tres_the_dearest_of_it_is_billed(rule, each):
    weights = "CPU=1,GRES/gpu=5,Mem=0.5G,license/x=2"
    there = [Partition("gpu", billing="CPU=1"), Partition("v100", billing=weights)]
    dear, more = move(Partition="v100"), 120 * each - 4 * (7200 - 1180) / 60
    for left, fits in ((more, True), (more - 1, False)):
        slurm = Slurm(cpu(left, tres="billing"), use={1: {**HAS, "license/x": 1.0}})
        assert bool(refused(slurm, dear, partitions=there, rule=BillingRule[rule])) is not fits


def test_moves_of_one_tick_count_together():
    second = replace(HERE, id="2", raw_id=2)
    both = (move(), move(second))
    assert set(refused(Slurm(cpu(2 * USED)), *both)) == set()
    assert set(refused(Slurm(cpu(2 * USED - 1)), *both)) == {"2"}
    assert set(refused(Slurm(cpu(2 * USED - 1)), others=[second], moving=["2"])) == {"1"}


def test_waiting_jobs_of_the_account_may_take_what_it_leaves():
    his = ordinary("9", time_limit_s=600.0, user="bob", **PHYS)
    need = USED + 4 * 10
    assert not refused(Slurm(cpu(need)), others=[his])
    assert "jobs that wait" in refused(Slurm(cpu(need - 1)), others=[his])["1"]
    for other in (
        replace(his, held=True),
        replace(his, account="chem"),
        replace(his, reason="Dependency"),
        replace(his, eligible_s=NOW + 9999),
    ):
        assert not refused(Slurm(cpu(need - 1)), others=[other])


def test_how_much_a_minute_counts_in_its_qos():
    dear = replace(WIDER, factors={"normal": 2.0})
    assert not refused(Slurm(cpu(2 * USED), limits=dear))
    assert refused(Slurm(cpu(2 * USED - 1), limits=dear))
    # Half of the time of a job is counted, and all of it is asked for.
    cheap = replace(WIDER, factors={"normal": 0.5})
    assert refused(Slurm(cpu(USED), limits=cheap))


def test_the_qos_of_its_partitions_binds():
    gold = [Partition("gpu"), Partition("v100", qos="gold")]
    assert not refused(Slurm(), partitions=gold)
    there = move(Partition="v100")
    assert "QOS gold" in refused(Slurm(), there, partitions=gold)["1"]
    # It holds nothing of it yet.
    for limit, fits in ((483.0, True), (481.0, False)):
        slurm: Any = Slurm()
        slurm.minutes.qos["gold"] = (MinuteLimit("QOS gold", "GrpTRESRunMins", "cpu", limit, 0),)
        assert bool(refused(slurm, there, partitions=gold)) is not fits


@pytest.mark.parametrize("each", ["per_user", "per_account"])
def test_limits_of_each_user_or_account_in_a_qos_bind(each):
    other = running("5", {"k1": {"k80": 1}}, **{**PHYS, "start_s": NOW - 60})
    # What both may still use, as far as it is surely counted: all but the last quarter of an hour.
    need = 4 * (7200 - 100) / 60 + 4 * 120 + USED_NOW
    for more, fits in ((0, True), (-1, False)):
        wider: dict[str, Any] = {each: {"normal": {"cpu": need + 2.001 + more}}}
        wide = replace(WIDER, **wider)
        found = refused(Slurm(limits=wide), others=[other])
        assert found == {} if fits else "MaxTRESRunMinsP" in found["1"]


@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        (Slurm(limits=None), "does not answer"),
        (Slurm(cpu(1e9), use={}), "does not show what it has"),
    ],
)
def test_what_is_not_known_keeps_it_where_it_is(slurm, said):
    assert said in refused(slurm)["1"]
    slurm.minutes = None
    assert refused(slurm)


def test_an_account_that_is_not_shown_keeps_it_where_it_is():
    assert "does not show all" in refused(Slurm(), move(replace(HERE, account="secret")))["1"]
    silent = Slurm()
    silent.minutes = None
    assert "cannot be read: scontrol: too busy" in refused(silent)["1"]


def test_slurm_is_asked_once_and_only_where_it_may_matter():
    slurm = Slurm(cpu(0))
    guard = guard_of(slurm, observation([HERE]))
    assert guard.refused([]) == {} and slurm.asked == []
    assert guard.refused([move()]) and guard.refused([move()]) and slurm.asked == [{"ann"}]
    calm = Slurm(cpu(0), enforce="associations")
    assert refused(calm) == {} and calm.asked == []


def test_a_researchers_own_controller_asks_and_a_sandbox_does_not():
    for rights, asks in (("user", True), ("sandbox", False)):
        # Under PrivateData the commands may not show him the limits of his account.
        slurm = Slurm(cpu(0), limits=AccountLimits())
        guard = guard_of(slurm, observation([HERE]), rights=rights)
        assert bool(guard.refused([move()])) is asks and bool(slurm.asked) is asks


def sized(**of_user):
    """A Slurm that shows such limits of ann's association."""
    slurm: Any = Slurm()
    limits = tuple(SizeLimit("ann", *one) for one in of_user.values())
    slurm.minutes = replace(slurm.minutes, sizes=SizeLimits(users={("phys", "ann"): limits}))
    return slurm


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        (("MaxWallPJ", "", 120), True),
        (("MaxWallPJ", "", 119), False),
        (("MaxTRESPJ", "cpu", 4), True),
        (("MaxTRESPJ", "cpu", 3), False),
        (("MaxTRESPN", "gres/gpu", 1), True),
        (("MaxTRESPN", "gres/gpu", 0), False),
        (("MaxTRESPN", "mem", 4095), False),
        (("MinTRESPJ", "gres/gpu", 1), True),
        (("MinTRESPJ", "gres/gpu", 2), False),
        (("MaxTRESMinsPJ", "gres/gpu", 120), True),
        (("MaxTRESMinsPJ", "gres/gpu", 119), False),
        # What runs counts, and the job itself with it.
        (("GrpTRES", "gres/gpu", 5, 5), True),
        (("GrpTRES", "gres/gpu", 4, 5), False),
        (("MaxTRESPU", "gres/gpu", 4, 5), False),
        (("MaxTRESPA", "cpu", 20, 20), True),
        (("GrpJobs", "", 3, 3), True),
        (("GrpJobs", "", 2, 3), False),
        (("MaxJobs", "", 0, 1), False),
        # It asks for none of it.
        (("GrpTRES", "license/x", 0, 5), True),
    ],
)
def test_a_job_stays_that_is_over_a_limit_now(limit, fits):
    found = refused(sized(one=limit))
    assert found == {} if fits else "Slurm would not start it again: it is over" in found["1"]


def test_moves_to_more_gpus_count_together_for_a_limit_on_all_jobs():
    two, second = {"v100": 2}, replace(HERE, id="2", raw_id=2)
    both = (move(gpus=two), move(second, gpus=two))
    for most, found in ((4, set()), (3, {"2"}), (2, {"1", "2"})):
        assert set(refused(sized(one=("GrpTRES", "gres/gpu", most, 2)), *both)) == found


def test_a_jobs_own_qos_counts_first_where_it_says_so():
    there = [Partition("gpu", qos="gold"), Partition("v100", qos="gold")]
    sizes = SizeLimits(
        qos={"gold": (SizeLimit("gold", "MaxWallPJ", "", 60),),
             "normal": (SizeLimit("normal", "MaxWallPJ", "", 600),)},
    )  # fmt: skip
    for over, stays in ((frozenset[str](), True), (frozenset({"normal"}), False)):
        slurm: Any = Slurm(limits=replace(WIDER, over_partitions=over))
        slurm.minutes = replace(slurm.minutes, sizes=sizes, qos={"normal": (), "gold": ()})
        assert bool(refused(slurm, partitions=there)) is stays


@pytest.mark.parametrize(("account", "stays"), [("root", False), ("chem", True)])
def test_a_partition_that_allows_an_account_above_takes_the_job(account, stays):
    """Seen on 24.11.5."""
    slurm: Any = Slurm(enforce="associations")
    slurm.settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
    there = [Partition("gpu", allow_accounts=(account,))]
    shown = replace(observation([HERE], partitions=there), slurm_version=(24, 11, 5))
    found = guard_of(slurm, shown).refused([move()])
    assert ("excludes its account phys" in found.get("1", "")) is stays and slurm.asked
    lost = move(replace(HERE, account="secret"))
    assert "does not show whether" in guard_of(slurm, shown).refused([lost])["1"]


@pytest.mark.parametrize(
    ("enforce", "usable", "stays"),
    [
        ("associations,limits,qos", {"gold"}, True),
        ("all", {"gold"}, True),
        ("associations,limits,qos", {"gold", "normal"}, False),
        ("associations,limits", {"gold"}, False),
        ("associations,limits,qos", None, False),
    ],
)
def test_a_job_whose_owner_lost_its_qos_stays(enforce, usable, stays):
    """Seen on 22.05.8: once requeued it waits with the reason InvalidQOS."""
    known = {("phys", "ann"): frozenset(usable)} if usable else {}
    found = refused(Slurm(limits=AccountLimits(qos_of=known), enforce=enforce))
    assert ("its user may not use QOS normal any more" in found.get("1", "")) is stays


def test_a_qos_that_was_lost_a_moment_ago_counts():
    """Limits are read every ten minutes, and anew before a job is requeued, once a tick."""
    usable = {("phys", "ann"): frozenset({"normal"})}
    slurm: Any = Slurm(limits=AccountLimits(qos_of=usable), enforce="associations,limits,qos")
    guard = guard_of(slurm, observation([HERE]))
    guard.rules.read(NOW - 60)
    slurm.limits = AccountLimits(qos_of={("phys", "ann"): frozenset({"gold"})})
    before = slurm.read
    for _ in range(2):
        assert "may not use QOS normal" in guard.refused([move()])["1"]
    assert slurm.read == before + 1
