import time

import pytest
from hand_made import config, decide, hinted, job, observation
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.snapshot.constraints import DEEPEST, OpaqueConstraint, met, with_feature
from slurm_hadar.domain.declaration import Declaration

FEATURES = frozenset({"v100", "ib", "bigmem"})


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("", True),
        ("v100", True),
        ("k80", False),
        ("v100&ib", True),
        ("v100&k80", False),
        ("k80|ib", True),
        ("k80|p100", False),
        ("k80|ib&bigmem", True),
        ("(k80|ib)&bigmem", True),
        ("(k80|p100)&bigmem", False),
    ],
)
def test_simple_constraints(constraint, expected):
    assert met(constraint, FEATURES) is expected


@pytest.mark.parametrize("constraint", ["[a|b]", "a*2", "a&", "(a", "a)b", "a,b", "!a"])
def test_what_only_slurm_understands_is_said_so(constraint):
    with pytest.raises(OpaqueConstraint):
        met(constraint, FEATURES)


@given(st.sampled_from(["", "ib", "ib|k80", "ib&bigmem", "(ib|k80)&bigmem"]))
def test_a_type_is_laid_over_the_users_own_constraint(constraint):
    laid = with_feature(constraint, "v100")
    assert met(laid, FEATURES) == met(constraint, FEATURES)
    assert not met(laid, FEATURES - {"v100"})


def slow_but_plain(text):
    """A second opinion: the same by Python's own grammar."""
    words = text.replace("&", " and ").replace("|", " or ").replace("!", " ")
    return eval(words, {}, {name: name in FEATURES for name in ("v100", "ib", "k80", "p100")})


TREES = st.recursive(
    st.sampled_from(["v100", "ib", "k80", "p100"]),
    lambda parts: (
        st.builds("({}{}{})".format, parts, st.sampled_from("&|"), parts)
        | st.builds("{}{}{}".format, parts, st.sampled_from("&|"), parts)
    ),
    max_leaves=12,
)


@given(TREES)
def test_and_binds_stronger_whatever_the_parentheses(text):
    assert met(text, FEATURES) == slow_but_plain(text)


def test_parentheses_without_end_stop_nobody():
    deep = "(" * DEEPEST + "v100" + ")" * DEEPEST
    assert met(deep, FEATURES) and not met(deep, frozenset())
    begin = time.process_time()
    long = "(" * 100_000 + "v100" + ")" * 100_000
    for broken in (f"({deep})", deep[:-1], deep + ")", long, long[:-1], "()" * 100_000):
        with pytest.raises(OpaqueConstraint):
            met(broken, FEATURES)
    assert met("v100&" * 100_000 + "ib", FEATURES)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("nest", ["(" * 900, "(" * 400 + "v100" + ")" * 400])
def test_one_jobs_nested_comment_holds_up_no_other(nest):
    site = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
    eve = Declaration(types=("any",), checkpoint="yes", constraint=nest)
    hers = job("1", user="eve", uid=1002, declaration=eve, features=nest)
    found = decide(observation([hers, job("2")]), site=site)
    assert set(hinted(found)) == {"2"}
