from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lua_room import literal, run

from slurm_hadar.cli import rollout_remark
from slurm_hadar.cli.additions import add
from slurm_hadar.cli.batch_script import script_arguments
from slurm_hadar.cli.submit_prices import Today
from slurm_hadar.cli.wrapper_site import RolloutLimits, WrapperSite
from slurm_hadar.domain.declaration import (
    KEYS,
    Declaration,
    decode,
    parse,
)
from slurm_hadar.domain.declaration_values import signal_of_sbatch
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.slurm.tres import parse_gpus

SITE: dict[str, Any] = {
    "untype": True,
    "quiet": False,
    "default_types": "",
    "exchange_dir": "/x",
    "controller_uid": 7,
    "opt_in": {"opted": True},
    "order": ["v100", "p100", "a100"],
    "groups": {"gpu": [["p", "p100"], ["v100", "v100"]]},
    "types": {
        "v100": {"feature": "v100", "memory_mb": 16384},
        "p100": {"feature": "pascal", "memory_mb": 16384},
        "a100": {"feature": "a100", "memory_mb": 40960},
    },
}
MODEL = [["model", "m", "here"]]
IN_ROOM = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def changes(tmp_path, site=None, **ask):
    ask = {"comment": "", "constraint": "", "partitions": [], "gpus": [], "declared": []} | ask
    text = (
        f'local help = dofile(FOLDER .. "/help.lua")\n'
        f"local result, why = help.changes({literal(SITE | (site or {}))}, {literal(ask)})\n"
        'answer({result = result or "none", why = why or "none"})'
    )
    found = run(text, tmp_path)
    return (None if found["result"] == "none" else found["result"]), found["why"]


def declared(result):
    return decode(result["comment"])


def test_the_keys_are_those_of_the_declaration(tmp_path):
    text = 'answer(dofile(FOLDER .. "/declaration.lua").keys)'
    assert run(text, tmp_path) == list(KEYS)


VALID = """
model=resnet18 types=any gpus=1-4 batch=64:512 samples=5e6 checkpoint=yes
types=v100,p100 gpu_mem=24G epochs=3 dataset_size=50000 signal=SIGUSR1
restart_cost=30 restart_cost=0.5 fork=1-8 backfill=yes nodes=2 cpus=1-8 mem=8G-32G
tasks=8 tasks=1e6 wait=3600 wait=0 cost=any cost=Any
checkpoint=signal checkpoint=Restart checkpoint=watch:/a/%j/b?=1-*.pt checkpoint=Watch:out
signal=B:USR1@60 signal=f:sigusr1 signal=10 signal=B:12@00060 lose=600 checkpoint_exit_code=85
max_requeues=10 max_requeues=0 max_requeues=1000
progress={samples} progress=step={step*64}/ progress=Ep*{epoch*50000}*loss
progress=tensorboard:/a/%j{step*64} progress=wandb:wandb{samples} progress=tensorboard={samples}
off=yes pin=no checkpoint=OFF gpu_mem=500mb signal=usr2 gpus=2:4 samples=1.5e3
gpus=4,8 gpus=8,1e0,4,8
"""


@pytest.mark.parametrize("word", VALID.split())
def test_what_a_person_would_write_means_the_same_in_lua(tmp_path, word):
    key, _, value = word.partition("=")
    result, why = changes(tmp_path, declared=[[key, value, "here"]])
    assert result, why
    assert declared(result) == parse([word], "here")


@pytest.mark.parametrize(
    "text", ["B:USR1@60", "USR2@90", "R:10", "BR:HUP", "KILL", "B:", "", "9@1"]
)
def test_the_jobs_own_signal_is_read_as_hbatch_reads_it(tmp_path, text):
    result, why = changes(tmp_path, declared=[["checkpoint", "signal", "here"]], signal=text)
    assert result, why
    assert declared(result).signal == signal_of_sbatch(text)


@pytest.mark.parametrize(
    "word",
    ["gpus=4,", "gpus=,4", "gpus=4,x", "gpus=4-8,16", "gpus=" + ",".join(map(str, range(1, 18)))],
)
def test_a_list_that_is_none_is_refused_in_lua_as_by_hbatch(tmp_path, word):
    key, _, value = word.partition("=")
    result, why = changes(tmp_path, declared=[[key, value, "here"]])
    assert result is None and "is not understood" in why
    with pytest.raises(UsageError):
        parse([word], "here")


def test_more_tasks_than_can_be_dealt_are_refused_in_lua_too(tmp_path):
    result, why = changes(tmp_path, declared=[["tasks", "1000001", "here"]])
    assert result is None and "tasks=1000001 is not understood" in why


PIECES = st.lists(
    st.sampled_from([*"0123456789", "-", ":", ".", "e", "G", "m", ",", "any", "v100", "yes", "NO",
                     "USR1", "/", "%", "]", " ", "é", "+", "T", "B", "B:", "@", "60",
                     "SIG", "watch:", "signal", "restart", "%j", "*", "?", "{samples}", "{step*",
                     "}", "tensorboard:", "wandb:", "{epoch*1"]),
    min_size=1, max_size=6,
).map("".join)  # fmt: skip


@IN_ROOM
@given(st.lists(st.tuples(st.sampled_from([*KEYS, "no_key"]), PIECES), min_size=1, max_size=3))
def test_whatever_lua_takes_the_controller_reads_as_hbatch_would(tmp_path, words):
    result, why = changes(tmp_path, declared=[[key, value, "here"] for key, value in words])
    try:
        wanted = parse([f"{key}={value}" for key, value in words], "here")
    except UsageError:
        wanted = None
    if result:
        assert wanted is not None
        assert declared(result) == (wanted if not wanted.off else declared(result))
        assert declared(result).off == wanted.off
    else:
        assert why.startswith("here: ") or "not both" in why


LINES = st.lists(
    st.sampled_from(["#!/bin/sh", "#HADAR model=a types=any", "#HADARx=1", "#HADAR\tgpus=1  # b=2",
                     "", "# note", "true", " #HADAR pin=yes", "#HADAR off", "#HADAR a=b=c"]),
    max_size=6,
).map("\n".join)  # fmt: skip


@IN_ROOM
@given(LINES)
def test_the_lines_of_a_script_are_read_as_hbatch_reads_them(tmp_path, script):
    text = (
        'local d = dofile(FOLDER .. "/declaration.lua")\n'
        f"answer((d.script_words({literal(script)})))"
    )
    found = [(key + "=" + value).rstrip("=") for key, value, _ in run(text, tmp_path)]
    assert found == [word.rstrip("=") for word, _ in script_arguments(script, "x")]


def test_a_job_that_nobody_declared_is_none_of_ours(tmp_path):
    assert changes(tmp_path, gpus=[["tres_per_node", "gres:gpu:v100:2"]]) == (None, "")
    # An opt-in partition manages jobs that ask for GPUs, and no others.
    assert changes(tmp_path, partitions=["opted"]) == (None, "")


def test_an_interactive_job_is_left_alone_in_an_opt_in_partition(tmp_path):
    gpus = [["tres_per_node", "gres:gpu:v100:1"]]
    assert changes(tmp_path, partitions=["opted"], gpus=gpus, batch=False) == (None, "")
    # What its owner declares of its request holds.
    words = [["types", "k80", "here"]]
    result, _ = changes(tmp_path, partitions=["opted"], gpus=[], batch=False, declared=words)
    assert declared(result).types == ("k80",)


def test_an_opt_in_partition_manages_a_job_without_a_declaration(tmp_path):
    gpus = [["tres_per_node", "gres:gpu:1"]]
    site = {"default_types": "v100,p100"}
    result, _ = changes(tmp_path, site, partitions=["opted"], gpus=gpus)
    assert declared(result) == Declaration(types=("v100", "p100"), partitions=("opted",))
    assert result["constraint"] == "v100|pascal"


UNTYPED = {
    "gres:gpu:v100:2": ("gres:gpu:2", ["v100"]),
    "gres/gpu:v100:2": ("gres/gpu:2", ["v100"]),
    "gres/gpu:v100=2": ("gres/gpu=2", ["v100"]),
    "gpu:v100": ("gpu", ["v100"]),
    "gpu:2": ("gpu:2", []),
    "gpu": ("gpu", []),
    "gpu:1g.5gb:3": ("gpu:3", ["1g.5gb"]),
    "gpu:v100:1,shard:4,gpu:p100:2": ("gpu:1,shard:4,gpu:2", ["v100", "p100"]),
    "gpux:v100:2": ("gpux:v100:2", []),
    "license:3": ("license:3", []),
}


@pytest.mark.parametrize("text", UNTYPED)
def test_a_request_without_its_type(tmp_path, text):
    chunk = (
        'local help = dofile(FOLDER .. "/help.lua")\n'
        f"local plain, types = help.untyped({literal(text)}) answer({{plain, types}})"
    )
    plain, types = run(chunk, tmp_path)
    assert (plain, types) == UNTYPED[text]
    if "gpu:" in text and "shard" not in text and "gpux" not in text:
        assert sum(parse_gpus(plain).values()) == sum(parse_gpus(text).values())


def test_what_only_slurm_should_interpret_stays(tmp_path):
    for odd in ("gpu:v100:2(S:0-1)", "gpu:v100:2K", "gpu::2", "gpu:v100:2:3"):
        result, _ = changes(tmp_path, declared=MODEL, gpus=[["tres_per_node", odd]])
        assert not result.get("gpus")


@pytest.mark.parametrize(
    ("own", "untype", "types", "gpus", "constraint"),
    [
        ("", True, "", "gres:gpu:2", "v100"),
        ("", True, "any", "gres:gpu:2", None),
        ("", True, "v100,p100", "gres:gpu:2", "v100|pascal"),
        ("ib", True, "", "gres:gpu:2", "v100&ib"),
        ("ib", True, "v100,p100", "gres:gpu:2", "(v100|pascal)&ib"),
        ("a|b", True, "", None, None),
        ("", False, "any", None, None),
        # What he declared does not have the type that he asked for: the request stands.
        ("", True, "p100", "gres:gpu:2", "v100"),
    ],
)
def test_the_type_goes_out_of_a_request_only_where_the_site_says_so(
    tmp_path, own, untype, types, gpus, constraint
):
    words = [["types", types, "here"]] if types else MODEL
    result, _ = changes(
        tmp_path,
        {"untype": untype},
        constraint=own,
        declared=words,
        gpus=[["tres_per_node", "gres:gpu:v100:2"]],
    )
    assert result.get("gpus") == ([["tres_per_node", gpus]] if gpus else None)
    assert result.get("constraint") == constraint
    found = declared(result)
    assert found.constraint == own
    assert ",".join(found.types) == (types if gpus and types and types != "p100" else "v100")


def test_two_types_in_one_request_stay_typed(tmp_path):
    gpus = [["tres_per_job", "gres:gpu:v100:1,gres:gpu:p100:1"]]
    result, _ = changes(tmp_path, declared=MODEL, gpus=gpus)
    assert not result.get("gpus")
    assert declared(result).types == ("v100", "p100")


def test_what_hbatch_declared_is_kept_and_only_the_type_goes(tmp_path):
    comment = "mine [hadar1 model=m types=v100 lease=yes]"
    gpus = [["tres_per_node", "gres:gpu:v100:2"]]
    result, _ = changes(tmp_path, comment=comment, gpus=gpus, constraint="", declared=MODEL)
    # Also of a job from before: its lease=yes is read, and nothing is written anew.
    assert "comment" not in result
    assert result["gpus"] == [["tres_per_node", "gres:gpu:2"]]
    assert result["constraint"] == "v100"
    result, _ = changes(tmp_path, {"untype": False}, comment=comment, gpus=gpus)
    assert result == {"signal": "USR2", "notes": []}
    off = "[hadar1 off=yes]"
    assert changes(tmp_path, comment=off, gpus=gpus, declared=MODEL) == (None, "")


def test_a_job_that_is_left_alone_gets_its_comment_and_nothing_else(tmp_path):
    result, _ = changes(
        tmp_path,
        declared=[*MODEL, ["off", "", "here"]],
        gpus=[["tres_per_node", "gres:gpu:v100:2"]],
        batch=True,
    )
    assert result.keys() == {"comment", "notes"}
    assert declared(result).off


def test_a_job_from_before_is_read_and_its_lease_is_never_written(tmp_path):
    text = (
        'local d = dofile(FOLDER .. "/declaration.lua")\n'
        'local found = d.decode("mine [hadar1 model=m lease=yes]")\n'
        "answer({found.model, found.lease, d.encode(found)})"
    )
    assert run(text, tmp_path) == ["m", "yes", "[hadar1 model=m]"]
    result, why = changes(tmp_path, declared=[["lease", "yes", "here"]])
    assert result is None and "there is no key lease" in why


@pytest.mark.parametrize("batch", [True, False])
def test_nothing_that_decides_when_a_job_may_start_is_answered(tmp_path, batch):
    words = [*MODEL, ["checkpoint", "yes", "here"], ["types", "v100", "here"]]
    gpus = [["tres_per_node", "gres:gpu:1"]]
    result, _ = changes(tmp_path, declared=words, gpus=gpus, batch=batch)
    keys = {"comment", "constraint", "signal", "movable", "notes"}
    assert result.keys() == keys and result["notes"] == []
    assert not declared(result).lease and result["movable"] is batch


@pytest.mark.parametrize(
    ("more", "pins"),
    [
        ({}, True),
        ({"most_nodes": 2}, True),
        ({"most_nodes": 1}, False),
        ({"most_nodes": 1, "nodes": True}, True),
        ({"switches": False}, False),
        ({"checkpoint": False}, False),
    ],
)
def test_a_job_with_switches_on_several_nodes_is_pinned(tmp_path, more, pins):
    words = [*MODEL, ["types", "v100", "here"]]
    words += [["checkpoint", "yes", "here"]] if more.pop("checkpoint", True) else []
    words += [["nodes", "1-2", "here"]] if more.pop("nodes", False) else []
    gpus = [["tres_per_node", "gres:gpu:1"]]
    result, _ = changes(tmp_path, declared=words, gpus=gpus, **{"switches": True, **more})
    assert declared(result).pin is pins
    assert any("--switches" in note for note in result["notes"]) is pins


UNTYPED_PER_JOB = [["tres_per_job", "gres:gpu:1"]]
STAYS: dict[str, dict[str, Any]] = {
    "a list": {"partitions": ["gpu", "other"]},
    "no group": {"partitions": ["other"]},
    "its own constraint": {"constraint": "ib"},
    "nodes, a reservation, or exclusive": {"keeps_partition": True},
    "two nodes": {"most_nodes": 2},
    "two tasks": {"tasks": 2},
    "GPUs by job": {"gpus": [["tres_per_job", "gres:gpu:2"]]},
    "GPUs by job as typed": {"gpus": [["gpus", "gpu:2"]]},
    "more nodes are declared": {"declared": [["nodes", "1-2", "here"]]},
    "copies are declared": {"declared": [["fork", "1-2", "here"]]},
    "a type of another partition": {"declared": [["types", "v100,a100", "here"]]},
}
LISTED = {
    "nothing more": {},
    "by default": {"partitions": [], "within": ["gpu"]},
    "one node": {"most_nodes": 1, "tasks": 8, "gpus": [["tres_per_job", "gres:gpu:2"]]},
    "one task": {"tasks": 1},
    "one GPU by job": {"gpus": UNTYPED_PER_JOB},
    "one copy": {"declared": [["fork", "1", "here"]]},
    "a type that the site has not": {"declared": [["types", "k80,v100,p100", "here"]]},
}
NARROW = {
    "partitions": ["gpu"],
    "gpus": [["tres_per_node", "gres:gpu:1"]],
    "declared": [["types", "v100,p100", "here"]],
}


def narrowed(tmp_path, ask, site=None):
    more = {"declared": NARROW["declared"] + ask.get("declared", [])}
    result, why = changes(tmp_path, site, **(NARROW | ask | more))
    assert result, why
    return result


@pytest.mark.parametrize("case", LISTED)
def test_where_a_partition_stands_for_one_per_type_the_types_are_a_list(tmp_path, case):
    result = narrowed(tmp_path, LISTED[case])
    assert (result.get("partitions"), result.get("constraint")) == ("p,v100", None)
    # What optout and retire give back.
    assert declared(result).partitions == ("gpu",)


@pytest.mark.parametrize(("copies", "listed"), [(False, True), (True, False)])
def test_a_job_with_fork_gets_a_list_where_the_policy_makes_no_copies(tmp_path, copies, listed):
    ask = {"declared": [["fork", "1-2", "here"]]}
    result = narrowed(tmp_path, ask, SITE | {"copies": copies})
    assert ("partitions" in result) is listed and ("constraint" in result) is not listed


@pytest.mark.parametrize("case", STAYS)
def test_else_the_types_are_features(tmp_path, case):
    result = narrowed(tmp_path, STAYS[case])
    assert "partitions" not in result
    assert ("constraint" in result) is ("constraint" not in STAYS[case])
    named = STAYS[case].get("partitions", ["gpu"])
    assert declared(result).partitions == tuple(named)


def test_any_type_leaves_the_partition_as_it_is_typed(tmp_path):
    result, _ = changes(tmp_path, **(NARROW | {"declared": [["types", "any", "here"]]}))
    assert result.keys().isdisjoint({"partitions", "constraint"})


def test_a_type_that_goes_out_of_a_request_becomes_its_partition(tmp_path):
    ask = {"gpus": [["tres_per_node", "gres:gpu:v100:2"]], "partitions": ["gpu"]}
    result, _ = changes(tmp_path, **ask, declared=MODEL)
    assert (result["partitions"], result.get("constraint")) == ("v100", None)
    assert result["gpus"] == [["tres_per_node", "gres:gpu:2"]]
    assert declared(result) == Declaration(
        model="m", types=("v100",), partitions=("gpu",), listed=("v100",)
    )
    assert result["notes"] == ["the GPU type is asked for by its partition"]
    types = [["types", "v100,p100", "here"]]
    assert changes(tmp_path, **ask, declared=types)[0]["partitions"] == "p,v100"
    result, _ = changes(tmp_path, **ask, declared=MODEL, constraint="ib")
    assert (result.get("partitions"), result["constraint"]) == (None, "v100&ib")
    # Of a job that was declared before, only what it is declared with can be given back.
    for comment, listed in {
        "[hadar1 types=v100 partitions=gpu]": "v100",
        "[hadar1 types=v100 partitions=other]": None,
        "[hadar1 types=v100]": None,
    }.items():
        result, _ = changes(tmp_path, **ask, comment=comment)
        assert result.get("partitions") == listed
        assert result.get("constraint") == (None if listed else "v100")


def test_the_second_plugin_leaves_the_list_of_the_first(tmp_path):
    first = narrowed(tmp_path, {})
    ask = NARROW | {"comment": first["comment"], "partitions": first["partitions"].split(",")}
    assert changes(tmp_path, **ask)[0] == {"signal": "USR2", "notes": []}


BAD_GROUPS = ['"x"', '{gpu = "v100"}', '{gpu = {"v100"}}', '{gpu = {{"v100"}}}']


@pytest.mark.parametrize("groups", ["nil", "{}", *BAD_GROUPS])
def test_a_site_of_the_release_before_has_no_groups(tmp_path, groups):
    text = (
        f'local help, site = dofile(FOLDER .. "/help.lua"), {literal(SITE)}\n'
        f"site.groups = {groups} local ok, why = pcall(help.checked, site)\n"
        "answer({ok, tostring(why), ok and next(site.groups) == nil})"
    )
    ok, why, empty = run(text, tmp_path)
    assert (ok, empty) == (True, True) or (groups in BAD_GROUPS and "groups" in why)


def test_memory_chooses_among_the_types(tmp_path):
    gpus = [["tres_per_node", "gres:gpu:1"]]
    result, _ = changes(tmp_path, declared=[["gpu_mem", "24G", "here"]], gpus=gpus)
    assert result["constraint"] == "a100"
    result, _ = changes(tmp_path, declared=[["gpu_mem", "10G", "here"]], gpus=gpus)
    assert "constraint" not in result
    result, _ = changes(tmp_path, declared=[["gpu_mem", "80G", "here"]], gpus=gpus)
    assert "constraint" not in result and "not enforced" in " ".join(result["notes"])


def test_a_comment_that_slurm_would_not_take_leaves_the_job_unmanaged(tmp_path):
    result, why = changes(tmp_path, comment="x" * 1010, declared=MODEL)
    assert result is None and "Slurm takes 1024" in why


WIRED = {
    "version": 1,
    "mode": "act",
    "exchange_dir": "/x",
    "controller_uid": 7,
    "opt_in": [],
    "default_types": "",
    "sbatch": "sbatch",
    "types": {
        name: {"feature": SITE["types"][name]["feature"], "memory_gb": gigabytes}
        for name, gigabytes in (("v100", 16), ("p100", 0), ("a100", 40))
    },
    "groups": {"grouped": {"p": "p100", "v100": "v100", "a100": "a100"}},
}


def wired(copies):
    return WrapperSite(WIRED | {"copies": copies})


OF_HBATCH = SITE | {"untype": False, "types": SITE["types"] | {"p100": {"feature": "pascal",
                    "memory_mb": 0}}, "groups": {"grouped": [["p", "p100"], ["v100", "v100"],
                    ["a100", "a100"]]}}  # fmt: skip


@IN_ROOM
@given(
    st.lists(
        st.sampled_from(["model=m", "types=any", "types=v100", "types=p100,a100", "types=k80,v100",
                         "fork=1-8", "fork=1", "nodes=2", "gpu_mem=10G", "gpu_mem=24G",
                         "gpu_mem=80G", "checkpoint=yes", "off=yes", "batch=64:128"]),
        min_size=1, max_size=3),
    st.sampled_from(["gpu:1", "gpu:v100:2", "gpu:v100:1,gpu:p100:1"]),
    st.sampled_from(["", "ib", "a|b"]),
    st.sampled_from(["", "gpu,cpu", "grouped", "grouped,cpu"]),
    st.sampled_from(["", "now+9"]),
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["", "1", "2"]),
    st.booleans(),
)  # fmt: skip
@example(["model=m"], "gpu:v100:2", "", "grouped", "", "", "", False)
def test_the_help_is_that_of_hbatch(
    tmp_path, words, gres, own, partitions, begin, nodes, tasks, copies
):
    held = {"gres": gres}
    held |= {"nodes": nodes} if nodes else {}
    held |= {"ntasks": tasks} if tasks else {}
    held |= {"constraint": own} if own else {}
    held |= {"partition": partitions} if partitions else {}
    held |= {"begin": begin} if begin else {}
    try:
        wanted = add(parse(words, "here"), held, wired(copies), Today)
    except UsageError:
        # hbatch tells its user before anything is submitted; at a submit nothing is rejected.
        return
    assert not isinstance(wanted, str), wanted
    result, _ = changes(
        tmp_path,
        OF_HBATCH | {"copies": copies},
        declared=[[*word.split("="), "here"] for word in words],
        gpus=[["tres_per_node", gres]],
        constraint=own,
        partitions=partitions.split(",") if partitions else [],
        batch=True,
        most_nodes=int(nodes) if nodes else None,
        tasks=int(tasks) if tasks else None,
    )
    options = dict(option.partition("=")[::2] for option in wanted.options)
    listed = tuple(result.get("partitions", "").split(",")) if "partitions" in result else ()
    assert declared(result) == replace(decode(wanted.comment), listed=listed)
    assert result.get("constraint") == options.get("--constraint")
    assert bool(result.get("movable")) == ("--requeue" in options)
    assert options.keys() <= {"--constraint", "--requeue", "--open-mode"}
    # hbatch also lists all types where any will do, the one of a request for one type, and those
    # that a user's own -C leaves.
    behind = [one.partition("=")[2] for one in wanted.behind]
    if own or "partitions" not in result:
        types = {"v100"} if gres == "gpu:v100:2" else {"p", "v100", "a100"}
        assert not behind or own or set(behind[0].split(",")) == types
    else:
        assert behind == [result["partitions"]]


@pytest.mark.parametrize("percent", [0, 10, 100])
@pytest.mark.parametrize("accounts", [(), ("ml",)])
@pytest.mark.parametrize("users", [(), ("ann",)])
def test_the_rollout_of_lua_is_that_of_hbatch(tmp_path, monkeypatch, percent, accounts, users):
    limits = {"accounts": accounts, "users": users, "percent": percent}
    asked = [("ann", None), ("ann", "phys"), ("bob", "ml"), ("bob", "phys"), ("bob", None)]
    here = {
        **limits,
        "accounts": dict.fromkeys(accounts, True),
        "users": dict.fromkeys(users, True),
    }
    calls = ", ".join(
        f"{{help.outside(site, {literal(user)}, {literal(account)})}}" for user, account in asked
    )
    text = (
        f'local help, site = dofile(FOLDER .. "/help.lua"), {literal(SITE | {"rollout": here})}\n'
        f"help.checked(site) local found = {{{calls}}}\n"
        'for i, one in ipairs(found) do found[i] = tostring(one[1]) .. "|" .. (one[2] or "") end\n'
        "answer(found)"
    )
    wanted = []
    for user, account in asked:
        monkeypatch.setattr("slurm_hadar.users.name_of", lambda *_, user=user: user)
        outside, said = rollout_remark.remark(
            RolloutLimits({**limits, "accounts": list(accounts), "users": list(users)}),
            {"account": account},
        )
        wanted.append(f"{str(outside).lower()}|{said}")
    assert run(text, tmp_path) == wanted


def test_without_limits_lua_says_nothing_of_a_rollout(tmp_path):
    text = (
        f'local help, site = dofile(FOLDER .. "/help.lua"), {literal(SITE)}\n'
        'answer({tostring(help.outside(site, "ann", nil)), help.told({notes = {}}, false, nil)})'
    )
    assert run(text, tmp_path) == [
        "false",
        "slurm-hadar: the job is managed while a controller acts",
    ]
