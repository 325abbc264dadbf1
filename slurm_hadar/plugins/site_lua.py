"""The site's settings as the Lua table that job_submit and cli_filter load once."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from slurm_hadar.config import Config, Rollout, group_types
from slurm_hadar.policies import makes_copies

_UNTYPE = "--untype"
_OPTIONS = re.compile(r"^-- Its options:((?: --[a-z]+)*)$", re.M)
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:/@+*|&()!-]")


@dataclass(frozen=True)
class SlurmFacts:
    """What slurm.conf and the plugins' folder say.

    ``features`` of the site's nodes: a type whose feature none has is left out, since Slurm rejects
    a job that asks for it. ``partitions`` that a job may get a list of: a group with another member
    is left out for the same reason, and so are ``unlike`` groups, which differ from their members.
    ``default_partition``: Slurm's, which cli_filter does not get. ``job_submit``: slurmctld loads
    ours, which reports a wrong declaration, so cli_filter does not.
    """

    features: Collection[str] = ()
    partitions: Collection[str] = ()
    unlike: Collection[str] = ()
    default_partition: str = ""
    job_submit: bool = False


def site_lua(config: Config, facts: SlurmFacts, *, untype: bool) -> str:
    """Text of ``site.lua``. ``untype``: a request for one GPU type becomes an untyped one with that
    type's feature. Raises :class:`UsageError` where ``site.controller_user`` does not exist."""
    known = {name: gpu for name, gpu in config.gpu_types.items() if gpu.feature in facts.features}
    types = [
        f"    [{quoted(name)}] = {{feature = {quoted(gpu.feature)}, "
        f"memory_mb = {int(gpu.memory_gb * 1024)}}},"
        for name, gpu in known.items()
    ]
    groups = [
        f"    [{quoted(name)}] = {{{', '.join(map(_pair, members.items()))}}},"
        for name, members in group_types(config).items()
        if config.site.mode == "act"
        and members.keys() <= set(facts.partitions)
        and name not in facts.unlike
    ]
    opt_in = "".join(f"[{quoted(name)}] = true, " for name in config.partitions.opt_in)
    order = ", ".join(map(quoted, known))
    return "\n".join(
        [
            "-- Written by 'hadar plugins install' from the site's configuration.",
            f"-- Its options:{f' {_UNTYPE}' if untype else ''}",
            "return {",
            f"  untype = {_flag(untype)},",
            f"  job_submit = {_flag(facts.job_submit)},",
            f"  quiet = {_flag(config.wrapper.quiet)},",
            f"  default_types = {quoted(config.wrapper.default_types)},",
            f"  default_partition = {quoted(facts.default_partition)},",
            f"  exchange_dir = {quoted(str(config.site.exchange_dir))},",
            f"  copies = {_flag(makes_copies(config.controller.policy))},",
            f"  controller_uid = {config.controller_uid},",
            *_rollout(config.rollout),
            f"  opt_in = {{{opt_in.rstrip(', ')}}},",
            f"  order = {{{order}}},",
            # In the order of the configuration. hbatch makes no list either where no controller
            # acts, which would give it back where Slurm finds no place for a job.
            "  groups = {",
            *groups,
            "  },",
            "  types = {",
            *types,
            "  },",
            "}",
            "",
        ]
    )


def _rollout(found: Rollout) -> list[str]:
    """Nothing where every job that opts in is managed."""
    if not (found.accounts or found.users or found.percent < 100):
        return []

    def names(those: Collection[str]) -> str:
        return f"{{{', '.join(f'[{quoted(name)}] = true' for name in those)}}}"

    return [
        f"  rollout = {{accounts = {names(found.accounts)}, users = {names(found.users)}, "
        f"percent = {found.percent:g}}},"
    ]


def options_in(text: str) -> tuple[str, ...]:
    """The options of ``hadar plugins install`` that a ``site.lua`` was written with; those that
    this release does not have are left out."""
    found = _OPTIONS.search(text)
    return tuple(one for one in found[1].split() if one == _UNTYPE) if found else ()


def quoted(text: str) -> str:
    """A Lua string of any text: whatever is not plain is written as its bytes."""
    return (
        '"'
        + "".join(
            c if _PLAIN.match(c) else "".join(f"\\{byte:03d}" for byte in c.encode()) for c in text
        )
        + '"'
    )


def _pair(two: tuple[str, str]) -> str:
    return f"{{{', '.join(map(quoted, two))}}}"


def _flag(value: bool) -> str:
    return "true" if value else "false"
