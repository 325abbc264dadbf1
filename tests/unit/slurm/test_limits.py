"""Whose CPUs and memory the accounting database limits."""

import pytest

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.limits import Limits, parse

QOS = "normal||||||||\ngold||||gres/gpu=2|||cpu=7|\nsilver||||||||mem=1G\n"


def table(*rows):
    """Associations as sacctmgr 22.05.8 prints them: account, user, parent, then six limits."""
    return "".join("|".join([*row, *[""] * (9 - len(row))]) + "\n" for row in rows)


FOUND = parse(
    table(
        ("root", "", ""),
        ("root", "root", ""),
        ("phys", "", "root"),
        ("lab", "", "phys", "", "", "cpu=30"),
        ("lab", "ann", ""),
        ("team", "", "lab"),
        ("phys", "bob", "", "cpu=3,gres/gpu=2"),
        ("phys", "eve", "", "gres/gpu=2,node=1,billing=9"),
        ("chem", "", "root", "", "", "", "gres/gpu=1,mem=5000M"),
    ),
    QOS,
)


@pytest.mark.parametrize(
    ("who", "bound"),
    [
        (("ann", "lab", "normal"), True),
        (("ann", "team", "normal"), True),
        (("ann", "phys", "normal"), False),
        (("bob", "phys", "normal"), True),
        (("bob", "root", "normal"), False),
        (("eve", "phys", "normal"), False),
        (("eve", "phys", "gold"), True),
        (("eve", "phys", "normal", "silver"), True),
        (("dan", "chem", "normal"), True),
        (("dan", "", ""), False),
        (("dan", "not known", ""), False),
    ],
)
def test_a_limit_on_cpus_or_memory_binds_wherever_it_stands(who, bound):
    assert FOUND.bind(*who) is bound


def test_accounts_in_a_circle_end():
    assert not Limits(parents={"a": "b", "b": "a"}).bind("ann", "a", "normal")


@pytest.mark.parametrize(("associations", "qos"), [("root|\n", ""), ("", "sacctmgr: error: x\n")])
def test_what_is_no_table_is_refused(associations, qos):
    with pytest.raises(SlurmError, match="not understood"):
        parse(associations, qos)
