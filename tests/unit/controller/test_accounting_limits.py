"""What binds an operator's controller."""

import os
import pwd
from dataclasses import replace
from math import inf

import pytest
from hand_made import NOW, config, job

from slurm_hadar.controller.observation import sandbox_detection
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits, refuse_root
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.records import BillingRule

WIDE = Declaration(types=("any",), gpus=(1, 2), cpus=(1, 8), mem=(1, 9), fork=(1, 4), nodes=(1, 4))
ANN = job("1", user="ann", account="phys", qos="normal", declaration=WIDE)
PARTITIONS = {"gpu": Partition("gpu", qos="part")}


class Slurm:
    """What the rules ask of a cluster."""

    def __init__(self, enforce="associations,limits,qos", limits=None, user="slurm(64030)"):
        self.settings = {"ClusterName": "c", "SlurmUser": user, "AccountingStorageEnforce": enforce}
        self.limits, self.asked = limits, 0

    def read_config(self):
        return self.settings

    def read_limits(self, cluster):
        assert cluster == "c"
        self.asked += 1
        if self.limits is None:
            raise SlurmError("sacctmgr: slurmdbd is away")
        return self.limits


def rules_of(slurm, site=None) -> AccountingLimits:
    return AccountingLimits(slurm, site or config())


def left(slurm, site=None, at=NOW):
    rules = rules_of(slurm, site)
    rules.read(at)
    (found,) = rules.applied({"1": ANN}, PARTITIONS).values()
    return found.declaration


BOUND = replace(WIDE, cpus=None, mem=None, fork=(1, 1), nodes=None)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (AccountLimits(), WIDE),
        (AccountLimits(users=frozenset({("phys", "bob")})), WIDE),
        (AccountLimits(users=frozenset({("phys", "ann")})), BOUND),
        (AccountLimits(accounts=frozenset({"phys"})), BOUND),
        (AccountLimits(qos=frozenset({"part"})), BOUND),
        (None, BOUND),
    ],
)
def test_under_a_limit_a_job_keeps_what_it_asked_for(limits, kept):
    assert left(Slurm(limits=limits)) == kept


def modes(giving_way, **qos):
    """``qos``: the PreemptMode of each."""
    return AccountLimits(giving_way=frozenset(giving_way), preempt_modes=qos)


@pytest.mark.parametrize(
    ("usual", "limits", "cancelled", "spared"),
    [
        ("CANCEL", modes({"low"}, low="", normal=""), ["low"], ["normal"]),
        ("REQUEUE", modes({"low", "mid"}, low="", mid="CANCEL"), ["mid"], ["low"]),
        ("CANCEL,GANG", modes({"low"}, low="REQUEUE"), [], ["low"]),
        # Jobs of any QOS preempt those of the same one.
        ("CANCEL,WITHIN", modes(set(), low="", normal="REQUEUE"), ["low"], ["normal"]),
        ("WITHIN,REQUEUE", modes(set(), low="", mid="CANCEL"), ["mid"], ["low"]),
        # The database did not answer yet: the QOS of any job may have CANCEL.
        ("REQUEUE", None, ["low", "normal"], []),
    ],
)
@pytest.mark.parametrize("enforce", ["associations,limits,qos", ""])
@pytest.mark.parametrize("rights", ["operator", "user", "sandbox"])
def test_which_qos_lose_their_jobs_to_others(usual, limits, cancelled, spared, enforce, rights):
    slurm = Slurm(enforce, limits)
    slurm.settings |= {
        "PreemptType": "preempt/qos",
        "PreemptMode": usual,
        "AccountingStorageType": "accounting_storage/slurmdbd",
    }
    rules = rules_of(slurm, config(f'[site]\nrights = "{rights}"\n'))
    rules.read(NOW)
    found = rules.preemption
    assert all(found.cancels_job_of(qos) for qos in cancelled)
    assert not any(found.cancels_job_of(qos) for qos in spared)


QOS = AccountLimits(qos=frozenset({"small"}))
ELSEWHERE = {"own": Partition("own"), "k80": Partition("k80", qos="small")}


def bound_in(there, limits=QOS, steering=None, **more):
    """Whether ann's job keeps its CPUs and copies, in the partition ``own`` unless given."""
    rules = rules_of(Slurm(limits=limits))
    rules.read(NOW)
    mine = replace(ANN, **{"partitions": ("own",), **more})
    (found,) = rules.applied({"1": mine}, there, steering or {}).values()
    return found.declaration == BOUND


def test_the_qos_of_each_partition_that_it_asked_for_counts():
    assert not bound_in(ELSEWHERE)
    assert bound_in(ELSEWHERE, partitions=("own", "k80"))
    assert not bound_in(ELSEWHERE, AccountLimits(qos=frozenset({"x"})), partitions=("own", "k80"))
    assert not bound_in(ELSEWHERE, partitions=("own", "gone"))


def test_it_stays_bound_while_that_partition_is_down_for_a_while():
    down = {**ELSEWHERE, "k80": replace(ELSEWHERE["k80"], state="DOWN")}
    assert bound_in(down, partitions=("own", "k80"))


def test_it_may_be_sent_back_to_where_it_was_submitted():
    was = {"1": Steering(was={"Partition": "k80,nowhere"})}
    assert bound_in(ELSEWHERE, steering=was)


def test_where_limits_are_not_enforced_nobody_is_asked_for_them():
    slurm = Slurm("none", limits=None)
    assert left(slurm) == WIDE and slurm.asked == 0
    slurm = Slurm("associations", limits=None)
    assert left(slurm) == WIDE and slurm.asked == 1, "for associations by partition"
    assert left(Slurm("safe", limits=None)) == BOUND


@pytest.mark.parametrize("rights", ["user", "sandbox"])
def test_only_an_operator_goes_past_limits(rights):
    slurm = Slurm(limits=AccountLimits(accounts=frozenset({"phys"})), user=f"me({os.getuid()})")
    site = config(f'[site]\nrights = "{rights}"\n')
    assert left(slurm, site) == WIDE and slurm.asked == 0
    rules_of(slurm, site).begin_tick(NOW)


def test_a_database_that_is_silent_is_told_of_once_and_asked_less_and_less_often(monkeypatch):
    slurm = Slurm()
    rules = rules_of(slurm)

    def read_limits(_):
        slurm.asked += 1
        raise SlurmError("sacctmgr gave no answer within 30 s; slurmdbd may be busy or down")

    answers = slurm.read_limits
    monkeypatch.setattr(slurm, "read_limits", read_limits)
    rules.read(NOW)
    (said,) = rules.news({})
    known = rules.faults
    # `hadar status` goes on saying it.
    assert said.startswith(f"{known['database']}; ") and "no running job" in known["database"]
    assert "slurmdbd, which keeps Slurm's accounting, does not answer" in said
    assert (
        "until it gives its limits no running job is moved" in said and "systemctl status" in said
    )
    for later in range(10, 1000, 10):
        rules.read(NOW + later)
    assert slurm.asked == 5 and rules.news(known) == []
    monkeypatch.setattr(slurm, "read_limits", answers)
    slurm.limits = AccountLimits()
    rules.read(NOW + 3000)
    assert rules.news(known) == ["limits of the accounting database are read again"]
    assert rules.faults == {} and rules.news({}) == []
    monkeypatch.setattr(slurm, "read_limits", read_limits)
    rules.read(NOW + 6000)
    assert "limits that it gave before hold on" in rules.news({})[0]


@pytest.mark.parametrize("rights", ["operator", "user", "sandbox"])
def test_which_scheduler_slurm_has_counts_whoever_controls(rights):
    """Under sched/builtin a job that waits for a type keeps all behind it waiting."""
    slurm = Slurm()
    rules = rules_of(slurm, config(f'[site]\nrights = "{rights}"\n'))
    slurm.settings["SchedulerType"] = "sched/builtin"
    slurm.settings["PriorityFlags"] = "MAX_TRES"
    slurm.settings["SchedulerParameters"] = "bf_continue,default_queue_depth=40"
    rules.read(NOW)
    assert rules.in_order and rules.queue_depth == 40
    assert rules.billing_rule is BillingRule.MAX
    slurm.settings["SchedulerType"] = "sched/backfill"
    rules.read(NOW + 601)
    assert not rules.in_order


@pytest.mark.parametrize("rights", ["operator", "user", "sandbox"])
def test_how_long_slurm_delays_a_requeued_job_counts_whoever_controls(rights):
    slurm = Slurm()
    rules = rules_of(slurm, config(f'[site]\nrights = "{rights}"\n'))
    assert rules.requeue_delay_s == inf
    slurm.settings["AuthInfo"] = "cred_expire=30"
    rules.read(NOW)
    assert rules.requeue_delay_s == 31


ME = "root"
BOX = f"ClusterName=box\nSlurmctldHost=here(127.0.0.1)\nSlurmctldPort=7000\nSlurmUser={ME}\n"
A_SITE = "SlurmctldHost=login(10.1.2.3)\n"
SLURM_CONFS = {
    "the sandbox": (BOX, True),
    "a remark": (BOX.replace("Slurmctld", " slurmctld") + "#SlurmctldHost=x(10.0.0.1)\n", True),
    "an address": (BOX.replace("127.0.0.1", "10.1.2.3"), False),
    "no address": (BOX.replace("(127.0.0.1)", ""), False),
    "two hosts": (BOX + A_SITE, False),
    "no host": (f"SlurmUser={ME}\n", False),
    "another user": (BOX.replace(f"User={ME}", "User=nobody"), False),
    "nobody's name": (BOX.replace(f"User={ME}", "User=no-such-user"), False),
    "nothing": ("", False),
    "garbage": ("\0\xff=(127.0.0.1)\nSlurmUser=9" + "9" * 50, False),
}


def of_slurm_conf(path, rights, text=None):
    if text is not None:
        path.write_text(text)
    return config(f'[site]\nrights = "{rights}"\n[slurm]\nconf = "{path}"\n')


@pytest.mark.parametrize(("text", "own"), SLURM_CONFS.values(), ids=SLURM_CONFS)
@pytest.mark.parametrize("rights", ["user", "sandbox"])
def test_root_and_slurm_user_control_a_throw_away_slurm_only(
    tmp_path, monkeypatch, text, own, rights
):
    site = of_slurm_conf(tmp_path / "slurm.conf", rights, text)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if own:
        return refuse_root(site)
    with pytest.raises(HadarError, match="rights" if rights == "sandbox" else "root has more"):
        refuse_root(site)


def test_root_reads_as_whom_to_run_it(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(HadarError, match=r"root has more .*; run: sudo -u ann hadar"):
        refuse_root(config('[site]\nrights = "operator"\ncontroller_user = "ann"\n'))
    with pytest.raises(HadarError, match=r"; run it as a user of its own"):
        refuse_root(config('[site]\nrights = "operator"\n'))


def test_slurm_conf_is_looked_for_where_slurm_does(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    site = config('[site]\nrights = "user"\n')
    text = BOX.replace(f"User={ME}", "User=root")
    of_slurm_conf(tmp_path / "slurm.conf", "user", text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    refuse_root(site)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    with pytest.raises(HadarError, match="root has more rights"):
        refuse_root(site)
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(sandbox_detection, "_PLACES", ("/nowhere", str(tmp_path / "slurm.conf")))
    refuse_root(site)


def test_a_researcher_may_and_slurms_own_user_may_not(tmp_path, monkeypatch):
    nobody = pwd.getpwnam("nobody").pw_uid
    monkeypatch.setattr(os, "geteuid", lambda: nobody)
    refuse_root(of_slurm_conf(tmp_path / "slurm.conf", "user", A_SITE + "SlurmUser=root\n"))
    refuse_root(of_slurm_conf(tmp_path / "none", "user"))
    with pytest.raises(HadarError, match="SlurmUser has more rights"):
        refuse_root(of_slurm_conf(tmp_path / "slurm.conf", "user", A_SITE + "SlurmUser=nobody\n"))
    with pytest.raises(HadarError, match="sandbox"):
        refuse_root(of_slurm_conf(tmp_path / "slurm.conf", "sandbox", BOX))


def test_they_are_asked_for_every_ten_minutes_and_known_while_the_database_is_away():
    slurm = Slurm(limits=AccountLimits())
    rules = rules_of(slurm)
    for after_s, asked in ((0, 1), (599, 1), (601, 2)):
        rules.read(NOW + after_s)
        assert slurm.asked == asked
    slurm.limits = None
    rules.read(NOW + 1300)
    assert rules.applied({"1": ANN}, PARTITIONS)["1"] is ANN
    rules.read(NOW + 1361)
    assert slurm.asked == 4, "it is asked sooner again"


def test_more_than_an_operator_is_refused(monkeypatch):
    with pytest.raises(HadarError, match="SlurmUser has more rights"):
        rules_of(Slurm(user=f"me({os.geteuid()})")).begin_tick(NOW)
    rules_of(Slurm(user="slurm(4000000)")).begin_tick(NOW)
    rules_of(Slurm(user="slurm")).begin_tick(NOW)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(HadarError, match="root has more rights"):
        refuse_root(config())


@pytest.mark.parametrize("rights", ["operator", "user", "sandbox"])
def test_what_slurm_hides_is_known_at_the_next_tick(rights, monkeypatch):
    """``PrivateData`` holds from ``scontrol reconfigure`` on; nothing is asked twice in a tick."""
    slurm = Slurm(limits=AccountLimits())
    site = config(f'[site]\nrights = "{rights}"\n')
    rules = rules_of(slurm, site)
    asked = []

    def read_config():
        asked.append(1)
        return slurm.settings

    monkeypatch.setattr(slurm, "read_config", read_config)
    rules.begin_tick(NOW)
    rules.read(NOW + 5)
    assert not rules.private and len(asked) == 1
    slurm.settings |= {"PrivateData": "jobs,nodes,usage"}
    rules.begin_tick(NOW + 1)
    assert rules.private == {"jobs", "nodes"} and len(asked) == 2
    assert rules.jobs_are_hidden == (rights == "operator")
    # The accounting database is asked rarely: its answer costs more.
    assert slurm.asked == (rights == "operator")


@pytest.mark.parametrize(
    ("settings", "sure"),
    [
        ({}, True),
        ({"JobSubmitPlugins": "(null)", "CliFilterPlugins": "(null)"}, True),
        ({"JobSubmitPlugins": "lua"}, False),
        ({"CliFilterPlugins": "user_defaults"}, False),
    ],
)
def test_a_plugin_may_choose_another_partition_than_the_default_one(settings, sure):
    slurm = Slurm()
    slurm.settings.update(settings)
    rules = rules_of(slurm)
    assert not rules.takes_as_typed
    rules.read(NOW)
    assert rules.takes_as_typed is sure


OWN = AccountLimits(partitions={("phys", "ann"): frozenset({"gpu"})})


def own_partitions(limits, enforce="associations", toml="", **more):
    rules = rules_of(Slurm(enforce, limits=limits), config(toml))
    rules.read(NOW)
    (found,) = rules.applied({"1": replace(ANN, **more)}, PARTITIONS).values()
    return set(found.own_partitions), rules.users_bound_to(("gpu", "v100"))


def test_a_job_knows_the_partitions_for_which_its_owner_has_an_association():
    assert own_partitions(OWN) == ({"gpu"}, {"ann"})
    assert own_partitions(OWN, "associations,limits,qos") == ({"gpu"}, {"ann"})
    assert own_partitions(OWN, account="chem") == (set(), {"ann"})
    assert own_partitions(OWN, declaration=None) == (set(), {"ann"})
    assert own_partitions(AccountLimits()) == (set(), set())
    assert own_partitions(OWN, "none") == (set(), set())
    assert own_partitions(OWN, toml='[site]\nrights = "user"\n') == (set(), set())


def test_any_partition_may_have_an_association_where_the_database_is_away():
    assert own_partitions(None) == ({"gpu"}, None)


def test_whose_associations_there_are_is_not_told_where_slurm_hides_them():
    slurm = Slurm(limits=OWN)
    slurm.settings["PrivateData"] = "accounts,jobs"
    rules = rules_of(slurm)
    rules.read(NOW)
    assert rules.users_bound_to(("gpu",)) is None and rules.users_bound_to(("k80",)) == set()
