"""What is added to a managed job, and what stands."""

import pytest

from slurm_hadar.cli import partition_list
from slurm_hadar.cli.additions import add, gpu_request
from slurm_hadar.cli.sbatch_parser import merged_options, read_argv, read_directives, read_header
from slurm_hadar.cli.submit_prices import Today
from slurm_hadar.cli.wrapper_site import WrapperSite
from slurm_hadar.domain.declaration import COMMENT_LIMIT, Declaration, decode, parse
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.table import model_key

TYPES = {
    "v100": {"feature": "v100", "memory_gb": 16},
    "a100": {"feature": "ampere", "memory_gb": 40},
    "k80": {"feature": "k80", "memory_gb": 12},
}


def site(**changes):
    return WrapperSite(
        {
            "mode": "act",
            "exchange_dir": "/x",
            "controller_uid": 0,
            "opt_in": [],
            "default_types": "",
            "sbatch": "sbatch",
            "types": TYPES,
            **changes,
        }
    )


SPEEDS = {
    "": {"v100": 0.25, "a100": 1.0, "k80": 0.12},
    "resnet18": {"v100": 1.0, "a100": 0.9, "k80": 0.24},
    "recommendation": {"v100": 0.3, "a100": 0.2, "k80": 1.0},
}


def groups(**changes):
    """A site with a partition per GPU type; the V100s' is named like their type, the A100s' like
    their feature."""
    members = {"v100": "v100", "ampere": "a100", "k80": "k80"}
    known = {model: list(TYPES) for model in SPEEDS if model}
    return site(**{"groups": {"gpu": members}, "speeds": SPEEDS, "known": known, **changes})


NODES = {"v100": [(2, 16, 64_000)], "ampere": [(2, 16, 64_000)], "k80": [(4, 32, 256_000)]}


def added(words, held=None, where=None, takes_lists=True, **known):
    declaration = parse(words.split(), "test") if words else Declaration()
    today = Today(**{"nodes": NODES, **known}) if takes_lists else None
    return add(declaration, held or {}, site() if where is None else where, lambda: today)


def held_in(source, option, value):
    """The settings of a user who set one option in one of the three places."""
    word = f"--{option}" + (f"={value}" if value is not None else "")
    script = read_header(f"#!/bin/sh\n#SBATCH {word}\n".encode()).words
    env = {"SBATCH_" + option.upper().replace("-", "_"): value if value is not None else "yes"}
    return merged_options(
        read_directives(script if source == "script" else []),
        env if source == "environment" else {},
        read_argv([word, "job.sh"] if source == "argv" else ["job.sh"]),
    )


EVEN = {"": {}, "even": {"v100": 0.6, "a100": 1.0, "k80": 0.3}}
EVERYTHING = "types=v100,a100 gpus=2-4 checkpoint=yes"


def test_all_that_is_added_where_the_user_set_nothing():
    result = added(EVERYTHING)
    assert result.options == [
        "--gres=gpu:2",
        "--constraint=v100|ampere",
        "--requeue",
        "--open-mode=append",
    ]
    assert result.behind == []
    record = decode(result.comment)
    assert record.gpus == (2, 4) and record.types == ("v100", "a100")


@pytest.mark.parametrize("source", ["argv", "environment", "script"])
@pytest.mark.parametrize(
    ("option", "value", "gone"),
    [
        ("gres", "gpu:1", "--gres"),
        ("gpus", "3", "--gres"),
        ("gpus-per-node", "3", "--gres"),
        ("gpus-per-task", "1", "--gres"),
        ("gpus-per-socket", "1", "--gres"),
        ("tres-per-task", "gres/gpu:1", "--gres"),
        ("gres", "none", "--gres"),
        ("constraint", "ib", "--constraint"),
        ("requeue", None, "--requeue"),
        ("no-requeue", None, "--requeue"),
        ("open-mode", "truncate", "--open-mode"),
    ],
)
def test_what_the_user_set_anywhere_stands(source, option, value, gone):
    result = added(EVERYTHING, held_in(source, option, value))
    assert not [word for word in result.options if word.startswith(gone)]


@pytest.mark.parametrize("mode", ["act", "observe"])
@pytest.mark.parametrize("held", [{}, {"partition": "gpu"}, {"dependency": "afterok:1"}])
def test_no_begin_time_is_ever_added(mode, held):
    result = added(EVERYTHING, held, groups(mode=mode))
    assert not [word for word in (*result.options, *result.behind) if "begin" in word]
    assert not decode(result.comment).lease


def test_a_job_that_asks_for_no_gpu_gets_no_types():
    result = added("model=m checkpoint=yes types=v100", {"partition": "gpu"}, groups())
    assert result.options == ["--requeue", "--open-mode=append"] and result.behind == []


@pytest.mark.parametrize("source", ["argv", "script"])
def test_the_users_comment_is_kept_and_ours_follows(source):
    result = added("gpus=1", held_in(source, "comment", "mine"))
    assert result.comment.startswith("--comment=mine [hadar1 ")


def test_a_comment_that_does_not_fit_leaves_the_job_unmanaged():
    found = add(Declaration(), {"comment": "x" * COMMENT_LIMIT}, None, lambda: None)
    assert isinstance(found, str) and "exceed" in found
    room = COMMENT_LIMIT - len(" [hadar1]")
    fits = add(Declaration(), {"comment": "x" * room}, None, lambda: None)
    assert not isinstance(fits, str)
    assert len(fits.comment) == COMMENT_LIMIT + len("--comment=")


def test_bytes_that_are_no_utf8_leave_the_job_unmanaged():
    found = add(Declaration(), {"constraint": "\udce9"}, None, lambda: None)
    assert isinstance(found, str) and "UTF-8" in found


def test_what_the_user_asked_of_sbatch_is_recorded():
    record = decode(added("gpus=1", {"constraint": "ib&(x|y)", "partition": "a,b"}).comment)
    assert record.constraint == "ib&(x|y)"
    assert record.partitions == ("a", "b")


def test_a_job_left_alone_gets_its_comment_only():
    result = added("off=yes gpus=1 types=v100 checkpoint=yes", {"partition": "a"})
    assert result.options == []
    assert decode(result.comment).off


def test_other_gres_are_kept_beside_the_gpus():
    """Behind the user's options, the last --gres of which counts."""
    result = added("gpus=2", {"gres": "lustre:1", "partition": "a"})
    assert result.behind == ["--gres=lustre:1,gpu:2"] and not result.options
    assert result.has_gpus and decode(result.comment).partitions == ("a",)


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        ("1", "1-4", "--gres=gpu:1"),
        ("1-1", "2", "--gres=gpu:2"),
        ("2", "1-4", "--gpus=2"),
        ("2-4", "1-4", "--gpus=2"),
        ("2", "3-4", "--gpus=3"),
        ("1-2", "1", "--gpus=1"),
    ],
)
def test_the_least_count_is_asked_for_and_over_nodes_it_is_the_jobs(nodes, gpus, expected):
    assert added(f"gpus={gpus}", {"nodes": nodes}).options[0] == expected


@pytest.mark.parametrize(
    ("words", "constraint"),
    [
        ("types=v100 gpus=1", "v100"),
        ("types=a100,k80 gpus=1", "ampere|k80"),
        ("types=any gpus=1", None),
        ("gpus=1", None),
        ("types=any gpus=1 gpu_mem=16G", "v100|ampere"),
        ("gpus=1 gpu_mem=20G", "ampere"),
        ("types=any gpus=1 gpu_mem=1G", None),
        ("types=v100,h100 gpus=1", "v100"),
        ("types=v100,k80 gpus=1 gpu_mem=14G", "v100"),
    ],
)
def test_types_become_a_constraint(words, constraint):
    found = [word for word in added(words).options if word.startswith("--constraint")]
    assert found == ([f"--constraint={constraint}"] if constraint else [])


@pytest.mark.parametrize("words", ["types=h100 gpus=1", "types=k80 gpu_mem=24G gpus=1"])
def test_what_the_site_cannot_give_is_refused(words):
    with pytest.raises(UsageError):
        added(words)


def test_memory_that_the_site_does_not_tell_is_not_enforced():
    silent = site(types={"v100": {"feature": "v", "memory_gb": 0}})
    result = added("gpus=1 gpu_mem=24G types=v100", where=silent)
    assert "--constraint=v" in result.options
    assert any("gpu_mem" in note for note in result.notes)


@pytest.mark.parametrize(
    "held",
    [
        {"gres": "gpu:v100:2"},
        {"gpus": "v100:2"},
        {"gres": "gres:gpu:v100"},
        {"gpus-per-task": "v100:1"},
    ],
)
def test_a_typed_request_stays_what_it_says(held):
    result = added("types=any gpus=1-4", held)
    assert decode(result.comment).types == ("v100",)
    assert not [word for word in result.options if word.startswith(("--gres", "--con"))]
    with pytest.raises(UsageError, match="v100"):
        added("types=k80", held)


@pytest.mark.parametrize(
    ("declared", "nodes", "option"),
    [
        ("gpus=8,4", "", "--gres=gpu:4"),
        ("gpus=4,8", "2", "--gpus=4"),
        ("gpus=4,16", "6", "--gpus=16"),
        ("gpus=4-16", "6", "--gpus=6"),
        ("gpus=4,8", "16", "--gpus=4"),
    ],
)
def test_the_least_count_that_will_do_is_asked_for(declared, nodes, option):
    result = added(f"types=any {declared}", {"nodes": nodes} if nodes else {})
    assert option in result.options


@pytest.mark.parametrize(
    ("held", "asks"),
    [
        ({}, False),
        ({"gres": "lustre:2"}, False),
        ({"gres": "gpus:2"}, False),
        ({"gres": "gpu"}, True),
        ({"gres": "lustre:1,gpu:2"}, True),
        ({"gres": "gres/gpu:2"}, True),
        ({"gpus": "2"}, True),
        ({"tres-per-task": "cpu=2"}, False),
        ({"tres-per-task": "cpu=2,gres/gpu:a100=1"}, True),
    ],
)
def test_gpu_requests_are_recognised(held, asks):
    assert (gpu_request(held) is not None) is asks


@pytest.mark.parametrize(
    ("export", "warns"), [(None, False), ("ALL", False), ("ALL,A=1", False), ("NONE", True),
                          ("A,B", True)]
)  # fmt: skip
def test_an_export_that_cuts_the_job_off_is_reported(export, warns):
    held = {} if export is None else {"export": export}
    notes = added("gpus=1 checkpoint=yes", held).notes
    assert any("HADAR_EXCHANGE" in note for note in notes) is warns


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("checkpoint=yes", "cannot answer a request to save"),
        ("checkpoint=watch:/a/b", "no controller sees its checkpoints"),
        # Slurm brings the signal, and a restart asks for nothing.
        ("checkpoint=signal signal=B:USR1", ""),
        ("checkpoint=restart lose=60", ""),
    ],
)
def test_only_what_reads_the_environment_is_said_to_miss_it(declared, says):
    notes = [n for n in added(f"gpus=1 {declared}", {"export": "A"}).notes if "--export" in n]
    assert [says in note for note in notes] == ([True] if says else [])


def listed(words, held=None, where=None, **options):
    """The partitions of the list that is added; None where the partition stays as typed."""
    result = added(words, {"partition": "gpu", **(held or {})}, where or groups(), **options)
    if not result.behind:
        return None
    (word,) = result.behind
    assert not [word for word in result.options if word.startswith("--constraint")]
    assert decode(result.comment).partitions == ("gpu",)
    return word.removeprefix("--partition=").split(",")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpus=1", ["ampere", "v100", "k80"]),
        # By data sheets the K80 is slower, which nobody knows of a model that no table has.
        ("gpus=1 types=any", ["ampere", "v100", "k80"]),
        ("gpus=1 types=any model=nobody_knows_it", ["ampere", "v100", "k80"]),
        ("gpus=1 types=any model=ResNet-18", ["v100", "ampere"]),
        ("gpus=1 types=any model=Recommendation", ["k80", "v100"]),
        ("gpus=1 types=v100,k80 model=resnet18", ["v100", "k80"]),
        ("gpus=1 types=k80,v100,a100 model=resnet18", ["v100", "ampere", "k80"]),
        ("gpus=1 types=k80 model=resnet18", ["k80"]),
        ("gpus=1 types=any gpu_mem=16G", ["ampere", "v100"]),
        ("gpus=1 types=any gpu_mem=20G model=recommendation", ["ampere"]),
        ("gpus=1 types=v100,k80 gpu_mem=14G", ["v100"]),
        ("gpus=1 types=v100,h100", ["v100"]),
    ],
)
def test_a_group_becomes_a_list_of_its_members_the_fastest_first(words, expected):
    assert listed(words) == expected


def test_a_type_is_slow_beside_those_that_the_job_may_use():
    # Beside an A100 that it may not use a K80 would be eight times slower, beside a V100 it is two.
    both = {"v100": "v100", "k80": "k80"}
    words = "gpus=1 types=any model=own"
    where = groups(groups={"gpu": both}, speeds={"own": SPEEDS[""]}, known={"own": list(TYPES)})
    assert listed(words, where=where) == ["v100", "k80"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "types=any model=ResNet-18",
            "k80 is left out: by the table it is 4 times slower; types=v100,a100,k80 accepts it",
        ),
        (
            "types=any model=two",
            "v100 and k80 are left out: by the table they are 5 and 10 times slower; "
            "types=v100,a100,k80 accepts them",
        ),
        ("types=k80,v100,a100 model=resnet18", ""),
        ("types=any model=nobody_knows_it", ""),
        ("types=any gpu_mem=14G model=resnet18", ""),
    ],
)
def test_a_type_that_any_leaves_out_for_its_speed_is_named_with_how_to_accept_it(words, says):
    speeds = SPEEDS | {"two": {"v100": 0.2, "a100": 1.0, "k80": 0.1}}
    where = groups(speeds=speeds, known={model: list(TYPES) for model in speeds if model})
    words = f"gpus=1 {words}"
    found = added(words, {"partition": "gpu"}, where)
    assert found.omitted == says
    if says:
        # What it proposes does it.
        typed = "types=" + says.partition("types=")[2].split()[0]
        named = added(words.replace("types=any", typed), {"partition": "gpu"}, where)
        assert named.omitted == "" and named.behind[0].count(",") == 2


@pytest.mark.parametrize(
    ("words", "shared", "expected"),
    [
        ("checkpoint=yes", {"k80"}, ["v100", "ampere", "k80"]),
        ("checkpoint=yes", {"v100"}, ["v100", "ampere"]),
        ("checkpoint=yes pin=yes", {"k80"}, ["v100", "ampere"]),
        ("", {"k80"}, ["v100", "ampere"]),
    ],
)
def test_a_job_that_may_move_leaves_no_slow_type_to_others_alone(words, shared, expected):
    words = f"gpus=1 types=any model=resnet18 {words}"
    assert listed(words, shared=frozenset(shared)) == expected


@pytest.mark.parametrize(
    ("held", "leaves_out"),
    [
        ({}, True),
        ({"gres": "gpu:2", "cpus-per-task": "8", "time": "5", "output": "/dev/null"}, True),
        ({"gres": "gpu:1", "cpus-per-task": "12"}, False),
        ({"gres": "gpu:2", "mem": "60G", "cpus-per-task": "16"}, True),
        ({"gres": "gpu:4"}, False),
        ({"gpus-per-node": "4", "nodes": "1"}, False),
        ({"gres": "gpu:1", "mem": "128G"}, False),
        ({"gres": "gpu:1", "mem": "0.5T"}, False),
        ({"gres": "gpu:1", "mem-per-cpu": "8G", "ntasks": "9", "nodes": "1"}, False),
        ({"gres": "gpu:2", "mem-per-gpu": "40G"}, False),
        ({"gres": "gpu:1", "cpus-per-task": "24"}, False),
        ({"gres": "gpu:2", "cpus-per-gpu": "12"}, False),
        ({"gres": "gpu:1", "nodes": "1", "ntasks-per-node": "20"}, False),
        ({"gres": "gpu:1,fpga:1"}, False),
        ({"gres": "gpu:1", "constraint": "v100|k80|ampere"}, True),
        ({"gres": "gpu:1", "constraint": "large"}, False),
        *(
            ({"gres": "gpu:1", name: value}, False)
            for name, value in (
                ("exclude", "v1"),
                ("tmp", "10G"),
                ("mincpus", "20"),
                ("extra-node-info", "2"),
                ("threads-per-core", "1"),
                ("core-spec", "2"),
                ("an-option-of-a-later-release", "1"),
            )
        ),
    ],
)
def test_a_slow_type_is_left_out_only_where_the_job_surely_fits_another(held, leaves_out):
    """Slurm refuses a list in none of which the job fits, and holds some with one that cannot have
    them: the partition stays as typed then."""
    words = "gpus=1 types=any model=resnet18"
    assert listed(words, held) == (["v100", "ampere"] if leaves_out else None)


def test_where_nothing_is_known_of_the_nodes_no_type_is_left_out():
    words = "gpus=1 types=any model=resnet18"
    assert listed(words, nodes={}) == ["v100", "ampere", "k80"]
    nodes: dict[str, list]
    for nodes in ({"k80": NODES["k80"]}, {"v100": [], "ampere": [], "k80": []}):
        assert listed(words, nodes=nodes) is None
    assert listed("gpus=4 types=any model=resnet18") is None


def test_a_guess_keeps_no_type_out_of_the_list():
    words = "gpus=1 types=any model=recommendation"
    for known, expected in (
        (["v100", "a100", "k80"], ["k80", "v100"]),
        (["v100", "a100"], ["k80", "v100", "ampere"]),
        (["k80"], ["k80", "v100", "ampere"]),
        ([], ["k80", "v100", "ampere"]),
    ):
        assert listed(words, where=groups(known={"recommendation": known})) == expected


@pytest.mark.parametrize(
    ("words", "held", "expected"),
    [
        ("batch=16", {}, ["ampere", "v100", "k80"]),
        # Of a range the least.
        ("batch=16:256", {}, ["ampere", "v100", "k80"]),
        # With no other batch, near as it may be: what holds between two is the controller's matter.
        ("batch=20", {}, ["v100", "ampere"]),
        ("batch=250", {}, ["v100", "ampere"]),
        ("batch=32", {"gres": "gpu:2"}, ["ampere", "v100", "k80"]),
        ("batch=33", {"gres": "gpu:2"}, ["v100", "ampere"]),
        ("batch=256", {"gres": "gpu:1"}, ["v100", "ampere"]),
        # A type that was not measured with the batch is no slow one.
        ("batch=512", {}, ["v100", "ampere", "k80"]),
        ("", {}, ["v100", "ampere"]),
    ],
)
def test_a_type_is_slow_with_the_batch_that_the_job_declares(words, held, expected):
    batches = {
        "resnet18": {
            "16": {"v100": 0.9, "a100": 1.0, "k80": 0.5},
            "256": {"v100": 1.0, "a100": 0.9, "k80": 0.2},
            "512": {"v100": 1.0, "a100": 0.9},
        }
    }
    words = f"{'' if held else 'gpus=1 '}types=any model=resnet18 {words}"
    assert listed(words, held, where=groups(batches=batches)) == expected


def test_members_of_equal_or_unknown_speed_keep_the_order_of_the_site():
    assert listed("gpus=1", where=groups(speeds={})) == ["v100", "ampere", "k80"]
    fast = {"": dict.fromkeys(TYPES, 1.0)}
    assert listed("gpus=1", where=groups(speeds=fast)) == ["v100", "ampere", "k80"]


@pytest.mark.parametrize("source", ["argv", "environment", "script"])
def test_the_partition_may_be_named_anywhere(source):
    held = held_in(source, "partition", "gpu")
    assert added("gpus=1", held, groups()).behind == ["--partition=ampere,v100,k80"]


@pytest.mark.parametrize("partition", [None, "", "v100", "gpu,v100", "gpu,gpu", "other"])
def test_any_other_partition_stays_as_typed(partition):
    result = added(EVERYTHING, {"partition": partition} if partition else {}, groups())
    assert result.behind == [] and "--constraint=v100|ampere" in result.options


@pytest.mark.parametrize("held", [{}, {"time": "10"}])
def test_slurms_default_partition_counts_as_named(held):
    where = groups(default_partition="gpu")
    result = added("gpus=1", held, where, default="gpu")
    assert result.behind == ["--partition=ampere,v100,k80"]
    assert decode(result.comment).partitions == ("gpu",)


@pytest.mark.parametrize(
    ("held", "known"),
    [
        ({}, {"default": "v100"}),
        ({}, {"default": ""}),
        ({}, {"default": "gpu", "takes_lists": False}),
        ({"partition": ""}, {"default": "gpu"}),
        ({"partition": "other"}, {"default": "gpu"}),
        ({"nodes": "2"}, {"default": "gpu"}),
    ],
)
def test_where_the_default_is_not_sure_or_not_used_the_job_is_as_typed(held, known):
    result = added("gpus=1", held, groups(default_partition="gpu"), **known)
    assert result.behind == []
    assert decode(result.comment).partitions == tuple(filter(None, [held.get("partition")]))


def as_typed(words=EVERYTHING, held=None, where=None, **options):
    """The partition stays, and the declared types are enforced by features."""
    result = added(words, {"partition": "gpu", **(held or {})}, where or groups(), **options)
    return result.behind == [] and "--constraint=v100|ampere" in result.options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("nodelist", "v1"), ("nodefile", "f"), ("reservation", "r"), ("exclusive", None),
        ("test-only", None),
    ],
)  # fmt: skip
def test_own_nodes_and_a_question_keep_the_partition(option, value):
    assert as_typed(held={option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("begin", "now+5"), ("hold", None), ("array", "1-3"), ("dependency", "afterok:1"),
        ("deadline", "tomorrow"), ("nodes", "1-1"),
        ("ntasks", "1"), ("gres", "gpu:2"), ("gpus", "1"),
    ],
)  # fmt: skip
def test_other_options_of_the_user_do_not(option, value):
    assert listed(EVERYTHING, {option: value}) == ["ampere", "v100"]


def test_an_array_that_may_use_all_types_keeps_the_partition():
    """Slurm's backfill starts its tasks in one partition of a list in each pass."""
    kinds = ",".join(dict.fromkeys(groups().groups["gpu"].values()))
    for types in ("any", kinds):
        held = {"partition": "gpu", "array": "1-3"}
        result = added(f"types={types} gpus=1", held, groups())
        assert result.behind == [] and not any("constraint" in one for one in result.options)
        assert not result.listed
        del held["array"]
        assert added(f"types={types} gpus=1", held, groups()).listed


@pytest.mark.parametrize("held", [{"nodes": "2"}, {"nodes": "1-2"}, {"ntasks": "2"}, {"gpus": "2"}])
def test_a_job_that_may_need_several_nodes_keeps_the_partition(held):
    # No member alone may have as many: Slurm would refuse the list.
    assert as_typed(held=held)


def test_copies_of_any_types_keep_the_partition():
    words = "types=v100,a100 gpus=1 fork=1-3"
    assert as_typed(words) and listed(words, where=groups(copies=True)) is None


def test_a_job_of_which_the_policy_makes_no_copies_gets_a_list():
    where = groups(copies=False)
    assert listed("types=v100,a100 gpus=1 fork=1-3", where=where) == ["ampere", "v100"]
    assert listed("types=v100,a100 gpus=1 fork=1-3", {"nodes": "1-2"}, where) is None


@pytest.mark.parametrize(
    "where", [groups(mode="observe"), groups(groups={}), groups(groups={"other": {"v100": "v100"}})]
)
def test_without_a_site_that_acts_and_has_the_group_it_keeps_the_partition(where):
    assert as_typed(where=where)


def test_without_a_controller_that_takes_lists_it_keeps_the_partition():
    assert as_typed(takes_lists=False)
    assert added("gpus=1", {"partition": "gpu"}, groups(), takes_lists=False).notes == []


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        # Nothing is scarce: the fastest first.
        ({"v100": 0.1, "a100": 0.1, "k80": 0.1}, ["ampere", "v100", "k80"]),
        # Somebody has more use for the A100s that are left.
        ({"v100": 0.2, "a100": 0.9, "k80": 0.1}, ["v100", "k80", "ampere"]),
        ({"v100": 0.9, "a100": 1.0, "k80": 0.05}, ["k80", "ampere", "v100"]),
        # A price of some types only is no comparison.
        ({"a100": 0.9}, ["ampere", "v100", "k80"]),
    ],
)
def test_prices_order_the_list(prices, expected):
    held = {"partition": "gpu"}
    found = added("types=any gpus=1 model=even", held, groups(speeds=EVEN), prices=prices).behind
    assert found == ["--partition=" + ",".join(expected)]


def test_a_type_whose_nodes_are_asleep_comes_last_whatever_its_price():
    for prices in ({}, {"v100": 0.1, "a100": 0.1, "k80": 0.1}):
        found = added(
            "types=any gpus=1 model=even", {"partition": "gpu"}, groups(speeds=EVEN),
            prices=prices, asleep=frozenset({"ampere"}),
        )  # fmt: skip
        assert found.behind == ["--partition=v100,k80,ampere"]


def test_on_a_stale_site_it_keeps_the_partition():
    stale = groups()
    stale.stale = True
    assert as_typed(where=stale)


def test_nobody_looks_for_a_controller_where_there_is_nothing_to_list():
    def asked():
        raise AssertionError

    typed = {"partition": "v100", "gres": "gpu:v100:1"}
    for held in ({}, {"partition": "v100"}, typed):
        add(Declaration(), {"gres": "gpu:1", **held}, groups(), asked)


def test_a_typed_request_gets_the_partition_of_its_type():
    held = {"gres": "gpu:a100:1", "partition": "gpu"}
    result = added("types=any", held, groups())
    assert result.behind == ["--partition=ampere"] and result.options == []
    assert decode(result.comment).partitions == ("gpu",)


@pytest.mark.parametrize(
    "held",
    [
        {"gres": "gpu:v100:1,gpu:a100:1"}, {"gres": "gpu:h100:1"}, {"gpus": "v100:2"},
        {"gres": "gpu:v100:1", "nodes": "2"}, {"gres": "gpu:v100:1", "reservation": "r"},
        {"gres": "gpu:v100:1", "constraint": "a"},
    ],
)  # fmt: skip
def test_a_typed_request_that_one_partition_may_not_serve_keeps_it(held):
    result = added("gpus=1", {"partition": "gpu", **held}, groups())
    assert result.behind == [] and result.options == []


def test_a_typed_request_keeps_the_partition_without_a_controller_that_takes_lists():
    held = {"gres": "gpu:a100:1", "partition": "gpu"}
    assert added("types=any", held, groups(), takes_lists=False).behind == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("gpus=1 types=h100", "partition gpu has v100, a100"),
        ("gpus=1 types=k80", "partition gpu has v100, a100"),
        (
            "gpus=1 gpu_mem=90G",
            "gpu_mem=90G is declared, and the largest GPU that may be used has 40G",
        ),
    ],
)
def test_a_group_without_such_gpus_is_an_error(words, says):
    where = groups(groups={"gpu": {"v100": "v100", "ampere": "a100"}})
    with pytest.raises(UsageError, match=says):
        listed(words, where=where)


def test_a_declared_type_that_the_group_lacks_is_reported():
    where = groups(groups={"gpu": {"v100": "v100", "ampere": "a100"}})
    notes = added("gpus=1 types=v100,k80", {"partition": "gpu"}, where).notes
    assert notes == ["partition gpu has no k80"]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("v100", ["v100"]),
        ("ib", ["v100", "ampere", "k80"]),
        ("ib&ampere", ["ampere"]),
        ("ampere|k80", ["ampere", "k80"]),
        ("ib|k80", ["v100", "ampere", "k80"]),
        ("[v100|k80]", ["v100", "ampere", "k80"]),
        ("v100*2", ["v100", "ampere", "k80"]),
        ("v100&ampere", None),
    ],
)
def test_members_that_the_users_own_constraint_rules_out_are_left_out(constraint, expected):
    known = {"constraint": constraint}
    # Which nodes have other features hbatch does not know.
    assert listed("gpus=1 types=any model=resnet18", known, nodes={}) == expected


@pytest.mark.parametrize("model", ["ResNet-18", "LM", "a_b.c/d@e+f", "Ünïcode"])
def test_a_model_is_looked_up_as_the_tables_do(model):
    where = groups(speeds={"": {}, model_key(model): {"v100": 0.5}})
    assert partition_list.speeds_of(model, where) == {"v100": 0.5}


@pytest.mark.parametrize(
    ("words", "own", "signal"),
    [
        ("checkpoint=signal", "B:USR1@60", "B:USR1@60"),
        ("checkpoint=signal", "10", "USR1"),
        ("checkpoint=signal", "R:USR1", "USR1"),
        ("checkpoint=signal", "KILL", ""),
        ("checkpoint=signal signal=HUP", "B:USR1@60", "HUP"),
        ("checkpoint=signal signal=USR2", "B:USR1@60", "USR2"),
        ("checkpoint=signal", "B:USR1@3600", "B:USR1@900"),
        ("checkpoint=yes", "B:USR1@60", ""),
    ],
)
def test_the_jobs_own_signal_is_what_it_saves_on(words, own, signal):
    result = added(f"gpus=1 {words}", {"signal": own})
    declared = decode(result.comment.removeprefix("--comment="))
    assert declared.signal == signal
    assert "--requeue" in result.options


@pytest.mark.parametrize(
    ("words", "held", "pinned"),
    [
        ("types=any checkpoint=yes", {"nodes": "2", "switches": "1@2:00"}, True),
        ("types=any checkpoint=yes", {"ntasks": "4", "switches": "1"}, True),
        ("types=any nodes=1-4 checkpoint=yes", {"nodes": "1", "switches": "1"}, True),
        ("types=any checkpoint=yes", {"nodes": "1", "switches": "1"}, False),
        ("types=any checkpoint=yes", {"nodes": "2"}, False),
        ("types=any", {"nodes": "2", "switches": "1"}, False),
    ],
)
def test_a_job_that_asks_for_switches_is_not_moved_to_more_of_them(words, held, pinned):
    result = added(words, {"gres": "gpu:1", **held})
    assert decode(result.comment.removeprefix("--comment=")).pin is pinned
