"""When Slurm alone would start a job that is not submitted."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.slurm.commands import clean_line
from slurm_hadar.slurm.times import parse_date

_SAYS_START = re.compile(
    r"to start at (\S+) using \d+ \w+ on (?:nodes )?(\S+)(?: in partition (\S+))?"
)
_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Start:
    """sbatch's answer to ``--test-only``. ``start_s`` since the epoch; ``refused``: why it would
    not take the job, else empty; ``code``: its exit code; ``said``: its stderr."""

    start_s: float = 0.0
    nodes: str = ""
    partition: str = ""
    refused: str = ""
    code: int = 0
    said: str = ""


def start_of(
    program: str, words: Sequence[str], environment: Mapping[str, str], script: bytes | None
) -> Start:
    """When Slurm alone would start the job. ``script``: what comes on its standard input.

    Slurm counts a job number on for each such question, and keeps nothing else.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *words],
            executable=program,
            env=dict(environment),
            input=script,
            stdin=subprocess.DEVNULL if script is None else None,
            capture_output=True,
            # A script that came down a pipe waits behind its number.
            close_fds=False,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HadarError(f"sbatch --test-only gave no answer within {_LIMIT_S:g} s") from None
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None
    said = done.stderr.decode(errors="replace")
    match = _SAYS_START.search(said)
    if done.returncode == 0 and match:
        return Start(parse_date(match[1]), match[2], match[3] or "", said=said)
    lines = [
        clean_line(line).removeprefix("allocation failure: ")
        for line in said.splitlines()
        if line.strip()
    ]
    lines = [line for line in lines if not line.startswith("Try ")]
    return Start(refused=lines[-1] if lines else "no reason given", code=done.returncode, said=said)
