"""Limits on the size, the length and the number of jobs, as slurmctld shows them."""

from pathlib import Path

import pytest

from slurm_hadar.slurm.minutes import parse
from slurm_hadar.slurm.size_limits import SizeLimit, SizeLimits, limits, of_qos

DATA = Path(__file__).parents[2] / "data" / "slurm"
NEWS, LINE = ("news", 9), ("phys", "root")


def binding(release, user=NEWS, qos=("normal",)):
    text = (DATA / release / "assoc_mgr.txt").read_text()
    found = parse(text).sizes.binding(user, LINE, qos)
    return {str(one): (one.limit, one.used) for one in found}


def test_limits_as_slurm_24_11_shows_them():
    of_qos_ = {
        "MaxTRESPN=cpu of QOS normal": (8, 0),
        "MinTRESPJ=cpu of QOS normal": (1, 0),
        "MaxTRESPA=gres/gpu of QOS normal": (4, 1),
        "GrpJobs of account phys": (6, 1),
    }
    of_user = {"MaxTRESPU=gres/gpu of QOS normal": (3, 1), "MaxJobsPU of QOS normal": (7, 1)}
    # The association's own MaxJobs and MaxTRESPN count only without those of the QOS.
    assert binding("24.11.5") == {**of_qos_, **of_user}
    # Slurm shows those of each user only of users with jobs.
    own = {"MaxJobs of its user in account phys": (5, 0)}
    assert binding("24.11.5", user=("games", 5)) == {**of_qos_, **own}
    without = binding("24.11.5", qos=())
    assert without["MaxTRESPN=cpu of its user in account phys"] == (9, 0)


def test_what_has_no_limit_has_none():
    assert binding("22.05.8") == {}


def test_each_user_and_account_of_a_qos_as_slurm_22_05_shows_them():
    line = (
        "QOS=gold(2) GrpJobs=N(1) MaxWallPJ=90 MaxTRESPJ=cpu=4,mem=2000 Account Limits= "
        "phys={MaxJobsPA=N(1) MaxTRESPA=cpu=N(4),node=3(1)} astrophys={MaxTRESPA=node=1(1)} "
        "User Limits= 9={MaxJobsPU=2(1) MaxTRESPU=node=4(1)} 19={MaxJobsPU=1(1)}"
    )
    own, each = of_qos(line, "QOS gold")
    found = SizeLimits(qos={"gold": own}, of_each={"gold": each})
    shown = {str(one): one.limit for one in found.binding(NEWS, LINE, ["gold"])}
    assert shown == {
        "MaxWallPJ of QOS gold": 90,
        "MaxTRESPJ=cpu of QOS gold": 4,
        "MaxTRESPJ=mem of QOS gold": 2000,
        "MaxTRESPA=node of QOS gold": 3,
        "MaxJobsPU of QOS gold": 2,
        "MaxTRESPU=node of QOS gold": 4,
    }


@pytest.mark.parametrize(
    ("first", "second", "counts"), [("90", "", 90), ("", "60", 60), ("90", "60", 90), ("", "", 30)]
)
def test_the_first_that_is_set_counts(first, second, counts):
    found = SizeLimits(
        users={("phys", "news"): limits("MaxWallPJ=30", "its user")},
        qos={name: limits(f"MaxWallPJ={value}", name) for name, value in
             (("a", first), ("b", second))},
    )  # fmt: skip
    assert [one.limit for one in found.binding(NEWS, LINE, ["a", "b"])] == [counts]


def test_accounts_above_limit_what_all_jobs_have_together():
    found = SizeLimits(
        accounts={
            "phys": limits("GrpTRES=gres/gpu=8(5) MaxWallPJ=5", "account phys"),
            "root": limits("GrpTRES=gres/gpu=9(7)", "account root"),
        }
    )
    assert found.binding(NEWS, LINE, []) == (
        SizeLimit("account phys", "GrpTRES", "gres/gpu", 8, 5),
        SizeLimit("account root", "GrpTRES", "gres/gpu", 9, 7),
    )
