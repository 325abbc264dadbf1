"""The head of a script, as sbatch's own reader takes it apart."""

import pytest

from slurm_hadar.cli.batch_script import script_arguments
from slurm_hadar.cli.sbatch_parser import read_header


def words(*lines):
    return read_header(("#!/bin/sh\n" + "\n".join(lines) + "\n").encode()).words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH -N 2 --hold", ["-N", "2", "--hold"]),
        ("#SBATCH\t-N2", ["-N2"]),
        ("#SBATCH-N2", ["-N2"]),
        ("#SLURM -N2", ["-N2"]),
        ("# SBATCH -N2", []),
        (" #SBATCH -N2", []),
        ("##SBATCH -N2", []),
        ("#SBATCH -N2 # nodes -n4", ["-N2"]),
        ("#SBATCH --comment=a#b -N2", ["--comment=a"]),
        ('#SBATCH --comment="a # b" -N2', ["--comment=a # b", "-N2"]),
        ("#SBATCH --comment='it is' -N2", ["--comment=it is", "-N2"]),
        ('#SBATCH "--comment=it is"', ["--comment=it is"]),
        ('#SBATCH --comment=a\\"b', ['--comment=a"b']),
        ('#SBATCH --comment=a"b c"d', ["--comment=ab cd"]),
        ('#SBATCH --comment "" -N2', ["--comment"]),
        ("#SBATCH", []),
    ],
)
def test_one_line(line, expected):
    assert words(line) == expected


def test_reading_stops_at_the_first_command():
    assert words(
        "#SBATCH -N1", "", "# note", "   # note", "#SBATCH -n2", "cd x", "#SBATCH -c3"
    ) == [
        "-N1",
        "-n2",
    ]


@pytest.mark.parametrize("word", ["hetjob", "packjob", "HetJob"])
def test_heterogeneous_scripts_are_seen(word):
    header = read_header(f"#!/bin/sh\n#SBATCH -N1\n#SBATCH {word}\n#SBATCH -N2\n".encode())
    assert header.het
    assert header.words == ["-N1"]


def test_a_name_that_begins_like_the_separator_is_none():
    header = read_header(b"#!/bin/sh\n#SBATCH --comment hetjobs\n")
    assert not header.het
    assert header.words == ["--comment", "hetjobs"]


@pytest.mark.parametrize(
    "body",
    [
        b"echo hi\n",
        b"",
        b"\x7fELF\0\0",
        b"#!/bin/sh\n\0",
        b"#!/bin/sh\r\necho\r\n",
        b"#!/bin/sh\n#SBATCH --comment='open\n",
        b"#!/bin/sh\n#SBATCH : -N1\n",
    ],
)
def test_scripts_that_sbatch_refuses(body):
    assert read_header(body).refused


@pytest.mark.parametrize(
    ("line", "declares"),
    [
        ("#HADAR model=a", True),
        ("#HADAR", True),
        ("#HADARS x", False),
        (" #HADAR model=a", False),
        ("echo\n#HADAR model=a", False),
    ],
)
def test_declarations_are_seen(line, declares):
    assert read_header(f"#!/bin/sh\n{line}\n".encode()).declares is declares


@pytest.mark.parametrize("line", ["#PBS -l nodes=2", "#BSUB -n 4"])
def test_lines_of_other_systems_are_seen(line):
    assert read_header(f"#!/bin/sh\n{line}\n".encode()).foreign


def test_bytes_that_are_no_utf8_do_no_harm():
    header = read_header(b"#!/bin/sh\n# caf\xe9\n#SBATCH -J caf\xe9 -N1\n")
    assert header.words[0] == "-J"
    assert header.words[2] == "-N1"


def test_script_lines_end_where_the_script_begins():
    script = "#!/bin/bash\n#SBATCH -n1\n#HADAR model=lm types=any # mine\n\necho\n#HADAR gpus=4\n"
    assert script_arguments(script, "t.sh") == [
        ("model=lm", "line 3 of t.sh"),
        ("types=any", "line 3 of t.sh"),
    ]
