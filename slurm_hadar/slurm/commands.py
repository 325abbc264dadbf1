"""Running one of Slurm's commands: argv lists, a clean environment, a time limit, clear errors."""

import codecs
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.slurm import output

_DROPPED = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCONTROL_", "SALLOC_", "SRUN_", "LD_")
_ID = re.compile(r"[1-9]\d{0,9}(_\d{1,10}|\+\d{1,10})?", re.ASCII)
_TASKS = re.compile(r"[1-9]\d{0,9}_\[[0-9,:-]{1,400}\]", re.ASCII)
_SIGNAL = re.compile(r"[A-Z][A-Z0-9]{1,15}", re.ASCII)

TASK_LIST_BYTES = "4096"
"""What Slurm shows of an array's waiting tasks: 64 bytes unless SLURM_BITSTR_LEN says more."""

BUSY = (
    "resource temporarily unavailable",
    "unable to contact slurm controller",
    "unexpected message received",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes were transmitted",
    "transport endpoint",
    "try again later",
    "standby mode",
    "temporarily unable to accept",
    "requested operation is presently disabled",
    "controller is not ready",
    "message receive failure",
    # What scontrol says of a requeue while slurmctld is down, after 9 s (22.05.8 and 24.11.5).
    "unexpected message received",
    "munge encode failed",
    "munge decode failed",
    "rate limit exceeded",
)
"""What Slurm says when the same request may succeed a little later."""


class TimedOut(SlurmError):
    """A command did not end in time; ``err`` is what it had said until then."""

    def __init__(self, message: str, err: str) -> None:
        super().__init__(message, retry=True)
        self.err = err


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Where Slurm's commands lie and how they are run. ``timeout_s`` holds for each run."""

    bin_dir: Path | None = None
    conf: Path | None = None
    timeout_s: float = 30.0

    def run(
        self,
        name: str,
        arguments: Sequence[str] = (),
        *,
        text: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Run a command to its end, with ``text`` on its standard input.

        Raises :class:`SlurmError` when it cannot be started or does not end in time; its exit
        status is for the caller to judge.
        """
        parts: list[str] = []
        code, err = self._exchange([name, *arguments], parts.append, text, env, timeout_s)
        return Answer(code, "".join(parts), err)

    def stream(self, name: str, arguments: Sequence[str], take: Callable[[str], None]) -> Answer:
        """As :meth:`run`, but what it prints goes to ``take`` as it comes."""
        code, err = self._exchange([name, *arguments], take)
        return Answer(code, "", err)

    def _exchange(
        self,
        argv: Sequence[str],
        take: Callable[[str], None],
        text: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, str]:
        """Exit status and standard error."""
        name = argv[0]
        limit = self.timeout_s if timeout_s is None else timeout_s
        program = str(self.bin_dir / name) if self.bin_dir else name
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            code, err = output.run(
                [program, *argv[1:]],
                text.encode(errors="surrogateescape"),
                clean_environment(env, self.conf),
                limit,
                lambda data: take(decoder.decode(data, final=not data)),
            )
        except subprocess.TimeoutExpired as late:
            raise TimedOut(
                f"{name} gave no answer within {limit:g} s; {_asked(name)} may be busy or down",
                (late.stderr or b"").decode(errors="replace"),
            ) from None
        except FileNotFoundError:
            where = f"in {self.bin_dir}" if self.bin_dir else "on PATH"
            raise SlurmError(
                f"{name} is not {where}; install Slurm's commands or set slurm.bin_dir"
            ) from None
        except output.OutputTooLarge:
            raise SlurmError(
                f"{name} printed more than {output.MOST_BYTES // 10**6} MB, which is the limit; it "
                "was ended"
            ) from None
        except (OSError, ValueError) as error:
            raise SlurmError(f"{name} could not be run: {error}") from None
        return code, err.decode(errors="replace")

    def read(self, name: str, arguments: Sequence[str]) -> str:
        """The output of a command that must succeed."""
        answer = self.run(name, arguments)
        if answer.code != 0:
            raise failure(name, answer)
        return answer.out


def _asked(name: str) -> str:
    return "slurmdbd" if name in ("sacct", "sacctmgr") else "Slurm"


def clean_environment(
    env: Mapping[str, str] | None = None, conf: Path | None = None
) -> dict[str, str]:
    """``env`` (None: ours) without what would change the commands' output or libraries.

    SLURM_CONF is ``conf``, or stays as the caller has it, which is how Slurm finds its own.
    """
    given = os.environ if env is None else env
    cleaned = {k: v for k, v in given.items() if not k.startswith(_DROPPED)}
    named = str(conf) if conf else given.get("SLURM_CONF") or os.environ.get("SLURM_CONF")
    if named:
        cleaned["SLURM_CONF"] = named
    cleaned["LC_ALL"] = "C"
    cleaned["SLURM_BITSTR_LEN"] = TASK_LIST_BYTES
    return cleaned


def failure(what: str, answer: Answer) -> SlurmError:
    """The error of a command that ended with a non-zero status."""
    lines = [clean_line(line) for line in answer.err.splitlines() if line.strip()]
    reason = "; ".join(lines[:3]) if lines else f"exit status {answer.code} and no reason given"
    return refusal(what, reason)


def refusal(what: str, reason: str) -> SlurmError:
    """The error for ``reason``, with ``retry`` where Slurm was merely busy."""
    return SlurmError(f"{what}: {reason[:500]}", retry=any(word in reason.lower() for word in BUSY))


def clean_line(line: str) -> str:
    """A line of Slurm's without its own name in front and without control characters."""
    bare = re.sub(r"^(?:\w+: )?error: ", "", line.strip())
    return "".join(c if c.isprintable() else "?" for c in bare)


def checked_id(job_id: str) -> str:
    """The id, when it has the form of one. Raises :class:`UsageError` otherwise."""
    if not _ID.fullmatch(job_id):
        shown = "".join(c if c.isprintable() else "?" for c in job_id[:40])
        raise UsageError(f"{shown!r} is no job id; write 123, or 84_2 for a task of an array")
    return job_id


def checked_record(job_id: str) -> str:
    """The id of a job, or of waiting tasks of an array such as ``84_[0-3,7]``, which Slurm changes
    without splitting their record (seen on 22.05.8 and 24.11.5). Raises :class:`UsageError`."""
    return job_id if _TASKS.fullmatch(job_id) else checked_id(job_id)


def checked_ids(ids: Iterable[str]) -> list[str]:
    """All of them checked."""
    return [checked_id(job_id) for job_id in ids]


def checked_signal(name: str) -> str:
    """A signal's name without SIG. Raises :class:`UsageError` for anything else."""
    short = name.upper().removeprefix("SIG")
    if not _SIGNAL.fullmatch(short):
        raise UsageError(f"{name[:20]!r} is no signal; write a name such as USR2")
    return short
