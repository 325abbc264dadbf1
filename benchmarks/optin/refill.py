"""How long a freed GPU waits for the next job, where a job waits for one GPU such as this."""

from dataclasses import dataclass

from benchmarks.optin.overtaking import SETTLE_S, before, usable
from benchmarks.optin.records import RunRecord


@dataclass(frozen=True, slots=True)
class Refill:
    """A GPU of ``node`` was free for ``seconds``, then a job started there that had waited for it
    all the time. ``managed``: whether that one was."""

    node: str
    seconds: float
    managed: bool


def refills(run: RunRecord) -> list[Refill]:
    """Of each end of a job: the next start on its node, where the job that starts waited as the
    GPU was freed. Left out are ends that no job waited for, and starts of jobs on two GPUs."""
    jobs = run.by_name()
    starts = sorted((one.start_s, one.node, job.name) for job in run.jobs for one in job.attempts)
    taken: set[tuple[float, str, str]] = set()
    found = []
    ends = sorted((one.end_s, one.node, job.name) for job in run.jobs for one in job.attempts)
    for end_s, node, _ in ends:
        look = before(run.looks, end_s)
        if look is None:
            continue
        waiting = {
            row.name
            for row in look.waiting
            if max(row.eligible_s, jobs[row.name].submit_s) <= end_s - SETTLE_S
            and jobs[row.name].gpus == 1
            and usable(run, jobs[row.name], node)
        }
        following = (one for one in starts if one[1] == node and one[0] >= end_s)
        start = next((one for one in following if one not in taken), None)
        if start is not None and start[2] in waiting:
            taken.add(start)
            found.append(Refill(node, start[0] - end_s, jobs[start[2]].managed))
    return found
