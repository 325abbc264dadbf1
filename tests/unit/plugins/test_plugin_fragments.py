"""The fragments around a site's own functions, with a stand-in for what Slurm hands over; the live
tests do the same with slurmctld and sbatch."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from lua_room import FOLDER, literal, run
from test_plugin_help import SITE

ROOM = """
local said, set = {}, {}
local function note(form, ...) said[#said + 1] = form:format(...) end
slurm = {SUCCESS = 0, NO_VAL = 4294967294, NO_VAL16 = 65534,
  log_user = note, log_error = note, log_info = note, log_verbose = note}
local function proxy(fields, refused)
  return setmetatable({}, {
    __index = fields,
    __newindex = function(_, key, value)
      if key == refused then error("Slurm refuses " .. key) end
      set[#set + 1] = key
      fields[key] = value
    end})
end
"""
JOB = {
    "comment": "mine",
    "tres_per_node": "gres:gpu:v100:2",
    "script": "#!/bin/sh\n#HADAR model=m checkpoint=yes\ntrue\n",
    "begin_time": 0,
    "requeue": 65534,
    "environment": {},
}


def installed(tmp_path, site=None, **broken):
    folder = tmp_path / "hadar"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FOLDER, folder)
    text = site if isinstance(site, str) else "return " + literal(SITE | (site or {}))
    (folder / "site.lua").write_text(text)
    for name, content in broken.items():
        (folder / f"{name}.lua").write_text(content)
    return folder


def submit(tmp_path, folder, job=None, refused="", theirs="return slurm.SUCCESS"):
    text = (
        f"{ROOM}\nfunction slurm_job_submit(job, parts, uid) {theirs} end\n"
        f"local ok, why = pcall(dofile, {literal(str(folder / 'job_submit.lua'))})\n"
        f"local fields = {literal(JOB | (job or {}))}\n"
        "local code = slurm_job_submit(proxy(fields, " + literal(refused) + "), {}, 7)\n"
        'answer({code = code or "nothing", said = said, set = set, fields = fields, loaded = ok, '
        "why = tostring(why)})"
    )
    return run(text, tmp_path)


def test_a_job_gets_all_of_the_help(tmp_path):
    found = submit(tmp_path, installed(tmp_path))
    fields = found["fields"]
    assert found["code"] == 0 and found["loaded"]
    assert fields["tres_per_node"] == "gres:gpu:2" and fields["features"] == "v100"
    assert fields["comment"] == "mine [hadar1 model=m types=v100 checkpoint=yes]"
    assert fields["requeue"] == 1
    assert fields["environment"]["HADAR_EXCHANGE"] == "/x"
    (said,) = found["said"]
    note = "the GPU type is asked for by its feature"
    assert said == f"slurm-hadar: the job is managed while a controller acts: {note}"


def test_a_managed_job_is_otherwise_what_sbatch_would_have_made_of_it(tmp_path):
    """Without --untype nothing of its request is touched, and it is eligible as it was."""
    folder = installed(tmp_path, {"untype": False})
    assert submit(tmp_path, folder)["set"] == ["requeue", "comment"]
    words = "#!/bin/sh\n#HADAR types=v100,p100\n"
    found = submit(tmp_path, folder, {"script": words, "tres_per_node": "gres:gpu:2"})
    assert found["set"] == ["features", "comment"]
    assert found["fields"]["features"] == "v100|pascal"
    found = filtered(tmp_path, folder)
    assert found["set"] == ["requeue", "open-mode", "comment"]
    assert found["said"] == ["slurm-hadar: the job is managed while a controller acts"]
    types = {"hadar": {"hadar-types": "v100,p100"}}
    found = filtered(tmp_path, folder, {"gres": "gres:gpu:2", "spank": types})
    assert found["set"] == ["constraint", "comment"]


NO_VAL, NO_VAL16 = 4294967294, 65534
TYPES = {
    "script": "#!/bin/sh\n#HADAR types=v100,p100\n",
    "tres_per_node": "gres:gpu:2",
    "partition": "gpu",
}
AS_SUBMITTED = {"max_nodes": NO_VAL, "num_tasks": NO_VAL, "shared": NO_VAL16}
JOBS_THAT_STAY = [
    {"req_nodes": "v1"}, {"reservation": "mine"}, {"shared": 0}, {"shared": 2}, {"max_nodes": 2},
    {"num_tasks": 2}, {"tres_per_node": None, "tres_per_job": "gres:gpu:2"},
]  # fmt: skip
JOBS_WITH_A_LIST = [
    {}, {"shared": 1}, {"max_nodes": 1, "num_tasks": 4}, {"num_tasks": 1},
    {"req_nodes": "", "reservation": "", "features": ""},
    {"tres_per_node": None, "tres_per_job": "gres/gpu:1"},
]  # fmt: skip


@pytest.mark.parametrize("job", [*JOBS_WITH_A_LIST, *JOBS_THAT_STAY])
def test_slurmctld_gets_a_list_of_partitions_instead_of_features(tmp_path, job):
    found = submit(tmp_path, installed(tmp_path), TYPES | AS_SUBMITTED | job)
    stays = job in JOBS_THAT_STAY
    assert found["set"] == ["features" if stays else "partition", "comment"]
    assert found["fields"]["partition"] == ("gpu" if stays else "p,v100")
    listed = "" if stays else " listed=p,v100"
    assert found["fields"]["comment"] == f"mine [hadar1 types=v100,p100 partitions=gpu{listed}]"


def test_a_partition_that_slurm_refuses_is_taken_back(tmp_path):
    found = submit(tmp_path, installed(tmp_path), TYPES, refused="comment")
    assert found["fields"]["partition"] == "gpu" and found["fields"]["comment"] == "mine"


OPTIONS_THAT_STAY = [
    {"nodelist": "v1"}, {"nodefile": "f"}, {"reservation": "mine"}, {"exclusive": "exclusive"},
    {"exclusive": "user"}, {"nodes": "2"}, {"nodes": "1-2"}, {"ntasks": "2"},
    {"gres": None, "gpus": "2"},
]  # fmt: skip
OPTIONS_WITH_A_LIST = [
    {}, {"exclusive": "oversubscribe"}, {"nodes": "1", "ntasks": "4"}, {"gres": None, "gpus": "1"},
    {"nodes": "unset", "ntasks": "unset"}, {"nodes": "1", "gres": None, "gpus": "2"},
]  # fmt: skip


@pytest.mark.parametrize("options", [*OPTIONS_WITH_A_LIST, *OPTIONS_THAT_STAY])
def test_a_client_gets_it_too(tmp_path, options):
    spank = {"hadar": {"hadar-types": "v100,p100"}}
    typed = {
        "gres": "gres:gpu:2",
        "partition": "gpu",
        "nodes": "1-0",
        "ntasks": "1",
        "spank": spank,
    }
    found = filtered(tmp_path, installed(tmp_path), typed | options)
    stays = options in OPTIONS_THAT_STAY
    assert found["set"] == ["constraint" if stays else "partition", "comment"]
    assert found["fields"]["partition"] == ("gpu" if stays else "p,v100")
    listed = "" if stays else " listed=p,v100"
    assert found["fields"]["comment"] == f"[hadar1 types=v100,p100 partitions=gpu{listed}]"


def test_a_users_own_words_stand(tmp_path):
    found = submit(tmp_path, installed(tmp_path), {"requeue": 0, "begin_time": 5})
    assert found["fields"]["requeue"] == 0 and found["fields"]["begin_time"] == 5


@pytest.mark.parametrize("own", ["return 2050", "return 2050, 'more'"])
def test_what_the_site_rejects_stays_rejected_and_untouched(tmp_path, own):
    found = submit(tmp_path, installed(tmp_path), theirs=own)
    assert found["code"] == 2050 and not found["set"]


def test_components_of_a_heterogeneous_job_are_left_alone(tmp_path):
    folder = installed(tmp_path)
    assert not submit(tmp_path, folder, {"het_job_offset": 0})["set"]
    script = "#!/bin/sh\n#HADAR model=m\n#SBATCH hetjob\n"
    assert not submit(tmp_path, folder, {"script": script})["set"]


@pytest.mark.parametrize("refused", ["tres_per_node", "features", "requeue", "comment"])
def test_when_slurm_refuses_one_change_all_are_taken_back(tmp_path, refused):
    found = submit(tmp_path, installed(tmp_path), refused=refused)
    assert found["code"] == 0
    for key in ("tres_per_node", "comment", "requeue"):
        assert found["fields"][key] == JOB[key]
    assert not found["fields"].get("features")
    assert "left as it was submitted" in found["said"][0]


BROKEN = {
    "syntax": {"help": "function ("},
    "gone": {"declaration": "error('no')"},
    "nothing": {"help": ""},
    "number": {"site": "return 5"},
    "empty": {"site": "return {}"},
    "wrong types": {"site": "return {types = 3, order = 'x', opt_in = 1, untype = true}"},
    "types of text": {"site": "return " + literal(SITE | {"types": {"v100": "v100"}})},
    "loop": {"help": "local h = {} function h.changes() while true do end end "
             "function h.script_words() return {}, false end return h"},
    "raises a table": {"help": "local h = {} function h.guarded(f, ...) return pcall(f, ...) end "
                       "function h.script_words() error({}) end return h"},
}  # fmt: skip


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_fragment_never_rejects_or_changes_a_job(tmp_path, way):
    parts = dict(BROKEN[way])
    site = parts.pop("site", None)
    if way == "loop":
        real = (FOLDER / "help.lua").read_text()
        spin = "function help.changes() while true do end end\nreturn help"
        parts["help"] = real.rsplit("return help", 1)[0] + spin
    found = submit(tmp_path, installed(tmp_path, site, **parts))
    assert found["code"] == 0
    assert not found["set"] and found["fields"]["comment"] == "mine"
    # Whatever it is, it is said: at load or at the submit.
    assert not found["loaded"] or any("slurm-hadar" in line for line in found["said"])


@pytest.mark.parametrize(
    "job",
    [
        {"comment": 5},
        {"script": 5},
        {"tres_per_node": {}},
        {"spank_job_env": {0: 7, 1: {}}},
        {"partition": True},
        {"features": {}},
        {"begin_time": "x"},
    ],
)
def test_odd_types_from_slurm_reject_nothing(tmp_path, job):
    assert submit(tmp_path, installed(tmp_path), job)["code"] == 0


def test_a_script_full_of_declarations_costs_little_and_is_not_managed(tmp_path):
    script = "#!/bin/sh\n" + "#HADAR model=m model=n\n" * 5000
    found = submit(tmp_path, installed(tmp_path), {"script": script})
    assert not found["set"] and "more than # arguments" in found["said"][0]


def test_the_default_partition_may_opt_in(tmp_path):
    folder = installed(tmp_path)
    fields = by_default(tmp_path, folder, "opted", {"script": "#!/bin/sh"})
    assert fields["comment"].startswith("mine [hadar1 types=v100")


def by_default(tmp_path, folder, default, job):
    """The fields of a job that names no partition."""
    text = (
        f"{ROOM}\nfunction slurm_job_submit() return 0 end\n"
        f"dofile({literal(str(folder / 'job_submit.lua'))})\n"
        f"local fields = {literal(JOB | job)}\n"
        f"slurm_job_submit(proxy(fields), {{{default} = {{flag_default = 1}}, x = {{}}}}, 7)\n"
        "answer(fields)"
    )
    return run(text, tmp_path)


def test_the_default_partition_may_stand_for_others(tmp_path):
    """Declared by its name, by which it can be given back."""
    folder = installed(tmp_path, {"default_partition": "gpu", "opt_in": {}})
    fields = by_default(tmp_path, folder, "gpu", TYPES | {"partition": None})
    assert fields["partition"] == "p,v100"
    assert fields["comment"] == "mine [hadar1 types=v100,p100 partitions=gpu listed=p,v100]"
    types = {"hadar": {"hadar-types": "v100,p100"}}
    found = filtered(tmp_path, folder, {"gres": "gres:gpu:2", "spank": types})
    assert found["fields"]["partition"] == "p,v100"
    assert found["fields"]["comment"] == "[hadar1 types=v100,p100 partitions=gpu listed=p,v100]"


OPTIONS = {
    "type": "sbatch",
    "gres": "gres:gpu:v100:2",
    "begin": "Unknown",
    "hold": "unset",
    "requeue": "unset",
    "exclusive": "unset",
    "argv": [],
    "spank": {"hadar": {"hadar-model": "m", "hadar-checkpoint": "yes", "hadar-off": "unset"}},
}


def filtered(tmp_path, folder, options=None, refused="", offset=0):
    text = (
        f"{ROOM}\nfunction slurm_cli_pre_submit(options, offset) return slurm.SUCCESS end\n"
        f"pcall(dofile, {literal(str(folder / 'cli_filter.lua'))})\n"
        f"local fields = {literal(OPTIONS | (options or {}))}\n"
        f"local code = slurm_cli_pre_submit(proxy(fields, {literal(refused)}), {offset})\n"
        "local early = #said\n"
        "if slurm_cli_post_submit then slurm_cli_post_submit(offset, 5, 0) end\n"
        "answer({early = early, code = code, said = said, set = set, fields = fields})"
    )
    return run(text, tmp_path)


def test_the_same_help_on_the_clients_side(tmp_path):
    found = filtered(tmp_path, installed(tmp_path))
    fields = found["fields"]
    assert fields["gres"] == "gres:gpu:2" and fields["constraint"] == "v100"
    assert fields["comment"] == "[hadar1 model=m types=v100 checkpoint=yes]"
    assert fields["requeue"] == "yes" and fields["open-mode"] == "append"
    assert "begin" not in found["set"]


@pytest.mark.parametrize(
    ("option", "typed", "untyped"),
    [("gpus", "v100:2", "2"), ("gpus-per-node", "v100", "1"), ("gpus-per-task", "v100:1", "1")],
)
def test_every_option_for_gpus_is_untyped_in_its_own_words(tmp_path, option, typed, untyped):
    found = filtered(tmp_path, installed(tmp_path), {"gres": None, option: typed})
    assert found["fields"][option] == untyped


@pytest.mark.parametrize("way", [*BROKEN, "refused"])
def test_a_broken_filter_changes_no_option(tmp_path, way):
    parts = dict(BROKEN.get(way, {}))
    site = parts.pop("site", None)
    refused = "comment" if way == "refused" else ""
    found = filtered(tmp_path, installed(tmp_path, site, **parts), refused=refused)
    assert found["code"] == 0
    assert found["fields"]["gres"] == "gres:gpu:v100:2" and not found["fields"].get("comment")


def test_a_step_inside_of_a_job_is_left_alone(tmp_path, monkeypatch):
    folder = installed(tmp_path)
    assert filtered(tmp_path, folder, {"type": "srun"})["set"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not filtered(tmp_path, folder, {"type": "srun"})["set"]
    assert filtered(tmp_path, folder)["set"]


def test_a_script_is_looked_into_by_the_filter_too(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#HADAR model=other gpus=1-2\ntrue\n")
    found = filtered(tmp_path, installed(tmp_path), {"argv": [str(script)]})
    # As with hbatch options beat lines.
    assert "model=m" in found["fields"]["comment"] and "gpus=1-2" in found["fields"]["comment"]
    script.write_text("#!/bin/sh\n#HADAR model=other\n#SBATCH hetjob\n")
    assert not filtered(tmp_path, installed(tmp_path), {"argv": [str(script)]})["set"]
    assert not filtered(tmp_path, installed(tmp_path), offset=1)["set"]


def test_nothing_that_is_said_comes_before_slurm_accepts_or_has_a_digit(tmp_path):
    folder = installed(tmp_path)
    found = filtered(tmp_path, folder)
    (said,) = found["said"]
    assert found["early"] == 0 and said.startswith("slurm-hadar: the job is managed")
    wrong = {"hadar": {"hadar-gpus": "4-1"}}
    for options in ({"spank": wrong}, {"gres": None}, {"spank": {"hadar": {"hadar-types": "k80"}}}):
        found = filtered(tmp_path, folder, options)
        assert found["early"] == 0 and not [x for x in found["said"] if any(map(str.isdigit, x))]
        assert ("is managed" in found["said"][0]) is (
            "gres" not in options and wrong not in options.values()
        )
    script = "#!/bin/sh\n#HADAR gpus=4-1\n"
    (said,) = submit(tmp_path, folder, {"script": script})["said"]
    assert said.endswith("line # of the script: gpus=#-# is not understood")
    # Who declared nothing hears nothing.
    opted = {"script": "#!/bin/sh\n", "partition": "opted"}
    found = submit(tmp_path, folder, opted)
    assert "[hadar1" in found["fields"]["comment"] and not found["said"]
    found = filtered(tmp_path, folder, {"spank": {}, "partition": "opted"})
    assert "[hadar1" in found["fields"]["comment"] and not found["said"]


def test_what_job_submit_says_too_the_filter_leaves_to_it(tmp_path):
    wrong = {"spank": {"hadar": {"hadar-gpus": "4-1"}}}
    assert not filtered(tmp_path, installed(tmp_path, {"job_submit": True}), wrong)["said"]
    (said,) = filtered(tmp_path, installed(tmp_path, {"job_submit": False}), wrong)["said"]
    assert "not managed" in said
    # With the comment that the filter sets job_submit has nothing to say.
    (said,) = filtered(tmp_path, installed(tmp_path, {"job_submit": True}))["said"]
    assert said.startswith("slurm-hadar: the job is managed")


def test_the_default_partition_may_opt_in_on_the_clients_side_too(tmp_path):
    folder = installed(tmp_path, {"default_partition": "opted"})
    found = filtered(tmp_path, folder, {"spank": {}})
    assert found["fields"]["comment"] == "[hadar1 types=v100]"
    assert not filtered(tmp_path, folder, {"spank": {}, "partition": "x"})["set"]


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/tty"])
def test_a_script_that_is_no_ordinary_file_keeps_no_submit_waiting(tmp_path, name):
    if name == "pipe":
        name = str(tmp_path / "a pipe'; touch gone; '")
        os.mkfifo(name)
    code = (
        "import sys, json; sys.path[:0] = json.loads(sys.argv[1])\n"
        "from pathlib import Path; import test_plugin_fragments as t\n"
        "folder = t.installed(Path(sys.argv[2]))\n"
        "found = t.filtered(Path(sys.argv[2]), folder, {'argv': [sys.argv[3]]})\n"
        "print(found['fields']['comment'])"
    )
    words = [sys.executable, "-c", code, json.dumps(sys.path), str(tmp_path), name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[hadar1 model=m types=v100 checkpoint=yes]\n", done.stderr
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("name", ["a b.sh", "it's $(x).sh", "-n.sh", "caf\u00e9%s\\0.sh", "a\nb\n"])
def test_a_scripts_name_is_nothing_but_a_name(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("#!/bin/sh\n#HADAR batch=64\n")
    (tmp_path / name).chmod(0o444)
    for argv in ([name], [str(tmp_path / name)]):
        assert (
            "batch=64"
            in filtered(tmp_path, installed(tmp_path), {"argv": argv})["fields"]["comment"]
        )
