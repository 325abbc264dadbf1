"""What is added to a managed job, and what stands."""

import pytest

from slurm_hadar.cli.additions import add, gpu_request
from slurm_hadar.cli.sbatch_words import read_argv, read_directives, read_header, settle
from slurm_hadar.cli.wrapper_site import WrapperSite
from slurm_hadar.domain.declaration import COMMENT_LIMIT, Declaration, decode, parse
from slurm_hadar.domain.errors import UsageError

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
            "lease_s": 300,
            "opt_in": [],
            "default_types": "",
            "sbatch": "sbatch",
            "types": TYPES,
            **changes,
        }
    )


def added(words, held=None, where=None, acts=True):
    declaration = parse(words.split(), "test") if words else Declaration()
    return add(declaration, held or {}, site() if where is None else where, lambda: acts)


def held_in(source, option, value):
    """The settings of a user who set one option in one of the three places."""
    word = f"--{option}" + (f"={value}" if value is not None else "")
    script = read_header(f"#!/bin/sh\n#SBATCH {word}\n".encode()).words
    env = {"SBATCH_" + option.upper().replace("-", "_"): value if value is not None else "yes"}
    return settle(
        read_directives(script if source == "script" else []),
        env if source == "environment" else {},
        read_argv([word, "job.sh"] if source == "argv" else ["job.sh"]),
    )


EVERYTHING = "types=v100,a100 gpus=2-4 checkpoint=yes"


def test_all_that_is_added_where_the_user_set_nothing():
    result = added(EVERYTHING)
    assert result.options == [
        "--gres=gpu:2",
        "--constraint=v100|ampere",
        "--requeue",
        "--open-mode=append",
        "--begin=now+300",
    ]
    assert result.leased
    record = decode(result.comment)
    assert record.lease and record.gpus == (2, 4) and record.types == ("v100", "a100")


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
        ("exclusive", None, "--begin"),
        ("reservation", "r", "--begin"),
    ],
)
def test_what_the_user_set_anywhere_stands(source, option, value, gone):
    result = added(EVERYTHING, held_in(source, option, value))
    assert not [word for word in result.options if word.startswith(gone)]


@pytest.mark.parametrize("source", ["argv", "script"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("begin", "now+5"), ("hold", None), ("nodelist", "v1"), ("nodefile", "f"), ("deadline", "x")],
)
def test_no_lease_over_the_users_own_start_or_nodes(source, option, value):
    result = added(EVERYTHING, held_in(source, option, value))
    assert not result.leased
    assert not decode(result.comment).lease
    assert not [word for word in result.options if word.startswith("--begin")]


def test_no_lease_for_a_question():
    assert not added(EVERYTHING, {"test-only": None}).leased


def test_a_dependency_does_not_keep_the_lease_away():
    assert added(EVERYTHING, {"dependency": "afterok:1"}).leased


@pytest.mark.parametrize("where", [site(mode="observe"), None])
def test_nothing_waits_without_a_site_that_acts(where):
    declaration = parse(EVERYTHING.split(), "test")
    result = add(declaration, {}, where, lambda: True)
    assert not result.leased
    assert decode(result.comment).gpus == (2, 4)


def test_nothing_waits_where_no_controller_is_seen():
    result = added(EVERYTHING, acts=False)
    assert not result.leased
    assert any("no controller is acting" in note for note in result.notes)


def test_nothing_waits_on_a_stale_site():
    stale = site()
    stale.stale = True
    assert not added(EVERYTHING, where=stale).leased


def test_nothing_waits_that_asks_for_no_gpu():
    result = added("model=m checkpoint=yes")
    assert result.options == ["--requeue", "--open-mode=append"]


@pytest.mark.parametrize("source", ["argv", "script"])
def test_the_users_comment_is_kept_and_ours_follows(source):
    result = added("gpus=1", held_in(source, "comment", "mine"))
    assert result.comment.startswith("--comment=mine [hadar1 ")


def test_a_comment_that_does_not_fit_leaves_the_job_unmanaged():
    assert "1024" in add(Declaration(), {"comment": "x" * COMMENT_LIMIT}, None, lambda: False)
    room = COMMENT_LIMIT - len(" [hadar1]")
    fits = add(Declaration(), {"comment": "x" * room}, None, lambda: False)
    assert len(fits.comment) == COMMENT_LIMIT + len("--comment=")


def test_bytes_that_are_no_utf8_leave_the_job_unmanaged():
    assert "UTF-8" in add(Declaration(), {"constraint": "\udce9"}, None, lambda: False)


def test_what_the_user_asked_of_sbatch_is_recorded():
    record = decode(added("gpus=1", {"constraint": "ib&(x|y)", "partition": "a,b"}).comment)
    assert record.constraint == "ib&(x|y)"
    assert record.partitions == ("a", "b")


def test_a_job_left_alone_gets_its_comment_only():
    result = added("off=yes gpus=1 types=v100 checkpoint=yes", {"partition": "a"})
    assert result.options == []
    assert decode(result.comment).off


def test_other_gres_are_kept_beside_the_gpus():
    assert "--gres=lustre:1,gpu:2" in added("gpus=2", {"gres": "lustre:1"}).options


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
def test_an_export_that_cuts_the_job_off_is_told(export, warns):
    held = {} if export is None else {"export": export}
    notes = added("gpus=1 checkpoint=yes", held).notes
    assert any("HADAR_EXCHANGE" in note for note in notes) is warns
