"""The trace formats: what is read, and the one sentence for each thing that is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.table import shipped
from slurm_hadar.simulator import cluster, make_trace
from slurm_hadar.simulator.traces import open_trace, shipped_names
from slurm_hadar.simulator.traces.sacct import ModelNames
from slurm_hadar.simulator.traces.sacct import read as read_sacct
from slurm_hadar.simulator.workload import Workload, check

TYPES = ("v100", "k80")
GAVEL = "job_id,arrival_s,model,batch_size,scale_factor,total_steps,thr_v100,thr_k80"
NATIVE = "job_id,arrival_s,gpus,samples,model,batch,rate_v100,rate_k80,counts,max_nodes,weight"


def opened(folder: Path, *lines: str, **more: Any) -> Workload:
    file = folder / "trace.csv"
    file.write_text("\n".join(lines) + "\n")
    work = open_trace(str(file), TYPES, **more)
    check(work, cluster.parse("v100=4,k80=4"))
    return work


def test_gavels_columns(tmp_path: Path) -> None:
    work = opened(
        tmp_path, "# a remark", GAVEL, "7,0.5,LM,10,2,100,8.0,2.0", "", "8,1,LM,5,1,9,0,3"
    )
    assert work.ids == ("7", "8")
    assert work.arrival_s.tolist() == [0.5, 1.0]
    assert work.counts == (1, 2)
    assert work.rate.tolist() == [[[0.0, 8.0], [0.0, 2.0]], [[0.0, 0.0], [3.0, 0.0]]]
    assert work.total.tolist() == [100.0, 9.0]
    assert work.lines == (3, 5)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["job_id,arrival_s,scale_factor,thr_v100,thr_k80", "1,0,1,1,1"], "line 1: column total_s"),
        ([GAVEL.replace("thr_k80", "thr_x"), "1,0,m,1,1,9,1,1"], "line 1: column thr_k80 is miss"),
        ([GAVEL, "1,-3,m,1,1,9,1,1"], "line 2: arrival_s is -3; it must be 0 or more"),
        ([GAVEL, "1,nan,m,1,1,9,1,1"], "line 2: arrival_s is nan"),
        ([GAVEL, "1,inf,m,1,1,9,1,1"], "line 2: arrival_s is inf"),
        ([GAVEL, "1,soon,m,1,1,9,1,1"], "line 2: arrival_s is 'soon'"),
        ([GAVEL, "1,0,m,1,1.5,9,1,1"], "line 2: scale_factor is 1.5; it must be a whole"),
        ([GAVEL, "1,0,m,1,0,9,1,1"], "line 2: scale_factor is 0"),
        ([GAVEL, "1,0,m,1,1,0,1,1"], "line 2: total_steps is 0; it must be more than 0"),
        ([GAVEL, "1,0,m,1,1,9,-1,1"], "line 2: thr_v100 is -1"),
        ([GAVEL, "1,0,m,1,1,9,1,1", "1,0,m,1,1,9,1,1"], "line 3: job_id 1 stands on line 2"),
        ([GAVEL, ",0,m,1,1,9,1,1"], "line 2: job_id is empty"),
        ([GAVEL, "1,0,m,1,1,9,1"], "line 2: 7 cells, the header has 8"),
        ([GAVEL, "1,0,m,1,1,9,0,0"], "line 2: job 1 has zero throughput on every type"),
        ([GAVEL, "1,0,m,1,5,9,1,1"], "line 2: job 1 asks for 5 GPUs and fits nowhere"),
        ([GAVEL, "1,0,m,1,5,9,0,1"], "line 2: job 1 asks for 5 GPUs and fits nowhere"),
        ([GAVEL], "has no job"),
        ([""], "is empty"),
        (["x,y", "1,2"], "line 1: column job_id is missing"),
    ],
)
def test_a_malformed_trace_is_one_sentence_with_its_line(
    tmp_path: Path, lines: list[str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, *lines)
    assert words in str(caught.value)
    assert "trace.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no trace .*; shipped ones: .*trace_120"):
        open_trace(str(tmp_path / "nowhere.csv"), TYPES)
    with pytest.raises(UsageError, match="cannot be read"):
        open_trace(str(tmp_path), TYPES)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="binary cannot be read: it is not UTF-8"):
        open_trace(str(tmp_path / "binary"), TYPES)


def test_native_models_and_rates(tmp_path: Path) -> None:
    work = opened(
        tmp_path,
        NATIVE,
        "a,0,2,1e6,resnet50,64,,,,,",
        "b,5,1,300,,,3.0,0,,1,2.5",
        "c,9,1,400,resnet-50,64,,,1 2,,",
        "d,9,1,400,resnet-50,64,,,1-4,,",
    )
    rates = Rates()
    expected = rates.rates((None, "ResNet-50", 64), TYPES, (2,))[0][:, 0]
    assert work.counts == (1, 2, 3, 4)
    assert work.rate[0, :, 1].tolist() == expected.tolist()
    assert not work.rate[0, :, [0, 2, 3]].any()
    assert work.rate[1, :, 0].tolist() == [3.0, 0.0]
    assert (work.rate[2] > 0).any(axis=0).tolist() == [True, True, False, False]
    assert (work.rate[3] > 0).any(axis=0).all()
    assert work.max_nodes[1] == 1
    assert work.weight.tolist() == [1.0, 2.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,0,1,9,,,,,,,", "line 2: it names neither a model nor rates"),
        ("a,0,1,9,gpt-17,,,,,,", "line 2: model 'gpt-17' is in no throughput table"),
        ("a,0,1,9,,,1.0,,,,", "line 2: rate_k80 is empty"),
        ("a,0,1,9,resnet50,64,,,4-x,,", "line 2: counts is '4-x'"),
        ("a,0,1,9,resnet50,64,,,4-1,,", "line 2: counts is '4-1'"),
        ("a,0,1,9,resnet50,64,,,0 1,,", "line 2: counts is '0 1'"),
        ("a,0,1,9,resnet50,x,,,,,", "line 2: batch is 'x'"),
        ("a,0,1,9,,,1,1,,0,", "line 2: max_nodes is 0"),
        ("a,0,1,9,,,1,1,,,0", "line 2: weight is 0; it must be more than 0"),
        ("a,0,1,9,,,0,0,,,", "line 2: job a has zero throughput"),
    ],
)
def test_native_errors(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, NATIVE, row)
    assert words in str(caught.value)


def test_elastic_counts_are_the_tables_and_at_most_four_times_the_request(tmp_path: Path) -> None:
    lines = [GAVEL, "1,0,LM,10,1,99,50,10", "2,0,ResNet-50,128,1,99,3,1", "3,0,CycleGAN,,1,9,4,1"]
    work = opened(tmp_path, *lines, elastic=True)
    assert work.counts == (1, 2, 4)
    table = shipped().curves("LM")["v100"].cells
    assert work.rate[0, 0].tolist() == [50.0, table[2, 10] / 10, table[4, 10] / 10]
    # The table says that the K80 cannot hold it on several GPUs.
    assert work.rate[1, 1].tolist() == [1.0, 0.0, 0.0]
    # CycleGAN was measured on one GPU only.
    assert (work.rate[2] > 0).any(axis=0).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "name", ["trace_120", "trace_480", "trace_480_poisson", "trace_480_hadarlike", "mixed_60"]
)
def test_what_is_shipped_can_be_read(name: str) -> None:
    assert name in shipped_names()
    pretend = cluster.parse("v100=20,p100=20,k80=20")
    for elastic in (False, True):
        work = open_trace(name, pretend.types, elastic=elastic)
        check(work, pretend)
        assert len(work.ids) == int(name.split("_")[1])
    assert len(work.counts) == 4


def test_our_own_trace_is_what_its_command_makes() -> None:
    from slurm_hadar.simulator.traces import _FOLDER

    assert (_FOLDER / "mixed_60.csv").read_text() == make_trace.text(60, 1, 900.0, 1500.0)
    assert make_trace.text(20, 2) != make_trace.text(20, 3)


SACCT = "JobID|JobName|Account|Submit|Eligible|Start|End|State|AllocTRES"
_TRES = "billing=8,cpu=8,gres/gpu:v100=2,gres/gpu=2,mem=64G,node=1"


def _line(
    id_: str, name: str = "train", start: str = "10:10:00", end: str = "12:10:00",
    tres: str = _TRES, submit: str = "10:00:00", eligible: str = "10:00:00",
) -> str:  # fmt: skip
    def at(clock: str) -> str:
        return f"2026-01-05T{clock}" if clock[:1].isdigit() else clock

    times = "|".join(at(clock) for clock in (submit, eligible, start, end))
    return f"{id_}|{name}|phys|{times}|COMPLETED|{tres}"


def test_sacct_as_slurm_prints_it() -> None:
    text = "\n".join(
        [
            SACCT,
            _line("100"),
            _line("100.batch", "batch"),
            _line("100.extern", "extern"),
            _line("84_2", "other", tres="cpu=4,gres/gpu=1,mem=4G,node=1"),
            _line("84_[3-9%2]", start="Unknown", end="Unknown", tres=""),
            _line("101", end="Unknown"),
            _line("102", tres="cpu=4,mem=4G,node=1"),
            _line("103", start="None", end="10:20:00", tres=""),
            _line("104", submit="09:00:00", eligible="10:05:00"),
            _line("105", end="10:10:00"),
        ]
    )
    names = ModelNames({"tr*": "resnet50"}, {"phys": "gpt-17"})
    work = read_sacct(text, "past", TYPES, Rates(), ModelNames({"tr*": "resnet50"}))
    assert work.ids == ("100", "84_2", "104")
    assert work.request.tolist() == [2, 1, 2]
    # Waiting for its begin time or a dependency is not the scheduler's doing.
    assert work.arrival_s.tolist() == [0.0, 0.0, 300.0]
    own = Rates().rates((None, "resnet50", None), TYPES, (2,))[0][:, 0]
    assert work.rate[0, :, 1].tolist() == own.tolist()
    assert work.total[0] == pytest.approx(own[0] * 7200.0)
    assert work.rate[1, :, 0].tolist() == [1.0, 1.0]
    assert work.total[1] == 7200.0
    assert len(work.left_out) == 5
    for number, why in ((6, "never started"), (7, "has not ended"), (8, "has no GPU"),
                        (9, "never started"), (11, "ran for 0 s")):  # fmt: skip
        assert any(row.startswith(f"line {number}: ") and why in row for row in work.left_out)
    with pytest.raises(UsageError, match="gpt-17"):
        read_sacct(text, "past", TYPES, Rates(), names)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["JobID|Submit|Start|End", "1|2|3|4"], "column AllocTRES is missing"),
        ([SACCT, _line("1", end="10:05:00")], "line 2: job 1 has a negative time"),
        ([SACCT, _line("1", start="09:00:00")], "line 2: job 1 has a negative time"),
        ([SACCT, _line("1", submit="Unknown")], "line 2: job 1 has no time of submission"),
        ([SACCT, _line("1"), _line("1")], "line 3: job 1 stands on line 2 already"),
        ([SACCT, _line("1", start="1x:00")], "line 2: "),
        ([SACCT, _line("1", tres="gres/gpu=two")], "line 2: "),
        (
            [SACCT, _line("1", name="a|b")],
            "1 of 1 lines of past are not understood; the first: line 2: 10",
        ),
    ],
)
def test_sacct_errors(lines: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_sacct("\n".join(lines), "past", TYPES, Rates())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "each", "words"),
    [
        ("v100", "4", "'v100' is not TYPE=NUMBER"),
        ("v100=0", "4", "--cluster"),
        ("v100=-1", "4", "--cluster"),
        ("v100=1,V100=2", "4", "v100 is named twice"),
        ("v100=1", "0", "--gpus-per-node 0"),
        ("v100=1,k80=1", "v100=4", "k80 is missing"),
        ("", "4", "--cluster"),
    ],
)
def test_cluster_errors(gpus: str, each: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        cluster.parse(gpus, each)
    assert words in str(caught.value)


def test_a_cluster_of_nodes_with_what_is_left_over_on_the_last() -> None:
    pretend = cluster.parse("v100=10,k80=3", "v100=4,k80=2", per_rack=2)
    assert pretend.names == ("v100-1", "v100-2", "v100-3", "k80-1", "k80-2")
    assert pretend.gpus.tolist() == [[4, 0], [4, 0], [2, 0], [0, 2], [0, 1]]
    assert pretend.rack.tolist() == [0, 0, 1, 1, 2]
    assert np.array_equal(pretend.capacity, [10, 3])
