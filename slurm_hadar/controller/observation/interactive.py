"""Interactive jobs, which are left alone: a person waits at them, and nothing starts them again."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache

from slurm_hadar.config import Guards
from slurm_hadar.domain.job import Job


def why(job: Job, guards: Guards) -> str:
    """Why a job counts as interactive, as a sentence; empty where it does not."""
    if job.het:
        return ""
    if not job.batch:
        return "it is interactive (salloc or srun)"
    if _names(guards.interactive_names).fullmatch(job.name):
        return "it is an interactive session, by its name (guards.interactive_names)"
    return ""


def applied(jobs: Mapping[str, Job], guards: Guards, ours: Collection[str]) -> dict[str, Job]:
    """The jobs, with why each interactive one that opted in is left alone.

    ``ours``: jobs that we have changed already: they stay managed to their end.
    """
    return {
        id_: replace(job, outside=reason)
        if job.declaration is not None
        and not (job.declaration.off or job.outside)
        and id_ not in ours
        and (reason := why(job, guards))
        else job
        for id_, job in jobs.items()
    }


@lru_cache(maxsize=4)
def _names(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(one) for one in patterns) or r"(?!)")
