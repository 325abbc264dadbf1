"""Policies of other packages, modules and files: loaded on request, and checked at each decision.

A package registers a policy with an entry point of the group ``slurm_hadar.policies`` that has the
name of its :class:`Policy`. An entry point that cannot be loaded is reported in one sentence and
affects nothing else.
"""

import json
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module, util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.record import Decide, Policy
from slurm_hadar.policies.validity import problems

GROUP = "slurm_hadar.policies"
_MOST_NAMED = 3


def registered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Name -> the entry points of that name. Loads none of them. Raises UsageError."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    try:
        for entry in entry_points(group=GROUP):
            found[entry.name] = (*found.get(entry.name, ()), entry)
    except Exception as error:
        raise UsageError(f"the policies of other packages cannot be listed: {error}") from None
    return dict(sorted(found.items()))


def source_of(entry: EntryPoint) -> str:
    """The package that offers a policy, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


def load(entries: tuple[EntryPoint, ...]) -> Policy:
    """The policy of an entry point. Raises UsageError if it cannot be loaded or two packages
    provide it."""
    entry = entries[0]
    sources = sorted({source_of(one) for one in entries})
    where = f"policy {entry.name} of {' and '.join(sources)}"
    if len({one.value for one in entries}) > 1:
        raise UsageError(f"{where} is offered more than once; uninstall one of them")
    try:
        policy = entry.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where} cannot be loaded: {_message(error)}") from None
    if not isinstance(policy, Policy):
        raise UsageError(f"{where}: {entry.value} is no slurm_hadar.api.Policy")
    if policy.name != entry.name:
        raise UsageError(f"{where} calls itself {policy.name}; both names must be the same")
    return guarded(policy, where)


def named(spec: str, *, files: bool) -> Policy:
    """The policy ``package.module:decide``, or with ``files`` also ``path/to/file.py:decide``. The
    name after the colon is that of a function or a :class:`Policy`. Raises UsageError."""
    where, _, attribute = spec.rpartition(":")
    if not where or not attribute.isidentifier():
        raise UsageError(f"{spec!r} names no policy; it must be package.module:decide")
    is_file = where.endswith(".py")
    if is_file and not files:
        raise UsageError(
            f"{spec}: only hadar simulate and hadar policies take a file; install its module"
        )
    module = _file(Path(where)) if is_file else _module(where, attribute, files)
    found = getattr(module, attribute, None)
    if isinstance(found, Policy):
        return guarded(found, f"policy {spec}")
    if not callable(found):
        raise UsageError(f"{where} has no function or policy {attribute}")
    last = Path(where).stem if is_file else where.rpartition(".")[2]
    try:
        policy = Policy(last if attribute == "decide" else f"{last}_{attribute}", found)
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from None
    return guarded(policy, f"policy {spec}")


def _module(name: str, attribute: str, files: bool) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"module {name} cannot be imported: {_message(error)}") from None
        hint = f"; a file is named as path/to/file.py:{attribute}" if files else ""
        raise UsageError(f"there is no module {name} for this Python{hint}") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name} cannot be imported: {_message(error)}") from None


def _file(path: Path) -> object:
    name = f"hadar_policy_{path.stem}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = util.module_from_spec(spec)
    # Dataclasses and pydantic models look up their own module there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} cannot be loaded: {_message(error)}") from None
    return module


def guarded(policy: Policy, where: str) -> Policy:
    """The policy with each of its answers checked.

    Its ``decide`` raises HadarError if the policy raises, or returns a plan that cannot be carried
    out or a state that is not JSON.
    """
    return replace(policy, decide=_checked(policy.decide, where))


def _checked(inner: Decide, where: str) -> Decide:
    def decide(view: View, state: State) -> tuple[Plan, State]:
        try:
            answer: object = inner(view, state)
        except HadarError:
            raise
        except Exception as error:
            raise HadarError(f"{where} failed: {_message(error)}") from error
        match answer:
            case (Plan() as plan, dict() as after):
                pass
            case _:
                raise HadarError(f"{where} returns no tuple of a Plan and a dict")
        wrong = problems(view, plan)
        if wrong:
            more = f", and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            found = "; ".join(wrong[:_MOST_NAMED]) + more
            raise HadarError(f"{where} made a plan that cannot be carried out: {found}")
        try:
            json.dumps(after)
        except (TypeError, ValueError) as error:
            raise HadarError(f"{where} returns a state that is not JSON: {error}") from None
        return plan, after

    return decide


def _message(error: BaseException) -> str:
    """The error in one line, with the source line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{at}" if text else f"{type(error).__name__}{at}"
