"""Submits as people type them, right and wrong: made from a seed, for sbatch and hbatch alike."""

import random
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.cli.sbatch_options import ENVIRONMENT, FLAG, LONG, ONLY_ARGV, OPTIONAL, SHORT

LETTER = {name: letter for letter, name in SHORT.items()}
VARIABLE = {name: variable for variable, name in ENVIRONMENT.items()}

# What sbatch takes on the sandbox's six nodes with two GPUs each, mostly.
GOOD: Mapping[str, list[str | None]] = {
    "account": ["science", "a_b"],
    "acctg-freq": ["30", "task=10"],
    "array": ["1-3", "0-9%2", "1,5", "0"],
    "begin": ["now+100", "now+1hour", "tomorrow", "2038-01-01", "23:59"],
    "chdir": ["/tmp", "/"],
    "comment": ["text", "two words", "a;b,c=d", 'say "x"', "it's", "back\\slash", "h#sh", "ü"],
    "constraint": ["v100", "p100", "v100|k80", "p100&p100", "[v100|k80]"],
    "contiguous": [None],
    "core-spec": ["0"],
    "cores-per-socket": ["1", "4"],
    "cpu-freq": ["low", "high-high"],
    "cpus-per-gpu": ["1", "2"],
    "cpus-per-task": ["1", "2", "8"],
    "deadline": ["now+2hours", "tomorrow"],
    "delay-boot": ["5"],
    "dependency": ["singleton"],
    "distribution": ["block", "cyclic:block", "plane=2"],
    "error": ["err.%j", "/dev/null"],
    "exclude": ["k1", "v[1-2]"],
    "exclusive": [None, "user"],
    "export": ["NONE", "ALL", "ALL,A=1", "A,B"],
    "extra-node-info": ["1", "2:16:1"],
    "gpu-bind": ["closest", "none"],
    "gpus": ["1", "2", "v100:1", "4"],
    "gpus-per-node": ["1", "k80:2", "2"],
    "gpus-per-task": ["1"],
    "gres": ["gpu:1", "gpu:2", "gpu:v100:1", "gpu:k80:2", "gpu", "none"],
    "gres-flags": ["disable-binding", "enforce-binding"],
    "hint": ["nomultithread", "compute_bound"],
    "hold": [None],
    "ignore-pbs": [None],
    "input": ["/dev/null"],
    "job-name": ["a", "two words", "x" * 60, "q'uote", "-dash"],
    "kill-on-invalid-dep": ["yes", "no"],
    "mail-type": ["NONE", "END", "ALL", "BEGIN,FAIL"],
    "mail-user": ["ada@example.org"],
    "mem": ["100", "1G", "500M", "0", "2048K"],
    "mem-bind": ["local", "none"],
    "mem-per-cpu": ["100", "1G"],
    "mem-per-gpu": ["1G"],
    "mincpus": ["1", "4"],
    "nice": [None, "5", "-5"],
    "no-kill": [None, "off"],
    "no-requeue": [None],
    "nodelist": ["v1", "k2,v1", "p[1-2]"],
    "nodes": ["1", "2", "1-2", "1-1", "3"],
    "ntasks": ["1", "2", "4"],
    "ntasks-per-core": ["1"],
    "ntasks-per-node": ["1", "2"],
    "ntasks-per-socket": ["1"],
    "open-mode": ["append", "truncate"],
    "output": ["out.%j", "/dev/null", "a b"],
    "overcommit": [None],
    "oversubscribe": [None],
    "parsable": [None],
    "partition": ["gpu", "v100", "v100,k80", "idle"],
    "prefer": ["v100"],
    "priority": ["10"],
    "profile": ["none"],
    "propagate": [None, "ALL", "NONE", "STACK"],
    "qos": ["normal"],
    "quiet": [None],
    "reboot": [None],
    "requeue": [None],
    "signal": ["USR1", "USR1@60", "B:TERM@10", "10@5"],
    "sockets-per-node": ["1", "2"],
    "spread-job": [None],
    "switches": ["1", "1@10:00"],
    "tasks-per-node": ["1"],
    "thread-spec": ["0"],
    "threads-per-core": ["1"],
    "time": ["5", "10:00", "1:00:00", "1-0", "1-02:03", "UNLIMITED", "0:30"],
    "time-min": ["1", "2:00"],
    "tmp": ["0"],
    "use-min-nodes": [None],
    "verbose": [None],
    "wait": [None],
    "wait-all-nodes": ["0", "1"],
    "wckey": ["key"],
}
# What it refuses, by itself or by slurmctld.
BAD = {
    "acctg-freq": ["x=y"],
    "array": ["x", "1-99999999", "3-", ""],
    "begin": ["xx", "yesterday", "2020-13-01"],
    "constraint": ["nix", "v100&k80", "[v100", "v100|"],
    "core-spec": ["-1"],
    "cpu-freq": ["xx"],
    "cpus-per-gpu": ["0", "x"],
    "cpus-per-task": ["0", "x", "99", "1.5"],
    "deadline": ["xx", "2001-01-01"],
    "dependency": ["xx", "afterok:4000000", "afterok:"],
    "distribution": ["xx"],
    "exclude": ["nonode"],
    "exclusive": ["nobody"],
    "extra-node-info": ["x"],
    "gpus": ["x", "99", "h100:1", "-1"],
    "gpus-per-node": ["9", "v100:1:1:1"],
    "gres": ["gpu:9", "gpu:h100:1", "foo:1", "gpu:-1", "gpu:v100:x"],
    "gres-flags": ["xx"],
    "hint": ["xx"],
    "kill-on-invalid-dep": ["x"],
    "licenses": ["nope:1"],
    "mail-type": ["NEVER"],
    "mem": ["x", "1Q", "999999G", "-1"],
    "mem-bind": ["xx"],
    "mem-per-cpu": ["x", "999G"],
    "nice": ["x", "9999999999"],
    "nodelist": ["nonode", "v1,nonode"],
    "nodes": ["0", "x", "3-1", "99", "-1", ""],
    "ntasks": ["0", "x", "-1", "9999"],
    "ntasks-per-node": ["x", "99"],
    "open-mode": ["x"],
    "partition": ["nowhere", "gpu,nowhere", ""],
    "priority": ["x", "-1"],
    "profile": ["xx"],
    "propagate": ["xx"],
    "reservation": ["none_such"],
    "signal": ["FOO", "USR1@x", "@60"],
    "switches": ["x"],
    "time": ["bad", "5:xx", "", "-1", "1-2-3"],
    "tmp": ["x", "99999999"],
    "uid": ["no_such_user"],
    "wait-all-nodes": ["2", "x"],
}
UNKNOWN = ["--foo", "--foo=1", "-Z", "-y1", "--hadarx", "--", "--=x", "-", "---", "--json"]
EXCLUDING = [
    {"requeue", "no-requeue"}, {"mem", "mem-per-cpu", "mem-per-gpu"}, {"begin", "deadline"},
    {"exclusive", "oversubscribe"}, {"sockets-per-node", "extra-node-info", "hint",
     "cores-per-socket", "threads-per-core", "ntasks-per-core", "ntasks-per-socket"},
    {"core-spec", "thread-spec"}, {"ntasks-per-node", "tasks-per-node"}, {"time", "time-min"},
    {"gpus", "gpus-per-node", "gres", "gpus-per-task", "cpus-per-gpu", "mem-per-gpu", "gpu-bind"},
    {"cpus-per-task", "cpus-per-gpu"}, {"nodelist", "constraint", "partition", "exclude", "prefer"},
]  # fmt: skip
FULLER: Mapping[str, list[str | None]] = {
    "account": ["science"],
    "cpus-per-task": ["1", "2", "8"],
    "gpus-per-socket": ["1"],
    "gpus-per-task": ["1", "2"],
    "nodes": ["1", "2", "1-2", "1-1", "3", "2-4", "1-6", "4"],
    "ntasks": ["1", "2", "4", "8", "40"],
    "switches": ["1", "1@10:00", "2@1:00"],
}
"""Of :func:`jobs`: more of what a request is made of."""
OFTEN = (
    "account", "array", "begin", "comment", "constraint", "contiguous", "cpus-per-task", "deadline",
    "dependency", "exclude", "exclusive", "gres", "gpus", "gpus-per-node", "gpus-per-task", "mem",
    "mem-per-cpu", "mem-per-gpu", "nodelist", "nodes", "no-requeue", "ntasks", "ntasks-per-node",
    "qos", "requeue", "signal", "switches", "time", "time-min",
)  # fmt: skip
"""Of these is most of a job of :func:`jobs`."""
NO_NUMBER = ("quiet", "wait")
"""Options under which sbatch says no job's number, or says it at the job's end."""
ASKS_FOR_GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}
DECLARED = [
    "checkpoint=yes",
    "model=resnet18 types=any checkpoint=yes samples=5e6",
    "off=yes",
    "model=m batch=64:512 # a remark",
    "types=any restart_cost=30",
    "",
]


@dataclass
class Submit:
    """One submit. ``ours``: words of hbatch's alone, before ``argv``; ``script``: bytes of job.sh,
    None: there is none; ``typed``: the script comes on standard input."""

    argv: list[str] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    script: bytes | None = None
    typed: bool = False

    @property
    def declares(self) -> bool:
        """Whether hbatch has to say what became of the declaration."""
        if any(re.match(r"-Q|--qu", word) for word in self.argv):
            return False
        wrapped = any(word.startswith("--wr") for word in self.argv)
        lines = re.search(rb"^#HADAR( |$)", self.script or b"", re.M)
        return bool(self.ours) or (lines is not None and not wrapped)

    def __str__(self) -> str:
        return f"{self.ours} {self.argv} env={self.env} script={self.script!r} stdin={self.typed}"


def submits(count: int, seed: int) -> list[Submit]:
    """``count`` submits, about half of them with a fault on purpose."""
    return [_Maker(random.Random(f"{seed}/{number}")).make() for number in range(count)]


def jobs(count: int, seed: int, more: Mapping[str, list[str | None]]) -> list[Submit]:
    """``count`` submits of jobs that ask for much and mostly for GPUs, few of them with a fault and
    most declared. ``more``: options' values instead of those that any sandbox takes."""
    good: dict[str, list[str | None]] = {**GOOD, **FULLER, **more}
    for name in NO_NUMBER:
        del good[name]
    return [_JobMaker(random.Random(f"{seed}/{number}"), good).make() for number in range(count)]


class _Maker:
    counts: tuple[int, ...] = (0, 1, 1, 2, 2, 3, 4)
    """Options of a submit."""
    faulty = 0.45
    declares = 0.35
    declared = tuple(DECLARED)
    ours: tuple[list[str], ...]
    ours = (["--hadar-model=m"], ["--hadar-checkpoint", "yes"], ["--hadar-off"],
            ["--hadar-types", "any"])  # fmt: skip

    def __init__(
        self, dice: random.Random, good: Mapping[str, list[str | None]] | None = None
    ) -> None:
        self.dice = dice
        self.good = good or GOOD
        self.result = Submit()
        self.lines: list[str] = []
        self.tail: list[str] = []

    def make(self) -> Submit:
        dice, result = self.dice, self.result
        fault = dice.choice(["value", "value", "unknown", "script", "cut"]) * (
            dice.random() < self.faulty
        )
        chosen = self._options(dice.choice(self.counts))
        if fault == "value":
            name = dice.choice(list(BAD))
            chosen = [(n, v) for n, v in chosen if n != name] + [(name, dice.choice(BAD[name]))]
        dice.shuffle(chosen)
        words: list[str] = []
        for name, value in chosen:
            self._place(name, value, words)
        if fault == "unknown":
            words.insert(dice.randrange(len(words) + 1), dice.choice(UNKNOWN))
        declared = dice.random() < self.declares
        if declared and dice.random() < 0.3:
            result.ours = list(dice.choice(self.ours))
        elif declared:
            self.lines.insert(0, "#HADAR " + dice.choice(self.declared))
        result.script = self._script()
        if fault == "script":
            self._spoil_script()
        self._how_given(words)
        result.argv = words
        if fault == "cut":
            result.argv = self._cut(words)
        return result

    def _options(self, most: int) -> list[tuple[str, str | None]]:
        names = self._names(most)
        for group in EXCLUDING:
            for name in [name for name in names if name in group][1:]:
                # Now and then what does not go together stays together.
                if self.dice.random() < 0.9:
                    names.remove(name)
        return [(name, self.dice.choice(self.good[name])) for name in names]

    def _names(self, most: int) -> list[str]:
        return self.dice.sample(list(self.good), most)

    def _place(self, name: str, value: str | None, words: list[str]) -> None:
        where = self.dice.choice(["argv", "argv", "script", "script", "env"])
        if where == "env" and name in VARIABLE and "\0" not in (value or ""):
            self.result.env[VARIABLE[name]] = value or self.dice.choice(["", "yes", "1", "no", "0"])
        elif where == "script" and name not in ONLY_ARGV:
            given = self._typed(name, value)
            self.lines.append(self._line(given))
        else:
            words += self._typed(name, value)

    def _typed(self, name: str, value: str | None) -> list[str]:
        dice, letter = self.dice, LETTER.get(name)
        if value is None:
            return [f"-{letter}"] if letter and dice.random() < 0.5 else [f"--{self._name(name)}"]
        form = dice.choice(["=", "=", " ", "short", "short "])
        if letter is None or not form.startswith("short") or LONG[name] == FLAG:
            form = form if form == " " and LONG[name] != OPTIONAL else "="
        if form == "=":
            return [f"--{self._name(name)}={value}"]
        if form == " ":
            return [f"--{self._name(name)}", value]
        if form == "short" or LONG[name] == OPTIONAL:
            return [f"-{letter}{value}"]
        return [f"-{letter}", value]

    def _name(self, name: str) -> str:
        if self.dice.random() < 0.9:
            return name
        return name[: self.dice.randint(2, len(name))]

    def _line(self, words: list[str]) -> str:
        quoted = " ".join(self._quoted(word) for word in words)
        space = self.dice.choice([" ", " ", "  ", "\t"])
        tail = self.dice.choice(["", "", "", " # a remark", "  ", "\t"])
        start = "#SBATCH" if self.dice.random() < 0.97 else self.dice.choice(["#SLURM", "#sbatch"])
        return start + space + quoted + tail

    def _quoted(self, word: str) -> str:
        if self.dice.random() < 0.02:
            return word
        plain = string.ascii_letters + string.digits + "-_=:,.%+/[]|&@;ü"
        if word and all(c in plain for c in word) and self.dice.random() < 0.8:
            return word
        style = self.dice.choice("'\"\\")
        if style == "'" and "'" not in word:
            # Between single quotes sbatch's reader takes a backslash like everywhere.
            return "'" + word.replace("\\", "\\\\") + "'"
        if style == "\\" and word:
            return "".join(c if c.isalnum() or c in "-=" else "\\" + c for c in word)
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def _script(self) -> bytes:
        dice = self.dice
        head = dice.choice(["#!/bin/sh", "#!/bin/bash", "#!/bin/bash -l", "#! /bin/sh"])
        lines = list(self.lines)
        for odd in (
            "",
            "# a note",
            "  # indented",
            "##SBATCH --nodes=99",
            "#SBATCH",
            "# SBATCH -x",
        ):
            if dice.random() < 0.08:
                lines.insert(dice.randint(0, len(lines)), odd)
        if dice.random() < 0.02:
            lines.append(dice.choice(["#PBS -N other", "#BSUB -J other", "#SBATCH hetjob"]))
        body = ["true", "#SBATCH --nodes=99 --late"]
        if dice.random() < 0.1:
            body = []
        end = "" if dice.random() < 0.1 else "\n"
        return ("\n".join([head, *lines, *body]) + end).encode()

    def _spoil_script(self) -> None:
        script = self.result.script or b""
        self.result.script = self.dice.choice([
            None, b"", b"\n" + script, script.replace(b"\n", b"\r\n"), script + b"\0", b"none\n",
            script.replace(b"#!", b"# !", 1), b"#!/bin/sh\n#SBATCH -J 'open\ntrue\n",
            b"#!/bin/sh\n#SBATCH --nodes\ntrue\n", b"#!/bin/sh\n#SBATCH --no-such=1\ntrue\n",
            b"#!/bin/sh\n#SBATCH -N1 : -N2\ntrue\n", b"#!/bin/sh\n#SBATCH -n1 stray\ntrue\n",
            b"#!/bin/sh\n#SBATCH --hadar-gpus=1\ntrue\n", b"\x7fELF\0\0\n", b"#!\n",
        ])  # fmt: skip

    def _how_given(self, words: list[str]) -> None:
        dice = self.dice
        how = dice.random()
        if how < 0.1:
            words.append(dice.choice(["--wrap=hostname", "--wrap=echo a b", "--wrap=true"]))
            if dice.random() < 0.1:
                words.append("job.sh")
        elif how < 0.3:
            self.result.typed = True
        else:
            if dice.random() < 0.1:
                words.append("--")
            words.append(dice.choice(["job.sh", "job.sh", "./job.sh"]))
            words += dice.choice([[], [], ["arg"], ["--nodes=99", "-x"], ["", "a b"], [":x"]])
            if dice.random() < 0.02:
                words.append(":")

    def _cut(self, words: list[str]) -> list[str]:
        dice = self.dice
        return dice.choice(
            [[*words, ":"], words[:-1], ["-n1", ":", *words], ["gone.sh"], ["/"], ["/dev/null"],
             [*words[:1], "--nodes"], ["-N"], ["--wrap"], ["--help"], ["--usage"], ["-V"],
             [*words[:2], "--version"], ["-Mother", *words]]
        )  # fmt: skip


class _JobMaker(_Maker):
    counts = (2, 3, 3, 4, 4, 5, 6, 7)
    faulty = 0.12
    declares = 0.75
    declared = (*DECLARED, "gpus=1-2", "types=v100,k80", "model=m gpus=2 types=any checkpoint=yes")
    ours = (*_Maker.ours, ["--hadar-gpus=1-2"], ["--hadar-types=v100,p100"])

    def _names(self, most: int) -> list[str]:
        often = min(most, 1 + sum(self.dice.random() < 0.6 for _ in range(most - 1)))
        found = self.dice.sample(OFTEN, often)
        rest = [name for name in self.good if name not in OFTEN]
        return found + self.dice.sample(rest, most - often)

    def _options(self, most: int) -> list[tuple[str, str | None]]:
        found = super()._options(most)
        names = {name for name, _ in found}
        if self.dice.random() < 0.6 and not names & ASKS_FOR_GPUS:
            name = self.dice.choice(sorted(ASKS_FOR_GPUS))
            found.append((name, self.dice.choice(self.good[name])))
        if self.dice.random() < 0.5 and not names & {"partition", "nodelist"}:
            found.append(("partition", self.dice.choice(["gpu", "gpu", "gpu", "v100", "v100,k80"])))
        return found
