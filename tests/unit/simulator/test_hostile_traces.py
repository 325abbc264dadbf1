"""Traces that nobody means to write: refused in one short sentence, or read as they were meant."""

from pathlib import Path

import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.traces.sacct import read as read_sacct
from slurm_hadar.simulator.workload import Workload

TYPES = ("v100", "k80")
HEAD = "job_id,arrival_s,gpus,samples,model,rate_v100,rate_k80"
SACCT = "JobID|JobName|Submit|Start|End|AllocTRES"


def opened(folder: Path, text: str | bytes) -> Workload:
    file = folder / "trace.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_trace(str(file), TYPES)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        # Nobody lives to see the end of these, and the simulation would not either.
        ("1,0,1,1e17,,1,1", "line 2: job 1 would train for 3.17e+09 years at its best rate"),
        ("1,0,1,9,,1e-300,0", "line 2: job 1 would train for "),
        # Seconds beyond this have no room for fractions.
        ("1,1e13,1,9,,1,1", "line 2: arrival_s is 1e13; it must be at most 1e+12"),
        ("1,0,1,1e308,,1,1", "line 2: samples is 1e308; it must be at most 1e+18"),
        ("1,0,1,9,,1e308,1e308", "line 2: rate_v100 is 1e308; it must be at most 1e+18"),
        ("1,0,100001,9,,1,1", "line 2: gpus is 100001; it must be at most 100000"),
        ("1,0,99999999999999999999,9,,1,1", "it must be at most 100000"),
        ("1,0,1_0,9,,1,1", "line 2: gpus is '1_0', which is no number"),
        ("1,0,\u0661,9,,1,1", "which is no number"),
        ("\x1b[31mred,0,1,9,,1,1", "line 2: job_id '?[31mred' holds a character that is not to be"),
        ("a\x00b,0,1,9,,1,1", "line 2: job_id 'a?b' holds a character"),
        (f"1,{'9' * 500},1,9,,1,1", "line 2: arrival_s is 9999"),
        (f"1,{'x' * 500},1,9,,1,1", "line 2: arrival_s is 'xxxx"),
        (f"{'a' * 200_000},0,1,9,,1,1", "line 2: "),
        (f"{'a' * 300},0,1,9,,1,1", "line 2: job_id 'aaaa"),
        (f"1,0,1,9,{'m' * 500},,", "line 2: model 'mmmm"),
        ('1,"0,1,9,,1,1', "line 2: 2 cells, the header has 7; is a quote not closed?"),
    ],
)
def test_refused_in_one_short_sentence(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, f"{HEAD}\n{row}\n")
    words = str(caught.value)
    assert says in words
    assert words.isprintable()
    assert len(words) < 300


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("job_id,arrival_s,gpus,samples,samples", "line 1: column samples stands there twice"),
        ("x" * 5000, "line 1: column job_id is missing; the header has xxx"),
        (",".join("abcdefgh" * 400), "line 1: column job_id is missing"),
        ("\x1b[2J,b", "line 1: column job_id is missing; the header has ?[2J, b"),
    ],
)
def test_headers(tmp_path: Path, header: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, f"{header}\n1,0,1,9,9\n")
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_marks_quotes_and_spaces(tmp_path: Path, newline: str, mark: str) -> None:
    lines = (f" {HEAD.replace(',', ' , ')}", '"a,b",0,1,"900",, 2 ,1', "", "c,5,1,9,,0,3")
    work = opened(tmp_path, mark + newline.join(lines) + newline)
    assert work.ids == ("a,b", "c")
    assert work.total.tolist() == [900.0, 9.0]
    assert work.lines == (2, 4)


def test_only_line_ends_end_a_line() -> None:
    """Job names hold what users like; Slurm prints it as it is."""
    times = "2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|gres/gpu=1"
    text = f"{SACCT}\n1|a\u2028b\x0bc|{times}\n2|d\x85|{times}\n"
    work = read_sacct(text, "past", TYPES, Rates())
    assert work.ids == ("1", "2")
    assert work.lines == (2, 3)


def test_a_past_without_a_job_to_simulate_says_why() -> None:
    """As on a site whose AccountingStorageTRES lacks gres/gpu."""
    times = "2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|cpu=4,node=1"
    with pytest.raises(UsageError) as caught:
        read_sacct(f"{SACCT}\n1|a|{times}\n2|b|{times}\n", "past", TYPES, Rates())
    words = "past has no job to simulate; line 2: job 1 has no GPU and 1 more"
    assert str(caught.value) == words


def test_a_bar_in_a_name_is_reported() -> None:
    times = "2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|gres/gpu=1"
    with pytest.raises(UsageError, match=r"line 2: 7 cells, the header has 6; .*without that colu"):
        read_sacct(f"{SACCT}\n1|a|b|{times}\n", "past", TYPES, Rates())
