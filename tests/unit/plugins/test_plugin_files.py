"""What the install command does to a site's files, and that it can all be taken back."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_room import library

from slurm_hadar import config
from slurm_hadar.domain.declaration import KEYS
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.plugins import changes, install_lua, programs, slurm_conf
from slurm_hadar.plugins.install import PLUGINS, InstallRequest, planned, removal
from slurm_hadar.plugins.site_lua import SlurmFacts, quoted, site_lua

TOML = """\
[site]
mode = "act"
exchange_dir = "/shared/x"
[partitions]
opt_in = ["gpu"]
[gpu_types.v100]
memory_gb = 16
[gpu_types.p100]
feature = 'pascal'
"""
CONFIG = config.parse(TOML, "test")
CONF = """\
ClusterName=c
# JobSubmitPlugins=none
NodeName=v1 Gres=gpu:v100:2 Feature=v100,ib
NodeName=p1 Gres=gpu:p100:2 Features=pascal
PartitionName=gpu Nodes=ALL
"""
LOADED = "JobSubmitPlugins=lua\n"
OWN_LISTS = "jobsubmitplugins = all_partitions,lua # ours\ncliFilterPlugins=user_defaults # too\n"
THEIRS = """\
function slurm_job_submit(a, b, c) return slurm.SUCCESS end
function slurm_job_modify(a, b, c, d) return slurm.SUCCESS end
slurm.log_info("initialized") -- return
return slurm.SUCCESS -- the end
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with a slurm.conf; compiling is another test's."""
    monkeypatch.setattr(programs, "build_spank", lambda include=None: b"\x7fELF\0")
    monkeypatch.setattr(install_lua, "_PLUGIN_FOLDERS", ())
    monkeypatch.setattr(programs, "others_may_change", lambda python: None)
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "slurm.conf").write_text(CONF)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if ".before-hadar-" not in name}


def do(plan):
    return changes.apply(plan.changes)


def add(folder, *plugins, **wish):
    return planned(folder / "slurm.conf", CONFIG, InstallRequest(plugins or PLUGINS, **wish))


def take_back(folder):
    do(removal(folder / "slurm.conf"))
    do(removal(folder / "slurm.conf"))


def values(folder):
    conf = folder / "slurm.conf"
    return {k: s.value for k, s in slurm_conf.settings(conf.read_text(), conf).items()}


def test_everything_is_added_once_and_taken_back_to_the_letter(site):
    before = files(site)
    plan = add(site)
    assert not plan.by_hand and files(site) == before
    kept = do(plan)
    assert [path.read_bytes() for path in kept] == [CONF.encode()]
    found = values(site)
    assert found["jobsubmitplugins"] == found["clifilterplugins"] == "lua"
    assert found["taskprolog"] == str(site / "hadar" / "task_prolog")
    for name in ("prolog", "epilog", "task_prolog"):
        assert os.access(site / "hadar" / name, os.X_OK)
    assert (site / "plugstack.conf").read_text().startswith(f"optional {site}/hadar/")
    assert not any(change.needed for change in add(site).changes)
    take_back(site)
    assert files(site) == before and not (site / "hadar").exists()
    assert not list(site.glob("*.lua.before*"))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_each_plugin_is_optional(site, plugin):
    before = files(site)
    do(add(site, plugin))
    names = set(values(site)) - set(before)
    assert ("jobsubmitplugins" in names) == (plugin == "job-submit")
    assert ("clifilterplugins" in names) == (plugin == "cli-filter")
    assert ("prolog" in names) == ("epilog" in names) == (plugin == "gpu-sampling")
    assert ("taskprolog" in names) == (plugin == "task-prolog")
    assert (site / "plugstack.conf").exists() == (plugin == "spank")
    # What is not wished any more goes away.
    other = PLUGINS[(PLUGINS.index(plugin) + 1) % len(PLUGINS)]
    do(add(site, other))
    take_back(site)
    assert files(site) == before


def test_a_program_stays_until_slurm_does_not_name_it_any_more(site):
    """slurmd drains a node on which its prolog is missing, and has not read the new file yet."""
    do(add(site))
    plan = removal(site / "slurm.conf")
    do(plan)
    assert "prolog" not in values(site) and (site / "hadar" / "prolog").exists()
    (line,) = plan.by_hand
    assert line.startswith("prolog, epilog, task_prolog in") and "scontrol reconfigure" in line
    plan = removal(site / "slurm.conf")
    assert not plan.by_hand
    do(plan)
    assert not (site / "hadar").exists()


def test_what_a_site_has_stays_and_what_it_adds_later_too(site):
    library()
    (site / "slurm.conf").write_text(CONF + OWN_LISTS)
    (site / "job_submit.lua").write_text(THEIRS)
    (site / "plugstack.conf").write_text("optional other.so")
    do(add(site))
    assert values(site)["jobsubmitplugins"] == "all_partitions,lua"
    assert values(site)["clifilterplugins"] == "user_defaults,lua"
    text = (site / "job_submit.lua").read_text()
    assert text.splitlines()[-1] == "return slurm.SUCCESS -- the end"
    assert text.splitlines()[-2].endswith(install_lua.MARK)
    with (site / "slurm.conf").open("a") as stream:
        stream.write("KillWait=9\n")
    do(removal(site / "slurm.conf"))
    assert (site / "slurm.conf").read_text() == CONF + OWN_LISTS + "KillWait=9\n"
    assert (site / "job_submit.lua").read_text() == THEIRS
    assert (site / "plugstack.conf").read_text() == "optional other.so\n"


def test_a_site_that_names_lua_already_keeps_its_line(site):
    (site / "slurm.conf").write_text(CONF + "JobSubmitPlugins=job_submit/lua,x\n")
    do(add(site, "job-submit"))
    assert values(site)["jobsubmitplugins"] == "job_submit/lua,x"


def test_own_prologs_stay_and_the_line_to_add_is_reported(site):
    (site / "slurm.conf").write_text(CONF + "TaskProlog=/site/tp\nInclude more.conf\n")
    (site / "more.conf").write_text("Epilog=/site/e\nCliFilterPlugins=x\n")
    plan = add(site)
    assert any("TaskProlog is /site/tp" in line for line in plan.by_hand)
    assert any("Epilog is /site/e" in line for line in plan.by_hand)
    assert any(f"in {site}/more.conf, line 2: CliFilterPlugins=x,lua" in x for x in plan.by_hand)
    do(plan)
    assert values(site)["taskprolog"] == "/site/tp" and values(site)["clifilterplugins"] == "x"


def test_a_script_in_which_our_line_would_be_wrong_is_left_to_a_person(site):
    library()
    odd = THEIRS.rsplit("return", 1)[0] + "return\n  slurm.SUCCESS\n"
    (site / "slurm.conf").write_text(CONF + LOADED)
    (site / "job_submit.lua").write_text(odd)
    plan = add(site)
    do(plan)
    assert any("is left as it is" in line and "pcall(dofile" in line for line in plan.by_hand)
    assert (site / "job_submit.lua").read_text() == odd
    # What the line would load is there for whoever adds it.
    assert (site / "hadar" / "job_submit.lua").exists()


def test_a_script_that_slurm_does_not_load_does_not_come_into_force(site):
    (site / "job_submit.lua").write_text(THEIRS)
    plan = add(site, "job-submit")
    do(plan)
    assert len(plan.by_hand) == 1 and "Slurm does not load it" in plan.by_hand[0]
    assert (site / "job_submit.lua").read_text() == THEIRS
    assert "jobsubmitplugins" not in values(site)


def test_without_any_lua_a_sites_own_script_is_not_touched(site, monkeypatch):
    monkeypatch.setattr(install_lua, "mistake", lambda text: None)
    (site / "slurm.conf").write_text(CONF + LOADED)
    (site / "job_submit.lua").write_text(THEIRS)
    plan = add(site)
    assert any("no Lua was found" in line for line in plan.by_hand)
    do(plan)
    assert (site / "job_submit.lua").read_text() == THEIRS
    assert (site / "cli_filter.lua").exists()


def test_slurm_without_its_lua_plugin_gets_no_line_that_stops_it(site, tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "select_cons_tres.so").touch()
    (folder / "cli_filter_lua.so").touch()
    plan = add(site, plugin_dir=folder)
    assert len(plan.by_hand) == 1 and "has no job_submit_lua.so" in plan.by_hand[0]
    do(plan)
    assert "jobsubmitplugins" not in values(site) and "clifilterplugins" in values(site)


def test_without_a_compiler_all_else_is_added(site, monkeypatch):
    def no(include=None):
        raise programs.NotBuilt("there is no C compiler on PATH")

    monkeypatch.setattr(programs, "build_spank", no)
    plan = add(site)
    assert plan.by_hand == [
        "spank: there is no C compiler on PATH; left out, all else works without"
    ]
    do(plan)
    assert not (site / "plugstack.conf").exists() and (site / "job_submit.lua").exists()


def test_a_changed_setting_makes_slurm_load_the_scripts_again(site):
    do(add(site))
    os.utime(site / "job_submit.lua", (1, 1))
    do(add(site))
    assert (site / "job_submit.lua").stat().st_mtime == 1
    do(add(site, untype=True))
    assert (site / "job_submit.lua").stat().st_mtime > 1
    assert "untype = true" in (site / "hadar" / "site.lua").read_text()


def test_what_is_shown_is_what_is_done(site):
    plan = add(site)
    conf = next(change for change in plan.changes if change.path.name == "slurm.conf")
    added = re.findall(r"^    \+(.*)$", conf.shown(), re.M)
    do(plan)
    assert (site / "slurm.conf").read_text() == CONF + "".join(f"{one}\n" for one in added)
    # What a file names is written before it.
    names = [change.path.name for change in plan.changes]
    assert names[-1] == "slurm.conf" and names.index("help.lua") < names.index("job_submit.lua")


def test_a_link_stays_one_and_modes_are_kept(site, tmp_path):
    real = tmp_path / "kept.conf"
    (site / "slurm.conf").rename(real)
    real.chmod(0o640)
    (site / "slurm.conf").symlink_to(real)
    do(add(site))
    assert (site / "slurm.conf").is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert "JobSubmitPlugins=lua" in real.read_text()


def test_paths_that_cannot_be_used_are_reported(site, tmp_path):
    with pytest.raises(UsageError, match=r"no slurm\.conf at"):
        add(tmp_path / "nowhere")
    odd = tmp_path / "a b"
    odd.mkdir()
    with pytest.raises(UsageError, match="letters, digits"):
        add(odd)
    with pytest.raises(UsageError, match="exchange_dir"):
        programs.program("prolog", Path("/usr/bin/python3"), Path("/x y"), 0)


@pytest.mark.usefixtures("closed_to_root_too")
def test_a_folder_of_others_is_reported(site):
    site.chmod(0o555)
    with pytest.raises(HadarError, match="cannot be written"):
        do(add(site))


WORDS = st.sampled_from(
    [
        "",
        "# c",
        "A=1",
        "Prolog=/p",
        "JobSubmitPlugins=x",
        "a=b \\",
        "NodeName=n Feature=f",
        "  B = 2",
    ]
)


@given(st.lists(WORDS, max_size=8).map(lambda lines: "".join(f"{line}\n" for line in lines)))
def test_any_configuration_comes_back_as_it_was(text):
    found = slurm_conf.settings(text, Path("/x/slurm.conf"))
    lines = {s.line: "Z=9" for s in found.values() if slurm_conf.can_be_replaced(text, s.line)}
    changed = slurm_conf.with_settings(text, {"New": "1"}, lines)
    assert slurm_conf.without_ours(changed) == text
    assert slurm_conf.settings(changed, Path("/x/slurm.conf"))["new"].value == "1"


def test_a_type_without_its_feature_on_any_node_is_left_out(site):
    (site / "slurm.conf").write_text(CONF.replace("Features=pascal", ""))
    plan = add(site)
    assert any(line.startswith("p100: no node") for line in plan.by_hand)
    do(plan)
    text = (site / "hadar" / "site.lua").read_text()
    assert '["v100"]' in text and "p100" not in text


@pytest.mark.parametrize(
    ("plugins", "own", "says"),
    [
        (("job-submit", "cli-filter"), None, "true"),
        (("cli-filter",), None, "false"),
        # Its line is a step for the admin, so nobody hears from it yet.
        (("job-submit", "cli-filter"), THEIRS, "false"),
    ],
)
def test_the_lua_settings_say_whether_slurmctld_loads_ours(site, plugins, own, says):
    if own:
        (site / "job_submit.lua").write_text(own)
    for _ in range(2):
        do(add(site, *plugins))
        assert f"job_submit = {says}," in (site / "hadar" / "site.lua").read_text()
    do(add(site, "cli-filter"))
    assert "job_submit = false," in (site / "hadar" / "site.lua").read_text()


def test_the_lua_settings_say_what_the_configuration_says():
    text = site_lua(CONFIG, SlurmFacts({"v100", "pascal"}), untype=True)
    assert "untype = true," in text and 'exchange_dir = "/shared/x",' in text
    assert '["p100"] = {feature = "pascal", memory_mb = 0},' in text
    assert 'opt_in = {["gpu"] = true},' in text
    assert "untype = false," in site_lua(CONFIG, SlurmFacts(), untype=False)
    assert quoted('a"\n\\]é') == '"a\\034\\010\\092\\093\\195\\169"'


GROUPS = TOML.replace("opt_in", 'groups = {gpu = ["pascal", "v100"]}\nopt_in')
PARTITIONS = "PartitionName=DEFAULT State=UP\nPartitionName=pascal\nPartitionName=v100\n"


def test_the_lua_settings_say_whether_the_policy_makes_copies():
    def copies(policy):
        text = TOML + f'[controller]\npolicy = "{policy}"\n'
        return "  copies = true,\n" in site_lua(
            config.parse(text, "test"), SlurmFacts(), untype=False
        )

    assert copies("hadare") and not copies("hadar")
    # As for hbatch: what cannot be known is not ruled out.
    assert copies("no_such_policy")


def test_the_lua_settings_say_which_partition_stands_for_which_types():
    """In the order of the configuration."""
    there = {"gpu", "pascal", "v100"}

    def groups(text, partitions):
        facts = SlurmFacts({"pascal"}, partitions=partitions)
        found = site_lua(config.parse(text, "test"), facts, untype=False)
        return found.partition("groups = {\n")[2].partition("  },\n")[0]

    listed = '    ["gpu"] = {{"pascal", "p100"}, {"v100", "v100"}},\n'
    assert groups(GROUPS, there) == listed
    assert groups(TOML, there) == ""
    # Slurm rejects a job that names a partition which is none.
    assert groups(GROUPS, there - {"v100"}) == ""
    # Where nobody acts, nobody gives back a list in which Slurm finds no place for a job.
    assert groups(GROUPS.replace('"act"', '"observe"'), there) == ""


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (CONF + PARTITIONS, ""),
        (CONF, "has no partition pascal, v100, so"),
        (
            CONF + PARTITIONS + "PartitionName=gpu DefMemPerCPU=9\n",
            "pascal has another DefMemPerCPU",
        ),
        (CONF + PARTITIONS + "EnforcePartLimits=NO\n", ""),
        (CONF + PARTITIONS + "EnforcePartLimits=Any\n", "EnforcePartLimits=ANY rejects one that"),
        (CONF + PARTITIONS + "enforcepartlimits=all\n", "EnforcePartLimits=ALL rejects"),
        (CONF + PARTITIONS + "EnforcePartLimits=Yes\n", "EnforcePartLimits=ALL rejects"),
        (CONF + PARTITIONS + "AccountingStorageEnforce=none\n", ""),
        (CONF + PARTITIONS + "AccountingStorageEnforce=nojobs,nosteps\n", ""),
        (
            CONF + PARTITIONS + "accountingStorageEnforce=safe\n",
            "AccountingStorageEnforce=safe rejects one from a user who has an association",
        ),
    ],
)
def test_a_list_is_made_only_where_slurm_conf_lets_it_reject_no_job(site, conf, says):
    (site / "slurm.conf").write_text(conf)
    wish = InstallRequest(("job-submit",))
    plan = planned(site / "slurm.conf", config.parse(GROUPS, "test"), wish)
    (change,) = [one for one in plan.changes if one.path.name == "site.lua"]
    assert (b'["gpu"] = {{"pascal", "p100"}' in change.after) is (not says)
    said = [line for line in plan.by_hand if "of partitions" in line]
    assert len(said) == bool(says)
    assert not says or (says in said[0] and said[0].startswith("gpu: "))
    assert not any(
        "of partitions" in line for line in planned(site / "slurm.conf", CONFIG, wish).by_hand
    )


def test_default_is_the_name_of_no_partition(site):
    conf = site / "slurm.conf"
    assert slurm_conf.partitions(CONF + PARTITIONS, conf) == {"gpu", "pascal", "v100"}


def test_the_options_of_spank_are_the_keys_of_the_declaration():
    source = Path(programs.__file__).parent / "c" / "hadar.c"
    names = re.findall(r'"hadar-([a-z-]+)"', source.read_text())
    assert sorted(name.replace("-", "_") for name in names) == sorted(KEYS)


def test_it_is_said_where_others_could_put_code_into_every_users_jobs(site, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(programs, "build_spank", lambda include=None: b"\x7fELF\0")
    python = tmp_path / "open" / "python"
    python.parent.mkdir()
    python.touch()
    monkeypatch.setattr(sys, "executable", str(python))
    python.parent.chmod(0o777)
    assert programs.others_may_change(python) == python.parent
    (line,) = [one for one in add(site, "task-prolog").by_hand if "others than root" in one]
    assert line.startswith(f"task-prolog: {python.parent} can be changed")
    python.parent.chmod(0o755)
    assert programs.others_may_change(python) != python.parent


@pytest.mark.parametrize("name", programs.NAMES)
def test_a_program_is_shell_and_ends_with_0_whatever_is_wrong(tmp_path, name):
    path = tmp_path / name
    path.write_text(programs.program(name, Path("/nowhere/python"), tmp_path, 5))
    assert "@" not in path.read_text().replace("$@", "")
    (tmp_path / "plan.7.json").touch()
    for environment in (
        {},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_JOB_COMMENT": "[hadar1 a=b]"},
        {"SLURM_JOB_ID": "x; exit 3", "SLURM_JOB_UID": "; exit 4", "SLURM_JOB_COMMENT": "[hadar1"},
    ):
        done = subprocess.run(["sh", path], env=environment, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_compiler_that_fails_is_no_missing_one(tmp_path, monkeypatch):
    """Tests skip without a compiler; source that does not compile must not pass for that."""
    headers = tmp_path / "include"
    with pytest.raises(programs.Missing, match="is in none of"):
        programs.build_spank(headers)
    (headers / "slurm").mkdir(parents=True)
    (headers / "slurm" / "spank.h").write_text("#error not a header of Slurm's\n")
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho wrong source >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    with pytest.raises(programs.NotBuilt, match="wrong source") as caught:
        programs.build_spank(headers)
    assert not isinstance(caught.value, programs.Missing)
