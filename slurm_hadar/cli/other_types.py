"""What hbatch wrote of GPU types into a job's request, when its owner declares others later."""

from dataclasses import replace

from slurm_hadar.cli.additions import added_constraint
from slurm_hadar.cli.wrapper_site import WrapperSite
from slurm_hadar.config import Config, group_types
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering


def with_other_types(
    job: Job, declared: Declaration, config: Config, steered: Steering | None
) -> tuple[Declaration, dict[str, str]]:
    """The new declaration, and the fields of a waiting job that hbatch would write for it.

    Only a constraint and a list of partitions that hbatch wrote for what was declared before; the
    owner's own ``-C`` and ``-p``, and later changes by the owner, stay. ``steered``: what the
    controller did to the job. Raises :class:`UsageError` where the site has no such GPU.
    """
    before, was = job.declaration or Declaration(), steered.was if steered else {}
    if not config.gpu_types or job.request.typed:
        return declared, {}
    site = _site(config)
    fields: dict[str, str] = {}
    submitted = was.get("Features", job.features)
    added = _added(before, site)
    if added is None or (before.added and before.added == submitted):
        added = before.added
    new = added_constraint(declared, site)
    waits = job.state is JobState.PENDING
    if submitted and submitted == added and not before.constraint and submitted != new:
        if waits and "Features" not in was:
            fields["Features"] = new
            declared = replace(declared, added="")
        else:
            # Slurm changes no constraint of a job that runs, and the controller's own is its own.
            declared = replace(declared, added=submitted)
    own = ",".join(before.partitions)
    members = group_types(config).get(own, {})
    before_them = [name for name, kind in members.items() if _accepts(before, kind)]
    now = [name for name, kind in members.items() if _accepts(declared, kind)]
    listed = bool(before_them) and set(job.partitions) == set(before_them)
    # With types=any it may omit a type for its speed, which its owner names now.
    foreign = steered is not None and "Partition" in steered.foreign
    if ANY in before.types and ANY not in declared.types and not foreign:
        listed |= set(job.partitions) < set(before_them)
    if waits and listed and set(now) != set(job.partitions) and "Partition" not in was:
        fields["Partition"] = ",".join(now)
    return declared, fields


def _added(declared: Declaration, site: WrapperSite) -> str | None:
    try:
        return added_constraint(declared, site)
    except UsageError:
        return None


def _accepts(declared: Declaration, kind: str) -> bool:
    return not declared.types or ANY in declared.types or kind in declared.types


def _site(config: Config) -> WrapperSite:
    """The site as hbatch sees it, as far as its types go."""
    types = {
        name: {"feature": gpu.feature, "memory_gb": gpu.memory_gb}
        for name, gpu in config.gpu_types.items()
    }
    return WrapperSite(
        {
            "mode": config.site.mode,
            "exchange_dir": str(config.site.exchange_dir),
            "controller_uid": 0,
            "opt_in": [],
            "default_types": "",
            "sbatch": "sbatch",
            "types": types,
        }
    )
