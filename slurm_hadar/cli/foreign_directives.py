"""``#PBS`` and ``#BSUB`` lines as the options that sbatch makes of them (xlate.c)."""

from __future__ import annotations

import getopt
import re

from slurm_hadar.cli.sbatch_parser import Header, split_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_OTHER_LINES = 100
_BSUB = "c:e:J:m:M:n:o:q:W:x", {
    "cwd=": "c", "error_file=": "e", "job_name=": "J", "hostname=": "m", "memory_limit=": "M",
    "output_file=": "o", "queue_name=": "q", "time=": "W", "exclusive": "x",
}  # fmt: skip
_PBS = "a:A:c:C:e:hIj:J:k:l:m:M:N:o:p:q:r:S:t:u:v:VW:z", {
    "start_time=": "a", "account=": "A", "checkpoint=": "c", "working_dir=": "C", "error=": "e",
    "hold": "h", "interactive": "I", "join=": "j", "job_array=": "J", "keep=": "k",
    "resource_list=": "l", "mail_options=": "m", "mail_user_list=": "M", "job_name=": "N",
    "out=": "o", "priority=": "p", "destination=": "q", "rerunable=": "r", "script_path=": "S",
    "array=": "t", "running_user=": "u", "variable_list=": "v", "all_env": "V", "attributes=": "W",
    "no_std": "z",
}  # fmt: skip
_SAME_BSUB = {
    "c": "chdir", "e": "error", "J": "job-name", "m": "nodelist", "M": "mem-per-cpu", "n": "ntasks",
    "o": "output", "q": "partition", "W": "time", "x": "exclusive",
}  # fmt: skip
_SAME_PBS = {
    "a": "begin", "A": "account", "e": "error", "h": "hold", "J": "array", "t": "array",
    "M": "mail-user", "N": "job-name", "o": "output", "p": "nice", "q": "partition", "v": "export",
}  # fmt: skip
_RESOURCES = {
    "cput": "time", "mem": "mem", "mpiprocs": "ntasks-per-node", "ncpus": "mincpus", "nice": "nice",
    "pcput": "time", "proc": "constraint", "select": "nodes", "walltime": "time", "file": "tmp",
}  # fmt: skip
_RESOURCE = re.compile(
    r"(accelerator|arch|cput|file|host|mem|mpiprocs|naccelerators|ncpus|nice|nodes|opsys|other|"
    r"pcput|pmem|proc|pvmem|select|software|vmem|walltime)="
)
_NODE_PART = re.compile(r"gpus=([^:+]*)|ppn=(\d*)|(\d+)|([A-Za-z][^:+]*)")


def translated(
    body: bytes, before: Mapping[str, str | None] | None = None
) -> list[tuple[str, str | None]]:
    """sbatch's options by long name, in order. Of the two kinds sbatch reads ``#BSUB`` first, and
    only one. Empty for lines that sbatch refuses. ``before``: what the ``#SBATCH`` lines set."""
    for magic, (shorts, longs) in (("#BSUB", _BSUB), ("#PBS", _PBS)):
        words = _words(body, magic)
        if words is None:
            continue
        try:
            given, rest = getopt.getopt(words, shorts, list(longs))
        except getopt.GetoptError:
            return []
        if rest:
            return []
        letters = {f"--{long.rstrip('=')}": letter for long, letter in longs.items()}
        pairs = [(letters.get(name, name[1:]), value) for name, value in given]
        if magic == "#BSUB":
            return _of_bsub(pairs)
        return [_behind(option, before or {}) for option in _of_pbs(pairs)]
    return []


def _words(body: bytes, magic: str) -> list[str] | None:
    """The text of all such lines; None where there is none."""
    header, others, found = Header(), 0, False
    for line in body.decode(errors="surrogateescape").split("\n"):
        if line.startswith(magic):
            found = True
            split_line(line[len(magic) :], header)
        elif not line.startswith("#"):
            others += 1
            if others > _MOST_OTHER_LINES:
                break
    return header.words if found else None


def _behind(
    option: tuple[str, str | None], before: Mapping[str, str | None]
) -> tuple[str, str | None]:
    """Some options of PBS add to what there is."""
    name, value = option
    own = before.get(name)
    if not own or not value or name not in ("gres", "export", "constraint"):
        return option
    return name, f"{value},{own}" if name == "constraint" else f"{own},{value}"


def _of_bsub(pairs: list[tuple[str, str]]) -> list[tuple[str, str | None]]:
    return [
        (_SAME_BSUB[letter], value.replace(" ", ",") if letter == "m" else value or None)
        for letter, value in pairs
    ]


def _of_pbs(pairs: list[tuple[str, str]]) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    for letter, value in pairs:
        if letter == "l":
            options += _resources(value)
        elif letter == "W" and value.lower().startswith("depend="):
            options.append(("dependency", value[len("depend=") :]))
        elif letter in _SAME_PBS:
            options.append((_SAME_PBS[letter], value or None))
    return options


def _resources(text: str) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    at = gpus = 0
    while at < len(text):
        match = _RESOURCE.match(text, at)
        if match is None:
            at += 1
            continue
        name, start = match[1], match.end()
        ends = ":" if name in ("mpiprocs", "ncpus", "select") else ","
        end = text.find(ends, start)
        end = len(text) if end < 0 else end
        value, at = text[start:end], end + 1
        if name == "nodes":
            options += _nodes(value)
        elif name == "naccelerators":
            gpus = int(value) if value.isdecimal() else 0
        elif name == "accelerator":
            gpus = max(gpus, int(value.lower().startswith("true")))
        elif name in _RESOURCES and value:
            memory = name in ("mem", "file")
            options.append((_RESOURCES[name], re.sub("[bB]$", "", value) if memory else value))
    return [*options, ("gres", f"gpu:{gpus}")] if gpus else options


def _nodes(text: str) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    count, per_node, names = 0, 0, []
    for gpus, tasks, number, name in _NODE_PART.findall(text):
        if gpus:
            options.append(("gpus-per-node", gpus))
        elif number:
            count += int(number)
        elif name:
            names.append(name)
        per_node += int(tasks or 0)
    if count:
        options.append(("nodes", str(count)))
    if per_node:
        options.append(("ntasks", str(per_node * max(count, 1))))
    if names:
        options.append(("nodelist", ",".join(names)))
    return options
