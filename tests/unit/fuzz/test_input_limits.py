"""How much input is read: each limit, and that reading up to it ends soon."""

import gzip
import json
import os
import re
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import asked, seeds
from slurm_hadar import config, paths, reading, templates
from slurm_hadar.cli import batch_script
from slurm_hadar.cli import wrapper_site as site_of_hbatch
from slurm_hadar.controller.checks import wrapper_site
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.exchange import files, folder, progress
from slurm_hadar.plugins import slurm_conf
from slurm_hadar.profiles import cpu_table, gpu_sampling_files, table
from slurm_hadar.simulator.idle import fragments, trainers
from slurm_hadar.simulator.traces import csv_rows, open_trace
from slurm_hadar.slurm import hosts, jobs, lists, output, records, tres
from slurm_hadar.slurm.commands import Commands
from slurm_hadar.templates import describe, from_arguments
from slurm_hadar.tuning import conf, sacct_history, site

SOON_S = 20.0
"""CPU time. What took the square of the input's size took minutes and hours."""


def sparse(path: Path, size: int) -> Path:
    """A file of so many zeros that takes no place."""
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


@pytest.mark.parametrize(
    ("read", "most"),
    [
        (config.load, reading.SITE_BYTES),
        (table.load, reading.TABLE_BYTES),
        (cpu_table.load, reading.TABLE_BYTES),
        (trainers.read_trainers, reading.TABLE_BYTES),
        (fragments.read_fragments, reading.HISTORY_BYTES),
        (lambda path: open_trace(str(path), ("v100",)), reading.HISTORY_BYTES),
        (lambda path: site.with_nodes(site.NOTHING, path), reading.HISTORY_BYTES),
        (conf.read, conf._MOST_BYTES),
    ],
    ids=["config", "table", "cpu", "trainers", "fragments", "trace", "nodes", "slurm.conf"],
)
def test_a_file_larger_than_the_limit(
    tmp_path: Path, read: Callable[[Path], object], most: int
) -> None:
    path = sparse(tmp_path / "large", most + 1)
    with pytest.raises(UsageError, match=rf"larger than {most / 1e6:g} MB, the limit") as caught:
        read(path)
    assert str(path) in str(caught.value)
    sparse(path, 1000)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert "limit" not in str(caught.value)


def test_a_pipe_without_end(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"larger than 0\.001 MB, the limit"):
        reading.content(Path("/dev/zero"), 1000)
    path = tmp_path / "some"
    path.write_bytes(b"x" * 1000)
    assert len(reading.content(path, 1000)) == 1000


def test_a_gzip_that_unfolds_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HISTORY_BYTES", 100_000)
    path = tmp_path / "idle.csv.gz"
    path.write_bytes(gzip.compress(b"node,idle_start_s,idle_end_s,censored\n" + b"\n" * 10**6))
    assert path.stat().st_size < 10_000
    with pytest.raises(UsageError, match=r"larger than 0\.1 MB, the limit"):
        fragments.read_fragments(path)
    head = gzip.compress(b"node,idle_start_s,idle_end_s,censored\n")
    path.write_bytes(head + gzip.compress(b"n1,0,5,0\n") + b"\0\0")
    assert fragments.read_fragments(path).names == ("n1",)


def test_one_long_name_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As much as may be read is set aside for it.
    monkeypatch.setattr(reading, "HISTORY_BYTES", 1_000_000)
    path, long = tmp_path / "idle.csv", "x" * 900
    head = "node,idle_start_s,idle_end_s,censored"
    rows = [f"n{number},0,5,0" for number in range(20_000)]
    path.write_text("\n".join([head, f"{long},0,5,0", *rows]))
    tracemalloc.start()
    try:
        found = fragments.read_fragments(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found.names) == sorted(found.names) and len(found.names) == 20_001
    assert found.names[int(found.node[0])] == long
    assert found.names[int(found.node[8])] == "n7"
    # As many times the longest name as there are rows would be 72 MB.
    assert most < 30e6
    path.write_text(f"{head}\n{long * 2},0,5,0")
    with pytest.raises(UsageError, match=r"line 2: node .* is longer than 1000 characters"):
        fragments.read_fragments(path)


def test_a_table_of_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MOST_ROWS", 3)
    assert len(list(csv_rows.rows("a\n1\n2\n3\n", "t.csv", ["a"]))) == 3
    with pytest.raises(UsageError, match=r"t\.csv has more than 3 rows"):
        list(csv_rows.rows("a\n1\n2\n3\n4\n", "t.csv", ["a"]))


def test_a_configuration_of_long_lines_and_deep_nesting() -> None:
    long = "a" + ".b" * reading.SITE_LINE
    with pytest.raises(UsageError, match=r"x: line 2 is longer than 4000 characters"):
        config.parse(f"version = 1\n{long} = 1", "x")
    with pytest.raises(UsageError, match="x is nested too deeply"):
        config.parse("a = [\n" + ("[" * 1000 + "\n") * 100, "x")


@pytest.mark.parametrize("read", [table.parse, cpu_table.parse])
@pytest.mark.parametrize("nest", ["[" * 100_000, '{"a":' * 100_000])
def test_tables_nested_too_deeply(read: Callable[[str, str], object], nest: str) -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        read(nest, "x")
    with pytest.raises(UsageError, match="is not"):
        read(json.dumps({"version": 1, "rows": [["m", "k80", 1, 1, 10**400, None]]}), "x")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\0", "[]", "7"])
def test_what_hbatch_reads_is_checked_whatever_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hadar.toml"
    path.write_text("")
    wrapper_site.write_wrapper_site(config.load(path), path)
    assert wrapper_site.is_current(config.load(path), path)
    config.wrapper_path(path).write_text(text)
    assert not wrapper_site.is_current(config.load(path), path)


def test_exchange_files_have_their_limit(tmp_path: Path) -> None:
    path = tmp_path / "progress.1.a.json"
    content = json.dumps({"version": 1}).encode()
    path.write_bytes(content.ljust(files.LIMIT))
    assert files.read_owned(path, (os.getuid(),)) == {"version": 1}
    path.write_bytes(content.ljust(files.LIMIT + 1))
    assert files.read_owned(path, (os.getuid(),)) is None


def test_a_command_that_prints_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nexec yes\n")
    program.chmod(0o755)
    monkeypatch.setattr(output, "MOST_BYTES", 5_000_000)
    with pytest.raises(SlurmError, match="squeue printed more than 5 MB, which is the limit"):
        Commands(bin_dir=tmp_path).read("squeue", [])


def test_a_command_gets_all_its_input_and_both_streams_come_back(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\ncat\necho problem >&2\nexit 3\n")
    program.chmod(0o755)
    words = "update JobId=1\n" * 100_000
    answer = Commands(bin_dir=tmp_path).run("scontrol", text=words)
    assert (answer.code, answer.out, answer.err) == (3, words, "problem\n")
    program.write_text("#!/bin/sh\nexec 0<&-\nexit 0\n")
    assert Commands(bin_dir=tmp_path).run("scontrol", text=words).code == 0


def test_all_jobs_name_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"job_id": 1, "job_state": "PENDING", "excluded_nodes": "n[1-50]"}
    text = json.dumps({"jobs": [one] * 3})
    assert len(jobs.parse(text, None, 100)[0]) == 3
    monkeypatch.setattr(jobs, "MOST_NAMED", 149)
    with pytest.raises(SlurmError, match="squeue names more than 149 nodes over all jobs"):
        jobs.parse(text, None, 100)


def test_one_user_names_too_many_nodes_and_nobody_else_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comment = "[hadar1 types=any]"
    greedy = {
        "job_id": 1,
        "user_id": 1,
        "job_state": "PENDING",
        "excluded_nodes": "n[1-50]",
        "comment": comment,
    }
    other = {**greedy, "job_id": 9, "user_id": 2}
    monkeypatch.setattr(jobs, "MOST_ASKED", 149)
    text = json.dumps({"jobs": [greedy, greedy, greedy, other]})
    found, _ = jobs.parse(text, None, 100)
    assert [bool(job.declaration) for job in found] == [True, True, False, True]
    assert [len(job.excluded_nodes) for job in found] == [50, 50, 0, 50]
    assert "name more than 149 nodes with -x and -w" in found[2].declaration_error
    assert not found[3].declaration_error


def test_partitions_and_switches_name_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "PartitionName=a Nodes=n[1-50]\nPartitionName=b Nodes=n[1-50]\n"
    assert len(records.partitions(text)) == 2
    monkeypatch.setattr(records, "MOST_NAMED", 99)
    with pytest.raises(SlurmError, match="more than 99 nodes in partitions, the limit"):
        records.partitions(text)
    switch = "SwitchName=r{} Level=0 Nodes=n[1-50]\n"
    monkeypatch.setattr(records, "_MOST_ON_LEAVES", 99)
    with pytest.raises(SlurmError, match="more than 99 nodes on leaf switches, the limit"):
        records.racks(switch.format(1) + switch.format(2))


def test_a_slurm_conf_and_a_file_of_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "MOST_NODES", 100)
    where = Path("/etc/slurm/slurm.conf")
    with pytest.raises(UsageError, match=r"line 2 of .*: that is more than 100 nodes"):
        site.of_conf(conf.parse("NodeName=a[1-60]\nNodeName=b[1-60]\n", where))
    with pytest.raises(UsageError, match="more than 1000 partitions, the limit"):
        site.of_conf(conf.parse("PartitionName=p Nodes=ALL\n" * 1001, where))
    rows = "NODELIST|GRES\n" + "n[1-100]|gpu:1\n" * 11
    with pytest.raises(UsageError, match="names more than 1000 nodes, the limit"):
        site.read_nodes(rows, "nodes.txt")


def test_long_lists_of_nodes_and_gpus() -> None:
    with pytest.raises(SlurmError, match="more than 100000 names"):
        hosts.expand("n[1-100001]")
    with pytest.raises(SlurmError, match="longer than 64000 characters, the limit"):
        tres.parse_gpus("gpu:1," * 20_000)


@pytest.mark.parametrize(
    "text",
    [
        "n[-900000000-5]",
        "n[1--9]",
        f"n[1-{'9' * 5000}]",
        "n]1-900000000[",
        "n[1-2",
        "n[1-5/2]",
        "[[1-9]]",
        "n[1-4]18446744073709551616",
    ],
)
def test_host_lists_of_no_form_of_slurms(text: str) -> None:
    with pytest.raises(SlurmError, match="not understood"):
        hosts.expand(text)


def test_template_values_have_their_limit() -> None:
    values: dict[str, str | list[str]] = {"job_name": "a", "gres": "gpu:1"}
    values["command"] = ["x" * templates.LONGEST_VALUE]
    with pytest.raises(UsageError, match="at most 10000 are allowed"):
        templates.render("pytorch_single", values)
    with pytest.raises(UsageError, match="at most 10000 are allowed"):
        from_arguments(describe("pytorch_single"), [f"command={'x' * 100_000}"])


@pytest.mark.parametrize(
    "read",
    [
        lambda: hosts.expand(",".join(f"n{i}x" for i in range(3_000)) + "," * 400_000),
        lambda: lists.outside("a," * 500_000, "()"),
        lambda: site.read_nodes("NodeName=n1\n" + "   CPUTot=4\n" * 200_000, "nodes.txt"),
        lambda: conf.parse("a" * 2_000_000, Path("/x/slurm.conf")),
        lambda: conf.parse("a9" * 1_000_000, Path("/x/slurm.conf")),
        lambda: slurm_conf.settings("a=" + " " * 2_000_000 + "x", Path("/x/slurm.conf")),
        lambda: records.racks("SwitchName=r1 " + "Level=0 " * 200_000),
        lambda: list(csv_rows.rows(",".join(map(str, range(300_000))) + "\n", "t", [])),
        lambda: records.nodes("NodeName=" + "A" * 2_000_000),
        lambda: tres.parse_gpus("(" * 60_000),
        lambda: asked.COMMANDS["scontrol --version"]("9" * 1_000_000 + " 22.05.8"),
    ],
    ids=[
        "host list", "commas", "lines of one node", "word", "word of digits", "blanks", "levels",
        "header", "key", "brackets", "version",
    ],
)  # fmt: skip
def test_a_megabyte_of_one_thing_ends_soon(read: Callable[[], object]) -> None:
    begin = time.process_time()
    read()
    assert time.process_time() - begin < SOON_S


@given(st.text(alphabet="ab,[]()", max_size=40))
def test_commas_outside_brackets(text: str) -> None:
    assert lists.outside(text, "[]") == re.split(r",(?![^\[\]]*\])", text)
    assert lists.outside(text, "()") == re.split(r",(?![^()]*\))", text)


def test_a_setting_ends_where_its_remark_begins() -> None:
    text = "A=b c  # d=e\n B =x#y \nC=\t# nothing\n"
    found = slurm_conf.settings(text, Path("/x/slurm.conf"))
    assert {name: setting.value for name, setting in found.items()} == {
        "a": "b c", "b": "x#y", "c": "",
    }  # fmt: skip


def test_long_texts_are_not_remembered() -> None:
    asked: list[str] = []

    @reading.remembered(10)
    def read(text: str) -> int:
        asked.append(text[:1])
        return len(text)

    for text in ("a" * reading.LONGEST_KEPT, "b" * (reading.LONGEST_KEPT + 1)):
        assert read(text) == read(text) == len(text)
    assert asked == ["a", "b", "b"]


def test_an_include_whose_name_holds_a_zero_byte() -> None:
    where, text = Path("/x/slurm.conf"), "Include a\0b\nClusterName=c\n"
    found = conf.parse(text, where)
    assert found.settings == {"clustername": "c"}
    assert found.notes == ("/x/a?b cannot be read: its name holds a zero byte",)
    assert list(slurm_conf.settings(text, where)) == ["clustername"]


def test_hbatch_reads_no_more_of_a_script_than_sbatch_takes(tmp_path: Path) -> None:
    path = sparse(tmp_path / "train.sh", 10 * batch_script._LARGEST)
    assert len(batch_script.read_script(str(path))) == batch_script._LARGEST + 1
    sparse(path, batch_script._LARGEST)
    assert len(batch_script.read_script(str(path))) == batch_script._LARGEST
    endless = os.open("/dev/zero", os.O_RDONLY)
    try:
        found = batch_script.read_handle(endless)
        assert batch_script._LARGEST < len(found) <= batch_script._LARGEST + (1 << 16)
        assert os.fstat(endless).st_size == len(found), "sbatch reads it from there"
    finally:
        os.close(endless)


def test_hbatchs_own_json_has_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "hadar.hbatch.json"
    path.write_bytes(seeds.WRAPPER_JSON.ljust(paths.WRAPPER_BYTES))
    assert site_of_hbatch.read_site(str(path), "/nowhere") is not None
    path.write_bytes(seeds.WRAPPER_JSON.ljust(paths.WRAPPER_BYTES) + b"\n{}")
    with pytest.raises(site_of_hbatch.SiteError, match="larger than 1 MiB, the limit"):
        site_of_hbatch.read_site(str(path), "/nowhere")


def test_a_past_of_too_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    header, *lines = seeds.answers()["sacct"][0].decode().splitlines()
    few = "\n".join([header, *lines[:3]])
    made = site.of_conf(conf.parse(seeds.SLURM_CONF, Path("/x/slurm.conf")))
    monkeypatch.setattr(sacct_history, "_MOST_ROWS", 3)
    sacct_history.read(few, "sacct.txt", made)
    with pytest.raises(UsageError, match=r"sacct\.txt has more than 3 lines; ask sacct"):
        sacct_history.read("\n".join([few, *lines[3:4]]), "sacct.txt", made)


def read_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files of the exchange folder that are read from now on."""
    names: list[str] = []

    def read_owned(path: str, *_: object) -> None:
        names.append(Path(path).name)

    monkeypatch.setattr(files, "read_owned", read_owned)
    return names


def test_of_many_progress_files_of_a_job_the_newest_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3 * progress._PER_OWNER):
        path = tmp_path / f"progress.84.{number}.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    names = read_of(monkeypatch)
    assert progress.read_all_progress(tmp_path, {"84": os.getuid()}) == {}
    last = range(3 * progress._PER_OWNER - 1, 2 * progress._PER_OWNER - 1, -1)
    assert names == [f"progress.84.{number}.json" for number in last]


def test_of_many_gpu_files_of_a_job_some_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sampling_files, "_PER_JOB", 5)
    for number in range(12):
        (tmp_path / f"gpu.84.{number}.json").write_text("{}")
    (tmp_path / "gpu.85.a.json").write_text("{}")
    names = read_of(monkeypatch)
    gpu_sampling_files.read_all_uses(tmp_path, {"84": os.getuid(), "85": os.getuid()})
    assert len(names) == 6 and "gpu.85.a.json" in names, "no other job loses its own"


def test_a_job_looks_for_its_own_files_among_so_many_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"progress.84.x{number}.json").write_text("{}")
    assert len(progress.own_files(tmp_path, "84", os.getuid())) == 30
    monkeypatch.setattr(progress, "listing", partial(folder.listing, most=10))
    assert len(progress.own_files(tmp_path, "84", os.getuid())) == 10
    assert progress.own_files(tmp_path / "none", "84", os.getuid()) == []
