import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.picture.constraints import OpaqueConstraint, met, with_feature

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
