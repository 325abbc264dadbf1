"""Groups of ``[partitions.groups]`` that do not work with what Slurm shows now, and why."""

from collections.abc import Iterator, Mapping, Sequence

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import why_not_alike
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.node import Partition

_CURE = "hadar check names the remedy"


def lacks(name: str) -> str:
    """That a partition of the configuration is not there."""
    return f"this Slurm has no partition {name}"


def _unchanged(name: str) -> str:
    """What becomes of jobs that ask for a partition whose group does not work."""
    return f"so jobs that ask for {name} stay in it"


def member_problem(member: str, types: Sequence[str], config: Config) -> str:
    """Why a partition is no member of a group; empty where it is one. ``types``: of its GPUs."""
    if len(types) > 1:
        return f"partition {member} has the GPU types {', '.join(types)}"
    if not types:
        return f"partition {member} has no GPU"
    (kind,) = types
    if kind == UNTYPED:
        return f"partition {member} has GPUs without a type"
    if member in names_for(kind, config):
        return ""
    return (
        f"partition {member} has the GPU type {kind} and another name, so hbatch does not know its "
        "type"
    )


def names_for(kind: str, config: Config) -> Sequence[str]:
    """What the partition of a GPU type may be called: as the type, or as its feature."""
    known = config.gpu_types.get(kind)
    return list(dict.fromkeys((kind, known.feature if known else kind)))


def group_problems(observation: Observation, config: Config) -> dict[str, str]:
    """Group that does not work -> a sentence that names it, what is wrong, and what to do."""
    found = {}
    for name, members in config.partitions.groups.items():
        why = next(_problems(observation, config, name, members), "")
        if why:
            found[name] = f"partitions.groups.{name}: {why}; {_CURE}"
    return found


def _problems(
    observation: Observation, config: Config, name: str, members: Sequence[str]
) -> Iterator[str]:
    there: Mapping[str, Partition] = observation.partitions
    missing = [one for one in (name, *members) if one not in there]
    if name in missing:
        yield lacks(" and no partition ".join(missing))
    elif missing:
        yield f"{lacks(' and no partition '.join(missing))}, {_unchanged(name)}"
    elif why := why_not_alike(there[name], [there[one] for one in members]):
        yield f"{why}, {_unchanged(name)}"
    elif observation.nodes:
        for member in members:
            if why := member_problem(member, sorted(observation.gpu_types[member]), config):
                yield why


def group_news(known: Mapping[str, object], found: Mapping[str, str]) -> list[str]:
    """What has changed since an earlier look, which found ``known``: a sentence where a group
    stops to work, or for another reason, and one where it works again."""
    new = [words for name, words in found.items() if known.get(name) != words]
    return [*new, *(f"partitions.groups.{name} works again" for name in known if name not in found)]
