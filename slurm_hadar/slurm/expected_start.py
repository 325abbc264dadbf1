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
    """sbatch's answer to ``--test-only``. ``start_s``: s since the epoch; ``refused``: why sbatch
    would reject the job, else empty; ``code``: its exit code; ``stderr``: its stderr."""

    start_s: float = 0.0
    nodes: str = ""
    partition: str = ""
    refused: str = ""
    code: int = 0
    stderr: str = ""


def start_of(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], script: bytes | None
) -> Start:
    """When Slurm alone would start the job. ``script``: content for its standard input. Raises
    HadarError if sbatch cannot be run or does not answer.

    Each such question uses up one Slurm job ID and changes nothing else.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *arguments],
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
    stderr = done.stderr.decode(errors="replace")
    match = _SAYS_START.search(stderr)
    if done.returncode == 0 and match:
        return Start(parse_date(match[1]), match[2], match[3] or "", stderr=stderr)
    lines = [
        clean_line(line).removeprefix("allocation failure: ")
        for line in stderr.splitlines()
        if line.strip()
    ]
    lines = [line for line in lines if not line.startswith("Try ")]
    why = lines[-1] if lines else "no reason given"
    return Start(refused=why, code=done.returncode, stderr=stderr)
