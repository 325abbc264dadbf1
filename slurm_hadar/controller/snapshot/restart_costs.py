"""What a restart of a job costs, in the order of what is known best: measured of the job itself, of
its owner's jobs of this model, declared or assumed.

What other users' jobs measured may shift what is declared or assumed by a factor, no further; and
no other job's restart excludes a job: a time limit is compared with :attr:`RestartCost.own_s`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from slurm_hadar.domain.job import Job
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.table import model_key

_FIRST_GUESS_S = 30.0
OTHERS_MOST = 2.0
"""Factor by which other users' jobs may shift an estimate."""


def first_guess_s(job: Job) -> float:
    """Seconds that a restart costs, before any was measured."""
    declared = job.declaration.restart_cost if job.declaration else 0.0
    return declared or _FIRST_GUESS_S


@dataclass(frozen=True)
class RestartCost:
    """``seconds``: what a restart is counted at; ``own_s``: the same without what other jobs
    measured; ``source``: where the seconds are from."""

    seconds: float
    own_s: float
    source: str


class RestartCosts:
    """Estimates from the restarts measured so far."""

    def __init__(self, measured: Mapping[tuple[int, str], float] | None = None) -> None:
        """``measured``: (uid, key of the model) -> s. Each user counts once in a median."""
        self._own = measured or {}
        by_model: defaultdict[str, list[float]] = defaultdict(list)
        by_user: defaultdict[int, list[float]] = defaultdict(list)
        for (uid, model), seconds in self._own.items():
            by_model[model].append(seconds)
            by_user[uid].append(seconds)
        self._of_model = {model: median(some) for model, some in by_model.items()}
        self._of_all = median(map(median, by_user.values())) if by_user else None

    def of(self, job: Job, model: str, progress: Progress | None) -> RestartCost:
        """The estimate for one job. ``model``: its :func:`eligibility.profile_key`; ``progress``:
        its own last report."""
        if progress is not None and progress.restart_s is not None:
            measured = progress.restart_s
            return RestartCost(measured, measured, "measured at this job's last restart")
        guess, model = first_guess_s(job), model_key(model)
        if (own := self._own.get((job.uid, model))) is not None:
            return RestartCost(own, guess, "measured of the owner's moved jobs of this model")
        declared = job.declaration is not None and job.declaration.restart_cost > 0
        source = "declared" if declared else "assumed, as none is declared"
        same_model = self._of_model.get(model)
        others = self._of_all if same_model is None else same_model
        if others is None:
            return RestartCost(guess, guess, source)
        seconds = min(max(others, guess / OTHERS_MOST), guess * OTHERS_MOST)
        whose = "all moved jobs" if same_model is None else "other users' moved jobs of this model"
        return RestartCost(
            seconds,
            guess,
            f"{guess:.0f} s {source}, corrected by {OTHERS_MOST:g} times at most by the "
            f"{others:.0f} s measured of {whose}",
        )
