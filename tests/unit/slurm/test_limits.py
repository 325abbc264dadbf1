"""Whose CPUs and memory the accounting database limits."""

import pytest

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.limits import AccountLimits, parse

QOS = (
    "normal|1.000000|||||||||||\n"
    "gold|0.500000||||||gres/gpu=2||||cpu=7|\n"
    "silver||||||||||||mem=1G\n"
)


def table(*rows):
    """Associations as sacctmgr 22.05.8 prints them: account, user, parent, then three limits on
    minutes and four others."""
    return "".join("|".join([*row, *[""] * (10 - len(row))]) + "\n" for row in rows)


FOUND = parse(
    table(
        ("root", "", ""),
        ("root", "root", ""),
        ("phys", "", "root"),
        ("lab", "", "phys", "", "", "", "cpu=30"),
        ("lab", "ann", ""),
        ("team", "", "lab"),
        ("phys", "bob", "", "", "", "", "cpu=3,gres/gpu=2"),
        ("phys", "eve", "", "", "", "", "gres/gpu=2,node=1,billing=9"),
        ("chem", "", "root", "", "", "", "", "gres/gpu=1,mem=5000M"),
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


@pytest.mark.parametrize(
    ("associations", "qos", "minutes"),
    [
        (table(("phys", "", "root")), QOS, False),
        (table(("phys", "", "root", "billing=9")), QOS, True),
        (table(("phys", "ann", "", "", "cpu=9")), QOS, True),
        (table(("phys", "ann", "", "", "", "60")), QOS, True),
        ("", "gold|1.000000|||||60||||||\n", True),
        ("", "gold|1.000000||cpu=5|||||||||\n", True),
        ("", "gold|1.000000|||||||||cpu=5||\n", False),
    ],
)
def test_any_limit_on_minutes_is_noticed(associations, qos, minutes):
    assert parse(associations, qos).minutes is minutes


def test_how_much_a_minute_counts():
    assert FOUND.factors == {"normal": 1.0, "gold": 0.5, "silver": 1.0}
    found = parse("", "gold|1.000000|cpu=5|mem=2G,cpu=7|||||||||\n")
    assert found.per_user == {"gold": {"cpu": 5}}
    assert found.per_account == {"gold": {"mem": 2048, "cpu": 7}}
    with pytest.raises(SlurmError, match="UsageFactor"):
        parse("", "gold|x|||||||||||\n")


def test_accounts_in_a_circle_end():
    assert not AccountLimits(parents={"a": "b", "b": "a"}).bind("ann", "a", "normal")


@pytest.mark.parametrize(("associations", "qos"), [("root|\n", ""), ("", "sacctmgr: error: x\n")])
def test_what_is_no_table_is_refused(associations, qos):
    with pytest.raises(SlurmError, match="not understood"):
        parse(associations, qos)
