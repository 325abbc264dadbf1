"""Whose CPUs and memory the accounting database limits."""

import pytest

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.limits import AccountLimits, parse

QOS = (
    "normal|1.000000||||||||||||DenyOnLimit,OverPartQOS|||cluster|||\n"
    "gold|0.500000||||||gres/gpu=2||||cpu=7|||1-00:30:00|normal,silver|requeue|||\n"
    "silver||||||||||||mem=1G||00:00:00||cancel|||\n"
)


def table(*rows):
    """Associations as sacctmgr 22.05.8 prints them: account, user, partition, parent, QOS, then
    three limits on minutes and four others. A user's rows may name the partition as user/partition,
    and the QOS as user:qos,qos. Rows here leave the QOS out."""
    lines = []
    for account, user, *rest in rows:
        user, _, qos = user.partition(":")
        name, _, partition = user.partition("/")
        row = [account, name, partition, *(rest[:1] or [""]), qos, *rest[1:]]
        lines.append("|".join([*row, *[""] * (14 - len(row))]) + "\n")
    return "".join(lines)


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


def test_whose_limits_count_before_those_of_a_partitions_qos():
    assert FOUND.over_partitions == {"normal"}


def test_which_qos_keep_their_jobs_from_preemption_for_a_time():
    assert FOUND.exempts == {"gold": True, "silver": False}


def test_which_qos_give_way_to_others_and_how():
    assert FOUND.giving_way == {"normal", "silver"}
    assert FOUND.preempt_modes == {"normal": "", "silver": "CANCEL", "gold": "REQUEUE"}
    # 22.05 and later: a job of a QOS may preempt others of the same.
    within = QOS.replace("silver", "normal").replace("|requeue|", "|cancel,within|")
    found = parse("", within)
    assert "gold" in found.giving_way and found.preempt_modes["gold"] == "CANCEL,WITHIN"


@pytest.mark.parametrize("cells", [("5", ""), ("", "3")])
def test_any_limit_on_the_jobs_that_gain_age_is_noticed(cells):
    none = [""] * 7
    assert parse(table(("phys", "ann", "", *none, *cells)), QOS).aging
    assert parse("", QOS.replace("cancel|", "cancel|4")).aging
    assert not FOUND.aging


def test_how_much_a_minute_counts():
    assert FOUND.factors == {"normal": 1.0, "gold": 0.5, "silver": 1.0}
    found = parse("", "gold|1.000000|cpu=5|mem=2G,cpu=7||||||||||||||||\n")
    assert found.per_user == {"gold": {"cpu": 5}}
    assert found.per_account == {"gold": {"mem": 2048, "cpu": 7}}
    with pytest.raises(SlurmError, match="UsageFactor"):
        parse("", "gold|x||||||||||||||||||\n")


def test_which_qos_a_user_may_use_in_an_account():
    rows = (("phys", "", "root"), ("phys", "ann:normal,gold"), ("phys", "ann/gpu:silver"))
    found = parse(table(*rows, ("chem", "ann:normal"), ("chem", "bob")), QOS).qos_of
    assert found == {
        ("phys", "ann"): {"normal", "gold", "silver"},
        ("chem", "ann"): {"normal"},
    }


def test_accounts_in_a_circle_end():
    assert not AccountLimits(parents={"a": "b", "b": "a"}).bind("ann", "a", "normal")


@pytest.mark.parametrize(("associations", "qos"), [("root|\n", ""), ("", "sacctmgr: error: x\n")])
def test_what_is_no_table_is_refused(associations, qos):
    with pytest.raises(SlurmError, match="not understood"):
        parse(associations, qos)


def test_an_association_for_a_partition_is_its_users_in_that_account():
    found = parse(
        table(
            ("phys", "", "root"),
            ("phys", "ann", ""),
            ("phys", "ann/gpu", ""),
            ("phys", "ann/debug", "", "", "", "", "cpu=3"),
            ("chem", "bob/gpu", ""),
        ),
        QOS,
    )
    assert found.partitions == {
        ("phys", "ann"): frozenset({"gpu", "debug"}),
        ("chem", "bob"): frozenset({"gpu"}),
    }
    assert found.bind("ann", "phys") and not found.bind("bob", "chem")
