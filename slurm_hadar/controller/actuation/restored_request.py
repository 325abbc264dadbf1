"""The request that a job gets back, of a job whose owner excludes GPU types.

Where hbatch or a plugin wrote a list of partitions for the declared types, that list alone says
them to Slurm: with the partition that the owner typed the job would start on any type.
"""

from collections.abc import Collection, Mapping

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.job_updates import asked_for
from slurm_hadar.controller.snapshot.constraints import with_feature
from slurm_hadar.controller.snapshot.resource_request import (
    declares,
    excludes,
    features_of,
)
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering


def restored(job: Job, steered: Steering, config: Config) -> job_updates.Fields:
    """What must be changed so that the job's request is its owner's again; see
    :func:`within_types`."""
    fields = job_updates.undo_fields(job, steered)
    return within_types(job, steered, fields, config)


def within_types(
    job: Job,
    steered: Steering,
    fields: Mapping[str, str],
    config: Config,
    *,
    keeps_list: bool = True,
) -> job_updates.Fields:
    """``fields``, which give a job its owner's partitions or features, without the GPU types that
    its owner excludes by ``types`` or ``gpu_mem``.

    ``keeps_list``: a list of partitions of just the accepted types says them, the present one or
    that of the submit. Else, and where there is none, features do beside the owner's partition; a
    job in whose constraint they cannot be written keeps its partitions.
    """
    found, declaration = dict(fields), job.declaration
    if declaration is None or job.request.typed or found.keys().isdisjoint(_SAY_TYPES):
        return found
    names = found.get("Partition", job_updates.current(job, "Partition"))
    members = _members(names, config)
    reached = set(members.values()) if members is not None else set(config.gpu_types)
    accepted = [kind for kind in config.gpu_types if declares(declaration, kind, config)]
    excluded = reached - {*accepted}
    features = found.get("Features", job.features)
    if not excluded or excludes(features, excluded, config):
        return found
    ours = "Partition" not in steered.foreign
    wanted = {name for name, kind in (members or {}).items() if kind in accepted}
    present = job.partitions if job.state is JobState.PENDING else ()
    for names_of_types in (present, declaration.listed) if keeps_list and ours else ():
        if wanted and {*names_of_types} == wanted:
            found["Partition"] = ",".join(names_of_types)
            return _without_present(found, job)
    open_to_it = [kind for kind in accepted if kind in reached]
    more = _with_types(features, open_to_it, excluded, config)
    if not more:
        found.pop("Partition", None)
        return found
    return found | {"Features": more}


def limited_to_types(
    job: Job, fields: Mapping[str, str], kinds: Collection[str], config: Config
) -> job_updates.Fields:
    """``fields``, with the features that keep a waiting job, in partitions that its owner set, from
    the GPU types that its owner excludes. They come beside the owner's, which stay.

    ``kinds``: the GPU types of these partitions. Nothing is added where the owner's partitions or
    features leave the job no type that it accepts: that is for the owner to change.
    """
    declaration = job.declaration
    if declaration is None or job.request.typed:
        return dict(fields)
    accepted = [k for k in config.gpu_types if k in kinds and declares(declaration, k, config)]
    features = fields.get("Features", job.features)
    excluded = {*kinds} - {*accepted}
    if not excluded or excludes(features, excluded, config):
        return dict(fields)
    more = _with_types(features, accepted, excluded, config)
    return {**fields, "Features": more} if more else dict(fields)


def _with_types(
    features: str, accepted: Collection[str], excluded: Collection[str], config: Config
) -> str:
    """``features`` that allow the ``accepted`` GPU types only; empty where none would be left, or
    where this cannot be written."""
    if not accepted or excludes(features, accepted, config):
        return ""
    either = features_of(accepted, config)
    more = with_feature(features, f"({either})" if features and "|" in either else either)
    return more if excludes(more, excluded, config) else ""


def restored_where_it_fits(
    job: Job, steered: Steering, fields: Mapping[str, str], config: Config
) -> job_updates.Fields:
    """``fields``, which restore the request of a waiting job that fits nowhere in a partition of
    its list: with a list that fits, where the owner's features are what does not fit the present
    one; else as :func:`within_types`, without a list."""
    features = fields.get("Features", job.features)
    names = fitting_list(job, steered, features, config) if features else ()
    if names and {*names} != {*job.partitions}:
        return {**fields, "Partition": ",".join(names)}
    return within_types(job, steered, fields, config, keeps_list=False)


def fitting_list(job: Job, steered: Steering, features: str, config: Config) -> tuple[str, ...]:
    """The partitions of one GPU type in which a waiting job can run: of the types that its owner
    accepts those that ``features`` allow too, in the order of the submit. Slurm holds a job with
    the reason BadConstraints where one partition of its list has no node with these features.

    Empty where the owner set the partitions, or asked for no group of the site, or where no type
    is left.
    """
    declaration = job.declaration
    if declaration is None or job.request.typed or "Partition" in steered.foreign:
        return ()
    owners = asked_for(job, steered, config).get("Partition", "")
    members = group_types(config).get(owners, {})
    first = [name for name in declaration.listed if name in members]
    return tuple(
        name
        for name in dict.fromkeys((*first, *members))
        if declares(declaration, members[name], config)
        and not excludes(features, {members[name]}, config)
    )


_SAY_TYPES = frozenset({"Features", "Partition"})


def _members(names: str, config: Config) -> dict[str, str] | None:
    """The partitions of one GPU type that these stand for or are, each with its type; empty of
    partitions that are in no group of the site, None of a group whose types are not known."""
    groups, found = group_types(config), dict[str, str]()
    each = {name: kind for members in groups.values() for name, kind in members.items()}
    for name in names.split(","):
        if name in config.partitions.groups and name not in groups:
            return None
        found |= groups.get(name, {name: each[name]} if name in each else {})
    return found


def _without_present(fields: job_updates.Fields, job: Job) -> job_updates.Fields:
    """Without a list of partitions that a waiting job has, in whatever order."""
    waits = job.state is JobState.PENDING
    if waits and {*fields["Partition"].split(",")} == {*job.partitions}:
        return {key: value for key, value in fields.items() if key != "Partition"}
    return fields
