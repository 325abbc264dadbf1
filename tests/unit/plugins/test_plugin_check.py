"""``hadar check`` notices plugins that do not fit the configuration any more."""

import shutil
import sys
from pathlib import Path

import pytest
from test_plugin_files import CONFIG, GROUPS, PARTITIONS, TOML, add, do, site  # noqa: F401
from typer.testing import CliRunner

from slurm_hadar import config
from slurm_hadar.cli.main import app
from slurm_hadar.controller.checks.check_plugins import plugin_findings
from slurm_hadar.plugins.install import InstallRequest, planned
from slurm_hadar.plugins.site_lua import SlurmFacts, options_in, site_lua

WITH_LEASE = Path(__file__).parent / "lua_with_lease"
"""The Lua files of a release whose jobs waited under a begin time, and a site.lua that it wrote."""
LEASING = ("cli_filter.lua", "help.lua", "job_submit.lua", "site.lua")


def looked(folder, found=CONFIG):
    return list(plugin_findings(found, {"SLURM_CONF": str(folder / "slurm.conf")}))


def changed(**more):
    return CONFIG.model_copy(update={"site": CONFIG.site.model_copy(update=more)})


def put_back(folder, names=(*LEASING, "declaration.lua")):
    for name in names:
        shutil.copy(WITH_LEASE / name, folder / "hadar" / name)


def test_without_plugins_nothing_is_said(site, tmp_path):  # noqa: F811
    assert looked(site) == looked(tmp_path / "nowhere") == []
    assert list(plugin_findings(CONFIG, {})) == []


@pytest.mark.parametrize("wish", [{}, {"untype": True}])
def test_plugins_that_fit(site, wish):  # noqa: F811
    do(add(site, **wish))
    (found,) = looked(site)
    assert found.level == "ok" and "job-submit, cli-filter, spank" in found.what
    # Without groups of partitions the plugins do the same in both modes.
    assert [one.level for one in looked(site, changed(mode="observe"))] == ["ok"]


def test_settings_that_have_changed_are_reported_with_the_command(site, tmp_path):  # noqa: F811
    do(add(site, "job-submit", "spank", untype=True))
    (found,) = looked(site, changed(exchange_dir=tmp_path))
    conf = site / "slurm.conf"
    assert found.level == "problem" and found.what.startswith("site.lua in ")
    assert "begin time" not in found.what
    command = (
        f"hadar plugins install --slurm-conf {conf} --plugin job-submit --plugin spank "
        "--untype --apply"
    )
    assert found.cure.startswith(command) and found.cure.endswith("scontrol reconfigure")


def test_a_group_of_partitions_counts_while_a_controller_acts(site):  # noqa: F811
    conf = site / "slurm.conf"
    conf.write_text(conf.read_text() + PARTITIONS)
    do(add(site, "job-submit"))
    grouped = config.parse(GROUPS, "test")
    observing = config.parse(GROUPS.replace('"act"', '"observe"'), "test")
    assert [looked(site, one)[0].level for one in (CONFIG, observing)] == ["ok", "ok"]
    assert looked(site, grouped)[0].what.startswith("site.lua in ")
    do(planned(conf, grouped, InstallRequest(("job-submit",))))
    assert looked(site, grouped)[0].level == "ok"
    assert looked(site, observing)[0].what.startswith("site.lua in ")


def test_a_feature_that_is_new_in_slurm_conf_counts_too(site):  # noqa: F811
    conf = site / "slurm.conf"
    text = conf.read_text()
    conf.write_text(text.replace("Features=pascal", ""))
    do(add(site, "cli-filter"))
    assert looked(site)[0].level == "ok"
    conf.write_text(conf.read_text().replace("Gres=gpu:p100:2", "Gres=gpu:p100:2 Features=pascal"))
    assert looked(site)[0].what.startswith("site.lua in ")


def test_files_of_another_release_and_another_python(site, monkeypatch):  # noqa: F811
    do(add(site, "job-submit", "task-prolog"))
    (site / "hadar" / "help.lua").write_text("return {}")
    monkeypatch.setattr(sys, "executable", "/opt/other/bin/python")
    (found,) = looked(site)
    assert found.what.startswith("help.lua, task_prolog in ") and " do not fit" in found.what
    assert "begin time" not in found.what


@pytest.mark.parametrize("names", [LEASING, *((name,) for name in LEASING)])
def test_each_file_that_may_add_a_begin_time_is_named_with_the_cure(
    site,  # noqa: F811
    tmp_path,
    monkeypatch,
    names,
):
    do(add(site, "job-submit", "cli-filter", untype=True))
    put_back(site, names)
    (found,) = looked(site)
    folder = site / "hadar"
    assert found.level == "problem" and found.what.startswith(f"{', '.join(names)} in {folder} ")
    assert "jobs may still get a begin time" in found.what
    command, _, rest = found.cure.partition(", copy ")
    assert rest == f"{folder} to all nodes and login nodes, then scontrol reconfigure"
    # The cure is a command of this release, which knows no --lease, and it is the cure.
    toml = tmp_path / "hadar.toml"
    toml.write_text(TOML)
    monkeypatch.setenv("HADAR_CONFIG", str(toml))
    done = CliRunner().invoke(app, command.split()[1:])
    assert done.exit_code == 0, done.output
    assert [one.level for one in looked(site)] == ["ok"]
    assert "untype = true" in (folder / "site.lua").read_text()


def test_beside_a_begin_time_whatever_else_does_not_fit_is_named(site, monkeypatch):  # noqa: F811
    do(add(site, "cli-filter", "task-prolog"))
    put_back(site)
    monkeypatch.setattr(sys, "executable", "/opt/other/bin/python")
    (found,) = looked(site)
    names = ", ".join(LEASING)
    assert found.what.startswith(f"{names}, declaration.lua, task_prolog in ")
    assert f"begin time from {names}, and" in found.what


def test_files_of_observe_mode_added_no_begin_time(site):  # noqa: F811
    do(add(site, "job-submit", "cli-filter"))
    put_back(site)
    path = site / "hadar" / "site.lua"
    path.write_text(path.read_text().replace("lease_s = 300", "lease_s = 0"))
    (found,) = looked(site)
    assert found.level == "problem" and "begin time" not in found.what


def test_a_controllers_user_who_is_not_there_is_a_warning(site):  # noqa: F811
    do(add(site, "job-submit"))
    nobody = changed(controller_user="nobody-of-that-name")
    (found,) = looked(site, nobody)
    assert found.level == "warning" and "cannot be looked at" in found.what
    # A begin time is named all the same.
    put_back(site, ["help.lua"])
    levels = {one.level: one.what for one in looked(site, nobody)}
    assert levels.keys() == {"warning", "problem"} and "begin time" in levels["problem"]


def test_the_options_are_read_back():
    for untype in (False, True):
        text = site_lua(CONFIG, SlurmFacts({"v100"}), untype=untype)
        assert options_in(text) == (("--untype",) if untype else ())
    assert options_in("return {}") == ()
    # An option that this release does not have is none.
    assert options_in((WITH_LEASE / "site.lua").read_text()) == ("--untype",)
