"""A submit to which hbatch added a list of partitions: where Slurm refuses it for that list, it is
submitted as typed, and what sbatch said of the refusal is not shown.
"""

from __future__ import annotations

import os

from slurm_hadar.cli.real_sbatch import run_sbatch
from slurm_hadar.cli.sbatch_stderr import SbatchStderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_hadar.cli.additions import Additions
    from slurm_hadar.cli.submit import Submit, SubmitOutcome

_FAILED = b"batch job submission failed: "
"""What sbatch says of a job that slurmctld has refused, before the reason."""
_OF_PARTITIONS = (
    b"partition",
    b"access/permission denied",
    b"accounting/qos policy",
    b"node configuration is not available",
    b"memory",
    b"qos specification",
    b"time limit",
    b"unspecified error",
)
"""Parts of the reasons that go by the partitions; a job_submit plugin has the last one. Each is
slurmctld's own answer, so there is no job; an answer that never came, after which there may be
one, has none of them."""


def run(
    submit: Submit,
    outcome: SubmitOutcome,
    meanwhile: Callable[[], None],
    say: Callable[[str], None],
) -> tuple[int, bool]:
    """Run sbatch with a list of partitions, and once more without where Slurm refuses the job for
    it, which is said. Returns sbatch's exit code, and whether it was refused."""
    messages = SbatchStderr()
    words = submit.sbatch_arguments(outcome.added)
    code = run_sbatch(submit.program(), words, submit.environment, meanwhile, messages)
    why = refusal(messages.end()) if code else ""
    if not why:
        messages.show()
        return code, False
    if submit.name == "stdin":
        # Our copy of the script, which sbatch has read.
        os.lseek(0, 0, os.SEEK_SET)
    outcome.added = without_list(submit, outcome)
    # Under --wait sbatch ends with the job, too late for it.
    waits = "wait" in submit.held
    if waits:
        say(_sentence(why))
    code = submit.run(outcome.added, lambda: None)
    if code == 0 and not waits:
        say(_sentence(why))
    return code, True


def without_list(submit: Submit, outcome: SubmitOutcome) -> Additions | None:
    """What is added to the job where it keeps the partition that its owner typed."""
    if outcome.declaration is None or not (outcome.added and outcome.added.listed):
        return outcome.added
    from slurm_hadar.cli.additions import add

    added = add(outcome.declaration, submit.held, submit.site, lambda: None)
    return None if isinstance(added, str) else added


def _sentence(reason: str) -> str:
    """Without a digit: who looks for the job's number in all that is printed finds sbatch's."""
    why = "" if any(letter.isdigit() for letter in reason) else f" ({reason})"
    return (
        f"Slurm refuses a list of the partitions of its GPU types{why}, so the job stays in the "
        "partition that it asks for"
    )


def refusal(said: bytes) -> str:
    """The reason for which Slurm has refused a job, where other partitions may change that; empty
    for any other. ``said``: what sbatch wrote to stderr."""
    for line in said.splitlines():
        _, failed, reason = line.lower().rpartition(_FAILED)
        if failed and any(part in reason for part in _OF_PARTITIONS):
            return line[-len(reason) :].decode(errors="replace").strip()
    return ""
