"""``hadar check`` without a Slurm to speak to, and its judgements on what Slurm shows."""

import json
import os
import pwd
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from hand_made import CONFIG, config, node, nodes, running
from reachable import open_to_all
from typer.testing import CliRunner

from slurm_hadar.cli.main import app
from slurm_hadar.controller.checks import check, check_cluster
from slurm_hadar.controller.checks.check import findings
from slurm_hadar.controller.checks.check_folders import folder_findings
from slurm_hadar.controller.checks.check_slurm_settings import (
    exchange_findings,
    kill_wait_findings,
    preemption_findings,
    queue_depth_findings,
    requeue_delay_findings,
    version_findings,
)
from slurm_hadar.controller.checks.controller_user import ControllerUser
from slurm_hadar.controller.journal.store import make_private
from slurm_hadar.controller.observation.lost_gpus import lost_gpus, lost_news
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED, JobState
from slurm_hadar.domain.node import Partition


def site(tmp_path, more=""):
    return config(
        f"""
[site]
state_dir = "{tmp_path}/state"
exchange_dir = "{tmp_path}/exchange"
[slurm]
backend = "cli"
bin_dir = "{tmp_path}/nowhere"
{more}
"""
    )


def levels(found):
    return [(finding.level, finding.what) for finding in found]


def test_everything_missing_is_said_with_its_cure_and_no_traceback(tmp_path):
    found = list(findings(site(tmp_path)))
    bad = [finding for finding in found if finding.level != "ok"]
    assert len(bad) == 3 and all(finding.cure for finding in bad)
    assert "does not exist" in bad[0].what and "exchange folder" in bad[1].what
    assert "Slurm does not answer" in bad[2].what


def test_what_leads_to_slurm_in_this_shell_only_is_warned_of(tmp_path, monkeypatch):
    (tmp_path / "scontrol").touch(0o755)
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm/etc/slurm.conf")
    monkeypatch.setenv("PATH", str(tmp_path))
    conf, folder = check._only_in_this_shell(config(""))
    assert conf.cure == 'set slurm.conf = "/opt/slurm/etc/slurm.conf"'
    assert folder.cure == f'set slurm.bin_dir = "{tmp_path}"'
    named = '[slurm]\nconf = "/opt/slurm/etc/slurm.conf"\nbin_dir = "/opt/slurm/bin"\n'
    for own in (config(named), config('[site]\nrights = "user"\n')):
        assert list(check._only_in_this_shell(own)) == []
    monkeypatch.setattr(check, "_SERVICE_PATH", [str(tmp_path)])
    monkeypatch.delenv("SLURM_CONF")
    assert list(check._only_in_this_shell(config(""))) == []


@pytest.mark.parametrize(
    ("absent", "more", "says"),
    [
        ({"highspy"}, "", ["highspy"]),
        ({"highspy", "prometheus_client"}, "", ["highspy"]),
        ({"prometheus_client"}, "[metrics]\nport = 9816\n", ["prometheus_client"]),
        ({"nothing"}, "[metrics]\nport = 9816\n", []),
    ],
)
def test_libraries_that_only_a_controller_needs_are_missed(
    tmp_path, monkeypatch, absent, more, says
):
    monkeypatch.setattr(
        check, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    found = [one for one in findings(site(tmp_path, more)) if "not installed" in one.what]
    assert [one.what.split()[0] for one in found] == says
    for one in found:
        assert one.level == "warning"
        assert one.cure == "where the controller runs: pip install 'slurm-hadar[controller]'"


def test_a_configuration_with_mistakes_is_checked_as_far_as_it_goes(tmp_path):
    path = tmp_path / "hadar.toml"
    path.write_text(
        f"""
[site]
mod = "act"
state_dir = "{tmp_path}/state"
exchange_dir = "{tmp_path}/exchange"
[slurm]
backend = "cli"
bin_dir = "{tmp_path}/nowhere"
[guards]
preempt = "maybe"
"""
    )
    done = CliRunner().invoke(app, ["check", "--write", "--json", "--config", str(path)])
    assert done.exit_code == 1, done.output
    found = json.loads(done.output)["result"]
    said = [one["what"] for one in found if one["level"] == "problem"]
    assert said[0].startswith("configuration: site.mod: unknown key")
    assert said[1] == 'configuration: guards.preempt: takes true or false, not "maybe"'
    assert said[2] == f"exchange folder {tmp_path}/exchange does not exist"
    assert "Slurm does not answer" in said[-2]
    assert "neither compared nor written while the configuration has mistakes" in said[-1]
    assert [file.name for file in tmp_path.iterdir()] == ["hadar.toml"]


def test_open_folders_are_problems():
    with open_to_all() as place:
        make_private(place / "state")
        (place / "state").chmod(0o755)
        (place / "exchange").mkdir(0o755)
        found = list(findings(site(place)))
        assert [f.cure.split()[0] for f in found if f.level == "problem"][:2] == ["chmod", "chmod"]
        (place / "state").chmod(0o700)
        (place / "exchange").chmod(0o1777)
        assert [f.level for f in findings(site(place))] == ["ok", "ok", "ok", "problem"]


@pytest.mark.parametrize(
    ("rights", "how", "written", "said"),
    [
        ("operator", "priority/multifactor", "", True),
        ("operator", "priority/multifactor", '[queue]\nexchange = "none"\n', False),
        ("operator", "priority/basic", "", False),
        ("user", "priority/multifactor", "", False),
    ],
)
def test_a_site_that_chose_no_exchange_learns_what_it_could_choose(rights, how, written, said):
    """Not one that chose none, nor one where it would do nothing."""
    own = config(f'[site]\nrights = "{rights}"\n{written}')
    found = list(exchange_findings(own, {"PriorityType": how}, None))
    assert [f.level for f in found] == (["ok"] if said else [])
    assert all("not set" in f.what and '"association"' in f.what for f in found)


@pytest.mark.parametrize(
    ("rights", "how", "said"),
    [
        ("operator", "priority/multifactor", ""),
        ("operator", "priority/basic", "PriorityType is priority/basic"),
        ("user", "priority/multifactor", 'site.rights is "user"'),
    ],
)
def test_an_exchange_that_does_nothing_is_warned_of(rights, how, said):
    own = config(f'[site]\nrights = "{rights}"\n[queue]\nexchange = "association"\n')
    found = list(exchange_findings(own, {"PriorityType": how}, None))
    assert [f.level for f in found] == (["warning"] if said else [])
    assert all(said in f.what and f.cure for f in found)


@pytest.mark.parametrize(
    ("weight", "error", "level", "says"),
    [
        (1000, None, "", ""),
        (100_000, None, "ok", "gain 50 points"),
        (100_000, SlurmError("sprio: not found"), "warning", "does nothing: sprio"),
    ],
)
def test_where_ages_limit_the_exchanges_that_is_said(weight, error, level, says):
    def read_priorities():
        if error is not None:
            raise error
        return {}

    settings = {
        "PriorityType": "priority/multifactor",
        "PriorityWeightAge": str(weight),
        "PriorityMaxAge": "7-00:00:00",
        "PriorityCalcPeriod": "00:05:00",
    }
    own = config('[site]\nrights = "operator"\n[queue]\nexchange = "association"\n')
    cluster = SimpleNamespace(read_priorities=read_priorities)
    found = list(exchange_findings(own, settings, cluster))
    assert [one.level for one in found] == ([level] if level else [])
    assert all(says in one.what for one in found)


def test_what_has_no_effect_any_more_is_warned_of(tmp_path):
    old = site(tmp_path, "[lease]\nlength_s = 60\n")
    (found,) = [f for f in findings(old) if "[lease]" in f.what]
    assert found.level == "warning" and found.cure
    assert not [f for f in findings(site(tmp_path)) if "no effect" in f.what]


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        ([node("v1", features=("other",))], "problem", "without the feature v100"),
        ([replace(node("v1"), gpus={"h100": 4})], "warning", "not in the configuration"),
        ([replace(node("v1"), gpus={UNTYPED: 4})], "warning", "no type in gres.conf"),
        (nodes(), "ok", "4 x v100"),
        ([], "warning", "no such GPU"),
    ],
)
def test_types_and_features(found, level, says):
    assert any(
        f.level == level and says in f.what for f in check_cluster.type_findings(CONFIG, found)
    )


@pytest.mark.parametrize(("wait", "warned"), [("30 sec", False), ("60 sec", True), ("", False)])
def test_a_long_kill_wait_is_warned_of(wait, warned):
    found = list(kill_wait_findings(CONFIG, {"KillWait": wait}))
    assert bool(found) is warned and all("after_return_s = 70" in f.cure for f in found)


def test_gpus_that_slurm_lost_are_a_problem_with_its_cure():
    lost = replace(node("v1"), gpus_used={"v100": 2})
    busy = replace(lost, name="v2", cpus_used=1)
    down = replace(lost, name="v3", usable=False)
    suspended = replace(running("1", {"v4": {"v100": 2}}), state=JobState.SUSPENDED)
    paused = replace(lost, name="v4")
    (found,) = check_cluster.lost_findings([node("v0"), lost, busy, down, paused], [suspended])
    assert found.level == "problem" and "node v1: Slurm counts 2 v100" in found.what
    assert found.cure == "scontrol reconfigure"


def test_a_tick_tells_of_lost_gpus_once_as_long_as_it_lasts():
    lost = replace(node("v1"), gpus_used={"v100": 2})
    found = [lost_gpus([one], []) for one in (lost, lost, node("v1"), lost)]
    said = [lost_news(known, now) for known, now in zip([{}, *found], found, strict=False)]
    assert [len(one) for one in said] == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"AuthInfo": "socket=/run/x,cred_expire=20"}, True),
        ({"AuthInfo": "cred_expire=120"}, False),
        ({"AuthInfo": "(null)"}, False),
        ({"SchedulerParameters": "bf_continue,requeue_delay=5"}, True),
        ({"SchedulerParameters": "requeue_delay=120", "AuthInfo": "cred_expire=20"}, False),
    ],
)
def test_a_short_time_after_a_requeue_is_warned_of(settings, warned):
    operator = config('[site]\nrights = "operator"\n')
    assert bool(list(requeue_delay_findings(operator, settings))) is warned
    # A sandbox sets a short time itself.
    assert not list(requeue_delay_findings(config('[site]\nrights = "sandbox"\n'), settings))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", []),
        ("(null)", []),
        ("bf_continue,default_queue_depth=1000,bf_max_job_test=100", []),
        ("default_queue_depth=60", ["default_queue_depth=60"]),
        (
            "bf_max_job_test=5,default_queue_depth=99",
            ["default_queue_depth=99", "bf_max_job_test=5"],
        ),
    ],
)
def test_lists_that_could_fill_what_slurm_looks_at_are_warned_of(options, named):
    found = list(queue_depth_findings({"SchedulerParameters": options}))
    assert [one.what.split(":")[0] for one in found] == named
    assert all(one.level == "warning" and "SchedulerParameters" in one.cure for one in found)


@pytest.mark.parametrize(
    ("parameters", "how", "says"),
    [
        ("bf_continue,preempt_youngest_first", "preempt/partition_prio", "preemptable partitions"),
        ("preempt_youngest_first", "preempt/qos", "running jobs are not moved"),
        ("preempt_youngest_first", "preempt/none", ""),
        ("preempt_youngest_first", "(null)", ""),
        ("preempt_strict_order", "preempt/qos", ""),
    ],
)
def test_moves_that_slurm_would_punish_by_preemption_are_named(parameters, how, says):
    found = list(preemption_findings({"SchedulerParameters": parameters, "PreemptType": how}))
    assert len(found) == bool(says)
    assert all(one.level == "warning" and says in one.what for one in found)


@pytest.mark.parametrize(
    ("time", "how", "warns"),
    [
        ("00:30:00", "preempt/partition_prio", True),
        ("1-00:00:00", "preempt/qos", True),
        ("00:00:00", "preempt/qos", False),
        ("-1", "preempt/qos", False),
        ("NONE", "preempt/qos", False),
        ("00:30:00", "preempt/none", False),
    ],
)
def test_moves_that_would_keep_preempting_jobs_waiting_are_named(time, how, warns):
    found = list(preemption_findings({"PreemptExemptTime": time, "PreemptType": how}))
    assert ["PreemptExemptTime" in one.what for one in found] == [True] * warns


@pytest.mark.parametrize(
    ("settings", "release", "says"),
    [
        ({"GresTypes": "gpu,shard,mps"}, (22, 5), ["(gres/mps and gres/shard) count as in use"]),
        ({"GresTypes": "gpu"}, (24, 11), []),
        ({"TopologyPlugin": "topology/block"}, (25, 5), ["segments"]),
        ({"TopologyPlugin": "topology/block"}, (24, 11), ["does not show"]),
        ({"TopologyPlugin": "topology/block"}, (24, 5), []),
        ({}, (25, 11), ["--requeue=expedite"]),
    ],
)
def test_what_holds_for_this_slurm_is_reported(settings, release, says):
    found = list(version_findings(settings, release))
    assert len(found) == len(says)
    assert all(words in one.what for words, one in zip(says, found, strict=True))


def test_a_policy_that_looks_at_racks_wants_a_tree():
    flat, tree = (SimpleNamespace(read_topology=lambda f=f: f) for f in ({}, {"v1": "r1"}))
    site = config('[controller]\npolicy = "network"\n')
    (found,) = check._racks(site, flat, [])
    assert found.level == "warning" and "leaf switch" in found.what
    assert not list(check._racks(site, tree, [])) and not list(check._racks(CONFIG, flat, []))


def test_of_several_topologies_only_the_default_one_is_used():
    tree = SimpleNamespace(read_topology=lambda: {"v1": "r1"})
    plain, own = Partition("gpu", ("v1",)), Partition("k80", ("k1",), defaults={"Topology": "t2"})
    site = config('[controller]\npolicy = "network"\n')
    (found,) = check._racks(site, tree, [plain, own])
    assert "k80 (t2)" in found.what and "Only Slurm's default topology" in found.what
    assert not list(check._racks(site, tree, [plain]))
    without = config('[controller]\npolicy = "gavel_las"\n')
    assert not list(check._racks(without, tree, [own]))


def partitions(tier, mode="REQUEUE", name="idle"):
    names = ("v1", "k1")
    return [
        Partition("gpu", names, priority_tier=10),
        Partition(name, names, priority_tier=tier, preempt_mode=mode),
    ]


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        (partitions(1), "ok", "idle nodes train in partition idle"),
        (partitions(10), "problem", "not of a lower tier"),
        (partitions(1, "OFF"), "problem", "would not be requeued"),
        (partitions(1, name="other"), "problem", "there is no partition idle"),
    ],
)
def test_the_partition_for_idle_nodes_must_give_way(found, level, says):
    on = config('[backfill]\nenabled = true\npartitions = ["idle"]\n')
    (finding,) = check._backfill(on, found)
    assert finding.level == level and says in finding.what
    assert bool(finding.cure) is (level != "ok")


def test_a_policy_that_stops_jobs_wants_preemption():
    stopping = CONFIG.model_copy(
        update={"controller": CONFIG.controller.model_copy(update={"policy": "gavel_las"})}
    )
    assert any("guards.preempt" in f.what for f in check._names(stopping))
    allowed = stopping.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"preempt": True})}
    )
    assert not any("guards.preempt" in f.what for f in check._names(allowed))


def test_names_that_nothing_answers_to_are_problems(tmp_path):
    wrong = CONFIG.model_copy(
        update={
            "controller": CONFIG.controller.model_copy(update={"policy": "hadr"}),
            "profiles": CONFIG.profiles.model_copy(update={"tables": (tmp_path / "none.json",)}),
            "wrapper": CONFIG.wrapper.model_copy(update={"default_types": "v100,h900"}),
        }
    )
    found = list(check._names(wrong))
    problems = [finding for finding in found if finding.level == "problem"]
    for finding, word in zip(problems, ("hadr", "none.json", "h900"), strict=True):
        assert word in finding.what and finding.cure
    assert not [f for f in check._names(CONFIG) if f.level == "problem"]


def test_another_user_than_the_controllers_learns_whose_it_is(tmp_path, monkeypatch):
    """What they see is no fault of the site."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "exchange").mkdir()
    (tmp_path / "exchange").chmod(0o1777)
    known = site(tmp_path)
    owner = pwd.getpwuid(os.getuid()).pw_name
    nobody = pwd.getpwnam("nobody").pw_uid
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    found = list(folder_findings(known))
    assert not [one for one in found if one.level == "problem"]
    (finding,) = [one for one in found if one.level == "warning" and "state folder" in one.what]
    assert f"is {owner}'s" in finding.what and f"sudo -u {owner} hadar check" in finding.cure


def test_a_state_folder_on_a_read_only_file_system_is_not_to_be_opened(tmp_path, monkeypatch):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "exchange").mkdir(mode=0o1777)
    read_only = SimpleNamespace(
        f_flag=os.ST_RDONLY, f_blocks=9, f_bavail=9, f_files=0, f_frsize=2**30
    )
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    monkeypatch.setattr(ControllerUser, "can", lambda *_: False)
    cure = next(folder_findings(site(tmp_path))).cure
    assert "its file system is read-only" in cure and "chmod" not in cure
