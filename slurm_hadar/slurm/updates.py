"""Job updates as scontrol's arguments, and which of them may go through its standard input.

What scontrol was seen to do (22.05.8 and 24.11.5):

- On standard input it splits at blanks and keeps quotes as part of the value: no way was found to
  pass a value with a blank there. As an argument of its own any text comes through unchanged.
- A line longer than 4 KiB is cut in two on 24.11.
- It names the job of most errors but not of all, and its exit status is that of the whole run.
  After an unknown word it prints ``invalid keyword: word`` on the same stream: such a word after
  every line tells which line an error belongs to.
- GPUs per node: ``Gres=gpu:2`` works on both. ``TresPerNode=gpu:2`` is refused on 24.11; on 22.05
  it is accepted but only ``TresPerNode=gres:gpu:2`` is checked. On 22.05 the GPU type cannot be
  changed and a typed request cannot become untyped.
- GPUs per job: ``TresPerJob=gres:gpu:2`` on 22.05, ``TresPerJob=gres/gpu:2`` on 24.11.
"""

import re
import shlex
import time
from collections.abc import Callable, Sequence

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.slurm import commands, tres
from slurm_hadar.slurm.interface import Update
from slurm_hadar.slurm.traffic import Paused

FIELDS = frozenset(
    {
        "AdminComment",
        "Comment",
        "CPUsPerTask",
        "ExcNodeList",
        "Features",
        "MailType",
        "MinCPUsNode",
        "MinMemoryCPU",
        "MinMemoryNode",
        "Nice",
        "NumCPUs",
        "NumNodes",
        "NumTasks",
        "Partition",
        "ReqNodeList",
        "Requeue",
        "StartTime",
        "TimeLimit",
        "TresPerJob",
        "TresPerNode",
    }
)
"""Fields that may be changed; anything else is refused before Slurm sees it."""

LINE_BYTES = 3500
"""Longest line for scontrol's standard input; 24.11 cuts at 4 KiB."""

_PATIENCE_S = 3.0
_BY_CHANCE = "resource temporarily unavailable"
"""Slurm's answer to a change of Partition where there is no accounting database: now and then on
22.05.8, 4 times of 5 on 26.05.5, whatever the load. So it is not waited for, only tried again."""
_MOST_TRIES = 25
_PLAIN = re.compile(r"[!-~]+")
_MARK = "hadar-mark-"
_COUNT = {
    "Nice": r"-?\d{1,10}",
    "NumNodes": r"\d{1,9}(-\d{1,9})?",
    "NumCPUs": r"\d{1,9}(-\d{1,9})?",
}


def update_arguments(update: Update, version: tuple[int, int, int]) -> list[str]:
    """The update as arguments of ``scontrol update``.

    Raises :class:`SlurmError` where a field is unknown or a value holds control characters.
    """
    try:
        found = [f"JobId={commands.checked_record(update.job_id)}"]
    except UsageError as error:
        raise SlurmError(str(error)) from None
    if not update.fields:
        raise SlurmError(f"job {update.job_id}: an update without fields")
    for key, value in update.fields.items():
        if key not in FIELDS:
            raise SlurmError(f"job {update.job_id}: {key!r} is no field that is changed here")
        if not value.isprintable():
            raise SlurmError(
                f"job {update.job_id}: {key} holds line breaks or control characters; "
                "Slurm is not given these"
            )
        if key in _COUNT and not re.fullmatch(_COUNT[key], value, re.ASCII):
            raise SlurmError(f"job {update.job_id}: {key}={value[:40]!r} is no number or range")
        found.append(_word(key, value, version))
    return found


def command_line(update: Update, version: tuple[int, int, int]) -> str:
    """The update as a shell command with the arguments that are sent to Slurm.

    Raises :class:`SlurmError` as :func:`update_arguments` does.
    """
    return shlex.join(["scontrol", "update", *update_arguments(update, version)])


def _word(key: str, value: str, version: tuple[int, int, int]) -> str:
    if key == "TresPerNode":
        return f"Gres={tres.bare(value)}"
    if key == "TresPerJob":
        return f"TresPerJob={tres.prefixed(value, version)}"
    return f"{key}={value}"


def plain(arguments: Sequence[str]) -> bool:
    """Whether these arguments come through scontrol's standard input unchanged."""
    safe = all(_PLAIN.fullmatch(word) and not set(word) & set("'\"\\") for word in arguments)
    return safe and sum(len(word) + 1 for word in arguments) < LINE_BYTES


def stdin_text(lines: Sequence[str]) -> str:
    """Lines for scontrol's standard input, each with a mark behind it."""
    return "".join(f"{line}\n{_MARK}{index}\n" for index, line in enumerate(lines))


def which_accepted(stderr: str, count: int) -> list[bool]:
    """For each of ``count`` lines: whether scontrol went past it without a word.

    A line whose mark is missing was not reached, or its messages cannot be assigned.
    """
    answers = [False] * count
    position = 0
    for index in range(count):
        mark = re.compile(rf"^invalid keyword: {_MARK}{index}$", re.MULTILINE)
        match = mark.search(stderr, position)
        if match is None:
            break
        answers[index] = not stderr[position : match.start()].strip()
        position = match.end()
    return answers


def patiently(
    attempt: Callable[[], SlurmError | None],
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> SlurmError | None:
    """Try again a few times, within about 3 s, while Slurm says that it is busy.

    One answer may take longer than that by itself, as where slurmctld is down; it is the last.
    """
    end = clock() + _PATIENCE_S
    answer = attempt()
    pauses = iter((0.05, 0.1, 0.2, 0.4, 0.8, 1.5))
    for _ in range(_MOST_TRIES - 1):
        if answer is None or not answer.retry or isinstance(answer, Paused):
            break
        by_chance = _BY_CHANCE in str(answer).lower()
        pause = 0.05 if by_chance else next(pauses, None)
        if pause is None or (clock() > end and not by_chance):
            break
        sleep(pause)
        answer = attempt()
    return answer
