"""``hadar policies``: the policies that are installed, and the options of each."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from slurm_hadar.cli.common import JsonOption, print_json
from slurm_hadar.policies import ListedPolicy, find, listed
from slurm_hadar.policies.options import PolicyOptions


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(policies)


def policies(
    name: Annotated[
        str, typer.Argument(help="Only this policy, with all options; or FILE.py:NAME.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the installed policies with source and options."""
    found = list(listed(name))
    if name and not any(row.policy for row in found):
        found = [ListedPolicy(name, name, find(name, files=True))]
    if as_json:
        print_json("policies", [_plain(row) for row in found])
        return
    for row in found:
        typer.echo("\n".join(_text(row, in_full=bool(name))))


def _plain(row: ListedPolicy) -> dict[str, object]:
    policy = row.policy
    if policy is None:
        return {"name": row.name, "source": row.source, "problem": row.problem}
    return {
        "name": policy.name,
        "source": row.source,
        "title": policy.title,
        "paper": policy.paper,
        "uses": sorted(policy.uses),
        "preempts": policy.preempts,
        "options": None if policy.options is None else list(_options(policy.options)),
    }


def _options(model: type[PolicyOptions]) -> Iterator[dict[str, str]]:
    from slurm_hadar.cli.manual_keys import default, takes

    said = _said(model)
    for name, field in model.model_fields.items():
        yield {
            "name": name,
            "takes": takes(field),
            "default": default(field),
            "meaning": field.description or said.get(name, ""),
        }


def _said(model: type[PolicyOptions]) -> dict[str, str]:
    """Field -> the string below it, in the class or in one that it comes from."""
    from slurm_hadar.cli.manual_keys import docstrings

    said: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        module = sys.modules.get(kind.__module__)
        if not issubclass(kind, PolicyOptions) or module is None:
            continue
        try:
            below = docstrings(module)
        except (OSError, TypeError, SyntaxError):
            # A package without its sources.
            continue
        said |= {field: text for (where, field), text in below.items() if where == kind.__name__}
    return said


def _text(row: ListedPolicy, in_full: bool) -> Iterator[str]:
    policy = row.policy
    yield f"{row.name}  ({row.source})"
    if policy is None:
        yield f"  not used: {row.problem}"
        return
    if policy.title:
        yield f"  {policy.title}"
    if policy.paper:
        yield f"  paper    {policy.paper}"
    yield f"  uses     {', '.join(sorted(policy.uses)) or 'GPU types and counts only'}"
    if policy.preempts:
        yield "  preempt  designed to stop running jobs: set guards.preempt = true"
    if policy.options is None:
        yield "  options  not declared"
        return
    options = list(_options(policy.options))
    if not options or not in_full:
        yield f"  options  {', '.join(one['name'] for one in options) or 'none'}"
        return
    for one in options:
        yield f"  {one['name']} = {one['default']}  ({one['takes']})"
        if one["meaning"]:
            yield f"      {one['meaning']}"
