"""Limits on minutes and what is used of them, as slurmctld shows them."""

import contextlib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import minutes
from slurm_hadar.slurm.minutes import MinuteLimit, Minutes, amounts, parse, parse_use

TEXT = (Path(__file__).parents[2] / "data" / "slurm" / "22.05.8" / "assoc_mgr.txt").read_text()
HEAD = "Current Association Manager state\n"
LATER = (
    HEAD
    + "Association Records\n"
    + "ClusterName=c Account=phys UserName= Partition= Priority=0 ID=5 "
    + "ParentAccount=root(1) Lineage=/phys/ DefAssoc=No GrpJobs=N(1) GrpJobsAccrue=N(0) "
    + "GrpSubmitJobs=N(1) GrpWall=N(4.23) GrpTRES=cpu=N(4) "
    + "GrpTRESMins=cpu=N(8),gres/gpu:v100=100(4) GrpTRESRunMins=cpu=N(12),gres/gpu:v100=N(3) "
    + "MaxJobs= MinPrioThresh= Comment=GrpTRESMins=cpu=1(1) is\nClusterName-like text\n"
)
"""A record as 24.11's source prints it; that release has no slurmdbd here."""


def test_limits_as_slurm_22_05_shows_them():
    found = parse(TEXT)
    assert {str(one): (one.limit, one.taken) for one in found.binding("news", "phys", "gold")} == {
        "GrpTRESMins=billing of its user in account phys": (500, 8 + 12),
        "GrpTRESMins=gres/gpu of account phys": (100, 4 + 3),
        "GrpTRESRunMins=cpu of account phys": (12, 12),
        "GrpWall of account phys": (30, 4.23),
        "GrpTRESMins=billing of QOS gold": (7, 0),
    }
    assert found.parents == {"backup": "root", "chem": "root", "phys": "root"}
    assert not found.binding("irc", "chem", "normal")
    assert found.known("news", "phys", "gold", "normal", "")


@pytest.mark.parametrize(
    "who", [("ann", "phys", "gold"), ("news", "chem", "gold"), ("news", "phys", "silver")]
)
def test_what_is_not_shown_is_not_known(who):
    assert not parse(TEXT).known(*who)


def test_limits_as_slurm_24_11_shows_them():
    (one,) = parse(LATER).accounts["phys"]
    assert one == MinuteLimit("account phys", "GrpTRESMins", "gres/gpu:v100", 100, 7)


def test_accounts_above_bind_too_and_in_a_circle_they_end():
    limit = MinuteLimit("account b", "GrpWall", "wall", 1, 0)
    found = Minutes({"a": (), "b": (limit,)}, {("a", "ann"): ()}, {}, {"a": "b", "b": "a"})
    assert found.binding("ann", "a") == [limit] and found.known("ann", "a")
    assert not Minutes({"a": ()}, {("a", "ann"): ()}, {}, {"a": "b"}).known("ann", "a")


def test_of_a_user_with_an_association_per_partition_all_count():
    (line,) = [line for line in TEXT.splitlines() if "UserName=news(9)" in line]
    other = line.replace("Partition= ", "Partition=v100 ").replace("billing=500", "billing=40")
    found = parse(f"{HEAD}{line}\n{other}\n").users["phys", "news"]
    assert [one.limit for one in found] == [500, 40]


@pytest.mark.parametrize(
    "text",
    ["", TEXT[:-1], TEXT[1:], TEXT.replace("GrpTRESRunMins=", "Grp="), TEXT.replace("12(12)", "x")],
)
def test_what_is_not_whole_is_refused(text):
    with pytest.raises(SlurmError):
        parse(text)


def test_what_jobs_have():
    assert parse_use("208006|cpu=4,mem=4G,node=1,gres/gpu:v100=1|\n7|N/A|\n") == {
        208006: {"cpu": 4, "mem": 4096, "node": 1, "gres/gpu:v100": 1},
        7: {},
    }
    assert amounts("mem=512M,billing=3") == {"mem": 512, "billing": 3}
    for wrong in ("7|cpu=x|\n", "7|cpu=1\n", "x|cpu=1|\n", "7\n"):
        with pytest.raises(SlurmError):
            parse_use(wrong)


PIECES = st.sampled_from(
    [
        *("ClusterName=c ", "Account=", "a ", "UserName=", "u(1) ", " Partition= ", "QOS=q(1) "),
        *(" GrpWall=N(0.0) ", " GrpTRESMins=", " GrpTRESRunMins=", "cpu=9(1)", ",", "N(3)", "\n"),
        *("ParentAccount=", "9" * 30, "7|", "cpu=1|", "\x00", "\u2028", "\u0663"),
    ]
)
ANY = st.text(max_size=200) | st.lists(PIECES, max_size=40).map("".join)


@given(ANY)
def test_any_text_is_read_or_refused(text):
    for said in (text, f"{HEAD}{text}\n"):
        try:
            found = parse(said)
        except SlurmError:
            continue
        for account in found.accounts:
            assert isinstance(found.binding("u", account, "q"), list)
    for read in (parse_use, amounts):
        with contextlib.suppress(SlurmError):
            read(text)


def test_a_long_answer_takes_no_second_copy(monkeypatch):
    line = next(line for line in TEXT.splitlines() if "UserName=games(5)" in line)
    text = HEAD + "".join(f"{line}\n".replace("games", f"user{n}") for n in range(10_000))
    tracemalloc.start()
    try:
        assert len(parse(text).users) == 10_000
        assert tracemalloc.get_traced_memory()[1] < len(text)
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(minutes, "MOST_CHARACTERS", 1000)
    with pytest.raises(SlurmError, match="the limit"):
        parse(text)
