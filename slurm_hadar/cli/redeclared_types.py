"""What hbatch wrote of GPU types into a job's request, when its owner declares others later."""

from collections.abc import Collection
from dataclasses import replace

from slurm_hadar.cli.additions import added_constraint
from slurm_hadar.cli.wrapper_site import WrapperSite
from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.observation.access import declared_list
from slurm_hadar.controller.snapshot.at_risk import may_stop_for_s
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering


def refuse_unknown(job: Job, declared: Declaration, config: Config) -> None:
    """Raises :class:`UsageError` where the site has no GPU that a job declares, which declared
    nothing before."""
    if config.gpu_types and not job.request.typed:
        added_constraint(declared, _site(config))


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
    now = declared_list(declared, config)
    # With types=any it may omit a type for its speed, which is known to hbatch only.
    again = ANY in before.types and ANY in declared.types
    written = now and not again and _hbatchs(_list_of(job, steered), before, config, steered)
    if waits and written and set(now) != set(job.partitions):
        fields["Partition"] = ",".join(now)
        declared = replace(declared, listed=now)
    return declared, fields


def left_out(
    job: Job, declared: Declaration, config: Config, steered: Steering | None, sent: Collection[str]
) -> str:
    """A sentence on the declared types that the job's list of partitions keeps it from, with what
    to do; empty where there are none. ``sent``: names of the fields that the command changes."""
    now = declared_list(declared, config)
    was = steered.was if steered else {}
    waits = job.state is JobState.PENDING
    if "Partition" in sent:
        return ""
    names = _list_of(job, steered)
    if not now:
        return _own_list(job, declared, config, names) if waits else ""
    if not waits and "Partition" not in was and names != list(declared.partitions):
        # Slurm shows the one in which it runs; the list is back once it is requeued.
        before = job.declaration or Declaration()
        names = list(before.listed or declared_list(before, config) or now)
    if names == list(declared.partitions):
        return ""
    types = group_types(config)[",".join(declared.partitions)]
    kinds = [types[name] for name in now if name not in names]
    if not kinds:
        return ""
    why, command = "", f"scontrol update JobId={job.id} Partition={','.join(now)}"
    before = job.declaration or Declaration()
    again = ANY in before.types and ANY in declared.types
    if again and _hbatchs(names, before, config, steered):
        why = f": types={ANY} omits types on which the job would be far slower"
        command = f"hadar set {job.id} types={','.join(types[name] for name in now)}"
    return (
        f"its list of partitions stays {','.join(names)}, without {' and '.join(kinds)}{why}; "
        f"{'' if waits else 'once it waits again '}run: {command}"
    )


def _own_list(job: Job, declared: Declaration, config: Config, names: Collection[str]) -> str:
    """The same of a waiting job with its owner's own list ``names``, each of one known type."""
    types = {name: kind for group in group_types(config).values() for name, kind in group.items()}
    if not names or not {*names} <= {*types}:
        return ""
    mine = {types[name] for name in names}
    others = {kind: name for name, kind in types.items() if kind not in mine}
    more = {kind: others[kind] for kind in declared.types if kind in others}
    if not more:
        return ""
    return (
        f"its list of partitions stays {','.join(names)}, without {' and '.join(more)}; "
        f"run: scontrol update JobId={job.id} Partition={','.join((*names, *more.values()))}"
    )


def may_be_moved_there(
    job: Job, declared: Declaration, config: Config, steered: Steering | None, now: float
) -> bool:
    """Whether a controller that acts may move a running job to each type that it declares, also to
    those that :func:`left_out` names; one with ``checkpoint=restart`` while it may still lose what
    it has done."""
    ours, groups = steered or Steering(), config.partitions.groups
    want = resource_request(replace(job, declaration=declared), ours, config)
    if job.state is JobState.PENDING or isinstance(want, str):
        return False
    may_move = declared.moves_later or (
        declared.may_move and may_stop_for_s(replace(job, declaration=declared), None, now) > 0
    )
    if not (may_move and job.requeue) or job.expedited:
        return False
    opened = {one for name in want.partitions for one in groups.get(name, (name,))}
    return want.of_one_type and set(declared_list(declared, config)) <= opened


def _hbatchs(
    names: Collection[str], before: Declaration, config: Config, steered: Steering | None
) -> bool:
    """Whether a list is the one that hbatch, or ``hadar set``, wrote for what was declared
    ``before``."""
    written = before.listed or declared_list(before, config)
    theirs = steered is not None and "Partition" in steered.foreign
    return bool(written) and {*names} == {*written} and not theirs


def _list_of(job: Job, steered: Steering | None) -> list[str]:
    """The list of partitions that the job has but for the controller's order: as it was submitted,
    or as its owner changed it since, which the controller may not have seen yet."""
    listed = job.declaration.listed if job.declaration else ()
    if steered is None or "Partition" not in steered.was or {*listed} == {*job.partitions}:
        return list(job.partitions)
    ours = [each["Partition"] for each in (steered.wrote, steered.unsure) if "Partition" in each]
    waits = job.state is JobState.PENDING
    if waits and ours and all({*job.partitions} != {*each.split(",")} for each in ours):
        return list(job.partitions)
    return steered.was["Partition"].split(",")


def _added(declared: Declaration, site: WrapperSite) -> str | None:
    try:
        return added_constraint(declared, site)
    except UsageError:
        return None


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
