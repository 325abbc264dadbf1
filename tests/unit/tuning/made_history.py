"""Histories made for the tests, as sacct prints them, and the sites that they are of."""

import random
from datetime import datetime, timedelta

from slurm_hadar.tuning.sacct_history import COLUMNS

BEGIN = datetime(2026, 1, 5)
CONF = """\
ClusterName=made
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu,gres/gpu:v100,gres/gpu:k80
NodeName=v[1-2] CPUs=32 RealMemory=256000 Gres=gpu:v100:4 Feature=v100
NodeName=k[1-4] CPUs=32 RealMemory=256000 Gres=gpu:k80:4 \\
  Feature=k80 # the old ones
PartitionName=v100 Nodes=v[1-2] Default=YES MaxTime=2-0
PartitionName=k80 Nodes=k[1-4] MaxTime=2-0
"""


def line(
    id_: object,
    submit_h: float,
    start_h: float | None,
    end_h: float | None,
    kind: str = "v100",
    gpus: int = 1,
    account: str = "bio",
    name: str = "train",
    **other: str,
) -> str:
    """One job; hours after :data:`BEGIN`. None: it has not started, it has not ended."""

    def at(hours: float | None) -> str:
        return "Unknown" if hours is None else f"{BEGIN + timedelta(hours=hours):%FT%T}"

    tres = (
        f"billing=4,cpu={4 * gpus},gres/gpu:{kind}={gpus},gres/gpu={gpus},mem={16 * gpus}G,node=1"
    )
    cells = {
        "JobID": str(id_), "Account": account, "Partition": kind, "Submit": at(submit_h),
        "Eligible": at(submit_h), "Start": at(start_h), "End": at(end_h), "State": "COMPLETED",
        "NNodes": "1", "ReqTRES": tres, "AllocTRES": tres if start_h is not None else "",
        "Comment": "", "Constraints": "", "NodeList": f"{kind[0]}1", "JobName": name, **other,
    }  # fmt: skip
    return "|".join(cells[column] for column in COLUMNS)


def text(*lines: str) -> str:
    """With the header."""
    return "\n".join(["|".join(COLUMNS), *lines]) + "\n"


def queue_behind_v100(jobs: int = 120, seed: int = 1) -> str:
    """All ask for v100 and wait for its 8 GPUs in turn; the 16 k80 stand idle."""
    rng = random.Random(seed)
    free = [0.0] * 8
    lines = []
    for number in range(jobs):
        submit = number * 0.1
        free.sort()
        start = max(submit, free[0])
        free[0] = start + rng.uniform(2.0, 4.0)
        account = ("bio", "nlp", "vision")[number % 3]
        lines.append(line(1000 + number, submit, start, free[0], account=account))
    return text(*lines)


def everybody_at_once(jobs: int = 24) -> str:
    """Each type has what it needs: nobody waits, and no GPU idles while the jobs are there."""
    lines = []
    for number in range(jobs):
        kind = "v100" if number < 8 else "k80"
        lines.append(line(number + 1, 0.0, 0.0, 5.0, kind=kind, account="bio"))
    return text(*lines)
