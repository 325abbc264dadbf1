"""``hadar check`` notices plugins that do not fit the configuration any more."""

import sys

import pytest
from test_plugin_files import CONFIG, add, do, site  # noqa: F401

from slurm_hadar.controller.checks.check_plugins import plugin_findings
from slurm_hadar.plugins.site_lua import options_in, site_lua


def looked(folder, config=CONFIG):
    return list(plugin_findings(config, {"SLURM_CONF": str(folder / "slurm.conf")}))


def changed(**more):
    return CONFIG.model_copy(update={"site": CONFIG.site.model_copy(update=more)})


def test_without_plugins_nothing_is_said(site, tmp_path):  # noqa: F811
    assert looked(site) == looked(tmp_path / "nowhere") == []
    assert list(plugin_findings(CONFIG, {})) == []


@pytest.mark.parametrize("wish", [{}, {"untype": True}, {"untype": True, "lease": True}])
def test_plugins_that_fit(site, wish):  # noqa: F811
    do(add(site, **wish))
    (found,) = looked(site)
    assert found.level == "ok" and "job-submit, cli-filter, spank" in found.what
    # In observe mode the file says nothing of the lease that was wished.
    observe = changed(mode="observe")
    assert [one.level for one in looked(site, observe)] == ["problem"]


def test_settings_that_have_changed_are_told_with_the_command(site):  # noqa: F811
    do(add(site, "job-submit", "spank", untype=True, lease=True))
    (found,) = looked(site, changed(mode="observe"))
    conf = site / "slurm.conf"
    assert found.level == "problem" and found.what.startswith("site.lua in ")
    command = (
        f"hadar plugins install --slurm-conf {conf} --plugin job-submit --plugin spank "
        "--untype --lease --apply"
    )
    assert found.cure.startswith(command) and found.cure.endswith("scontrol reconfigure")


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


def test_a_controllers_user_who_is_not_there_is_a_warning(site):  # noqa: F811
    do(add(site, "job-submit"))
    (found,) = looked(site, changed(controller_user="nobody-of-that-name"))
    assert found.level == "warning" and "cannot be looked at" in found.what


def test_the_options_are_read_back():
    for wish in ({"untype": False, "lease": False}, {"untype": True, "lease": True}):
        text = site_lua(CONFIG, {"v100"}, **wish)
        assert options_in(text) == tuple(f"--{key}" for key, on in wish.items() if on)
    assert options_in("return {}") == ()
