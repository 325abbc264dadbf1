"""The command line against the C library's own getopt_long, fed with sbatch's options."""

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.cli.sbatch_options import (
    ENVIRONMENT,
    FLAG,
    LONG,
    OPTIONAL,
    SAME,
    SHORT,
    VALUE,
)
from slurm_hadar.cli.sbatch_parser import CommandLine, merged_options, read_argv, read_directives

CASES = [
    (["job.sh"], [], "job.sh"),
    (["-N2", "job.sh"], [("nodes", "2")], "job.sh"),
    (["-N", "2", "job.sh"], [("nodes", "2")], "job.sh"),
    (["--nodes=2", "job.sh"], [("nodes", "2")], "job.sh"),
    (["--nodes", "2", "job.sh"], [("nodes", "2")], "job.sh"),
    (["--node=2"], None, None),
    (["--part", "a", "job.sh"], [("partition", "a")], "job.sh"),
    (["-HQN2", "job.sh"], [("hold", None), ("quiet", None), ("nodes", "2")], "job.sh"),
    (["-HN", "2", "job.sh"], [("hold", None), ("nodes", "2")], "job.sh"),
    (["-k", "job.sh"], [("no-kill", None)], "job.sh"),
    (["-koff", "job.sh"], [("no-kill", "off")], "job.sh"),
    (["--exclusive", "job.sh"], [("exclusive", None)], "job.sh"),
    (["--exclusive=user", "job.sh"], [("exclusive", "user")], "job.sh"),
    (["--requeue", "job.sh"], [("requeue", None)], "job.sh"),
    (["--wait", "--parsable", "job.sh"], [("wait", None), ("parsable", None)], "job.sh"),
    (["-W", "job.sh"], [("wait", None)], "job.sh"),
    (["--comment", "--hold", "job.sh"], [("comment", "--hold")], "job.sh"),
    (["--comment=", "job.sh"], [("comment", "")], "job.sh"),
    (["--", "-N2"], [], "-N2"),
    (["-J", "--", "job.sh"], [("job-name", "--")], "job.sh"),
    (["-", "-N2"], [], "-"),
    (["job.sh", "-N2", "--hold"], [], "job.sh"),
    (["--cluster", "a", "job.sh"], [("clusters", "a")], "job.sh"),
    (["--tasks-per-n=2", "job.sh"], [("ntasks-per-node", "2")], "job.sh"),
    (["--spank=3", "job.sh"], [], "job.sh"),
    (["--spank", "-N2", "job.sh"], [("nodes", "2")], "job.sh"),
    ([], [], None),
]


@pytest.mark.parametrize(("argv", "options", "script"), CASES)
def test_options_and_script_are_found(argv, options, script):
    line = read_argv(argv)
    if options is None:
        assert line.unclear
        return
    assert line.options == options
    assert not line.unclear and not line.refused
    assert (None if line.script is None else line.words[line.script]) == script
    assert line.words == argv


@pytest.mark.parametrize(
    "argv", [["--parsable=1", "j"], ["--nodes"], ["-N"], ["-P", "j"], ["--help"], ["-V", "j"]]
)
def test_what_sbatch_answers_itself_is_left_to_it(argv):
    assert read_argv(argv).refused


def test_an_unknown_option_before_a_word_is_unclear():
    line = read_argv(["--spank", "maybe", "job.sh"])
    assert "--spank=VALUE" in line.unclear
    assert line.script is None
    assert line.words == ["--spank", "maybe", "job.sh"]


def test_an_abbreviation_that_may_mean_two_options_is_unclear():
    assert "--constraint" in read_argv(["--cons", "a", "job.sh"]).unclear


@pytest.mark.parametrize(
    "argv", [["-N1", ":", "-N2", "job.sh"], ["job.sh", ":", "x"], ["--comment", ":", "job.sh"]]
)
def test_a_lone_colon_makes_a_heterogeneous_job(argv):
    assert read_argv(argv).het


def test_our_words_are_taken_out_wherever_options_may_stand():
    line = read_argv(
        ["--hadar-gpus=1-4", "-N", "1", "--hadar-model", "m", "--hadar-off", "job.sh", "--hadar-x"]
    )
    assert line.ours == [("gpus", "1-4"), ("model", "m"), ("off", None)]
    assert line.words == ["-N", "1", "job.sh", "--hadar-x"]
    assert line.words[line.script] == "job.sh"
    assert line.end == 2


def test_questions_are_apart_from_what_is_declared():
    line = read_argv(["--hadar-plan", "--hadar-gpus=2", "--json", "-N1", "job.sh", "--json"])
    assert line.asked == {"plan", "json"} and line.ours == [("gpus", "2")]
    assert line.words == ["-N1", "job.sh", "--json"] and line.script == 1
    assert read_argv(["--hadar-help", "--hadar-version"]).asked == {"help", "version"}
    assert read_argv(["--hadar-plan=yes"]).ours == [("plan", "yes")]


@pytest.mark.parametrize(
    "argv",
    [
        ["--json", "--hadar-plan", "job.sh"],
        ["--json", "job.sh"],
        ["-J", "--json", "--hadar-plan", "job.sh"],
        ["job.sh", "--hadar-plan", "--json"],
        ["--", "--hadar-plan", "--json"],
    ],
)
def test_json_is_ours_only_behind_the_plan(argv):
    assert "--json" in read_argv(argv).words
    assert "json" not in read_argv(argv).asked


def test_a_word_of_ours_that_is_an_options_value_stays():
    line = read_argv(["--comment", "--hadar-off", "job.sh"])
    assert line.ours == []
    assert line.options == [("comment", "--hadar-off")]


def test_the_end_of_the_options_is_before_the_double_dash():
    line = read_argv(["-J", "--", "--", "job.sh"])
    assert line.words[: line.end] == ["-J", "--"]
    assert line.words[line.script] == "job.sh"


class _Option(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


_HAS_ARG = {FLAG: 0, VALUE: 1, OPTIONAL: 2}
_LETTER = {name: letter for letter, name in SHORT.items()}
_CODES = {
    name: ord(_LETTER[name]) if name in _LETTER else 0x200 + number
    for number, name in enumerate(LONG)
}
_CODES |= {name: _CODES[other] for name, other in SAME.items()}
_NAME = {code: name for name, code in _CODES.items() if name not in SAME}


def c_getopt(argv):
    """(options, rest) as the C library reads them; None where it refuses a word."""
    libc = ctypes.CDLL(None)
    table = (_Option * (len(LONG) + 1))()
    for number, (name, takes) in enumerate(LONG.items()):
        table[number] = _Option(name.encode(), _HAS_ARG[takes], None, _CODES[name])
    short = "+" + "".join(
        letter + {FLAG: "", VALUE: ":", OPTIONAL: "::"}[LONG[name]]
        for letter, name in SHORT.items()
    )
    words = [b"sbatch", *(word.encode() for word in argv)]
    array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    optind = ctypes.c_int.in_dll(libc, "optind")
    optarg = ctypes.c_char_p.in_dll(libc, "optarg")
    ctypes.c_int.in_dll(libc, "opterr").value = 0
    optind.value = 0
    options: list[tuple[str, str | None]] = []
    while True:
        code = libc.getopt_long(len(words), array, short.encode(), table, None)
        if code == -1:
            return options, argv[optind.value - 1 :]
        if code == ord("?"):
            return None
        value = optarg.value
        options.append((_NAME[code], None if value is None else value.decode()))


_LONG_WORD = st.builds(
    lambda name, cut, value: "--" + name[: max(2, len(name) - cut)] + value,
    st.sampled_from(sorted(LONG)),
    st.integers(0, 3),
    st.sampled_from(["", "=", "=v", "=a=b"]),
)
_SHORT_WORD = st.text(alphabet=[*SHORT, "1", "-"], min_size=1, max_size=4).map(
    lambda text: "-" + text.lstrip("-") if text.strip("-") else "-N"
)
_PLAIN_WORD = st.sampled_from(["job.sh", "2", "", "-", "--", "a=b", "x"])


@settings(max_examples=240)
@given(st.lists(st.one_of(_LONG_WORD, _SHORT_WORD, _PLAIN_WORD), max_size=6))
def test_any_line_is_read_as_the_c_library_reads_it(argv):
    line, expected = read_argv(argv), c_getopt(argv)
    assert line.words == argv
    if line.refused and {name for name, _ in line.options} & {"help", "usage", "version"}:
        return
    if line.refused and "autocomplete" in dict(line.options):
        return
    if expected is None:
        assert line.unclear or line.refused
        return
    assert not line.unclear and not line.refused
    assert line.options == expected[0]
    rest = [] if line.script is None else line.words[line.script :]
    assert rest == expected[1]


def directives(*options):
    line = CommandLine()
    line.options = list(options)
    return line


def test_argv_beats_the_environment_which_beats_the_script():
    script = directives(("partition", "s"), ("gres", "gpu:1"), ("comment", "script"))
    env = {"SBATCH_PARTITION": "e", "SBATCH_GRES": "gpu:2", "PATH": "/bin"}
    held = merged_options(script, env, read_argv(["-p", "a", "job.sh"]))
    assert held == {"partition": "a", "gres": "gpu:2", "comment": "script"}


@pytest.mark.parametrize(
    ("value", "holds"), [("", True), ("yes", True), ("YES", True), ("1", True), ("0", False),
                         ("no", False), ("off", False)]
)  # fmt: skip
def test_a_flags_variable_sets_it_or_takes_it_back(value, holds):
    held = merged_options(
        directives(("no-requeue", None)), {"SBATCH_NO_REQUEUE": value}, CommandLine()
    )
    assert ("no-requeue" in held) is holds


def test_the_last_of_two_wins():
    assert merged_options(CommandLine(), {}, read_argv(["-N1", "-N2", "j"]))["nodes"] == "2"


def test_the_script_cannot_set_what_sbatch_reads_on_the_command_line_only():
    line = read_directives(["--quiet", "--wrap=x", "--help", "-N1"])
    assert line.options == [("nodes", "1")]
    assert not line.refused


def test_tables_name_options_that_exist():
    assert set(SHORT.values()) <= set(LONG)
    assert set(ENVIRONMENT.values()) <= set(LONG)
    assert set(SAME) | set(SAME.values()) <= set(LONG)
