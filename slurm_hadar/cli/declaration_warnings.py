"""Declarations that can hardly be meant as they stand: what hbatch says of them before it submits.

Imported where something was declared, or the script's text has our name in it.
"""

# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH118, PTH120

from __future__ import annotations

import os
import re

from slurm_hadar.cli.additions import gpu_request
from slurm_hadar.domain.declaration import ANY, KEYS, Declaration
from slurm_hadar.domain.errors import HadarError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from slurm_hadar.cli.additions import Settings
    from slurm_hadar.cli.wrapper_site import WrapperSite

FEW_GPUS = 8
"""Slurm itself refuses a smaller number that no node has; for a larger one it is asked what there
is, which takes some 20 ms."""
_ASK_S = 5.0
_LEAST_MB = 1000
"""A smaller number of MB without a unit is taken for GB."""
_LIKE = 0.8
_LOOKALIKE = (
    rb"[ \t]*#[ \t]*(h\w{2,7})[ \t]*:?[ \t]+(?:[^#]*[ \t])?(?:%s)=[^ \t]" % "|".join(KEYS).encode()
)
_OURS = (b"#HADAR ", b"#HADAR\t", b"#HADAR\r")
_MOST_LOOKALIKES = 3


def lookalikes(body: bytes, name: str) -> list[str]:
    """A sentence for each line of a script that declares in nearly our form and is not read: a
    ``#HADAR`` line counts at its very beginning, before the first command."""
    found: list[str] = []
    head = True
    for number, line in enumerate(body.split(b"\n"), 1):
        stripped = line.strip()
        head = head and (not stripped or stripped.startswith(b"#"))
        if not head and b"<<" in line:
            # What follows may be another script that this one writes.
            break
        if stripped[:1] != b"#" or (head and line.startswith(_OURS)):
            continue
        match = re.match(_LOOKALIKE, line, re.IGNORECASE)
        if match is None or not _like_hadar(match[1].decode().lower()):
            continue
        if head:
            what = "is a comment; did you mean #HADAR at its very beginning?"
        else:
            what = "comes after the first command; move it up to the #SBATCH lines"
        found.append(f"line {number} of {name} declares nothing: it {what}")
        if len(found) == _MOST_LOOKALIKES:
            break
    return found


def _like_hadar(word: str) -> bool:
    from difflib import SequenceMatcher

    return word == "hadar" or SequenceMatcher(None, word, "hadar").ratio() >= _LIKE


def doubts(
    declaration: Declaration, typed: Mapping[str, str], held: Settings, site: WrapperSite | None
) -> Iterator[str]:
    """A sentence for each part of a declaration that has no effect, or another than it seems.

    ``typed``: key -> value as the owner wrote it; ``held``: what the owner set by sbatch's options.
    """
    if not declaration.total_samples and (declaration.epochs or declaration.dataset_size):
        key, other = (
            ("epochs", "dataset_size") if declaration.epochs else ("dataset_size", "epochs")
        )
        yield (
            f"{key}={typed.get(key, getattr(declaration, key))} has no effect without {other}=N "
            "(their product is the work in samples)"
        )
    for key in ("gpu_mem", "mem"):
        text = typed.get(key, "")
        numbers = re.split("[-:]", text)
        if all(part.isdecimal() for part in numbers) and int(numbers[-1]) < _LEAST_MB:
            more = "-".join(f"{part}G" for part in numbers)
            yield f"{key}={text} is in MB; did you mean {key}={more}?"
    if "wait" in typed and not declaration.total_samples:
        yield f"wait={typed['wait']} has no effect without samples=N: when it would end is unknown"
    yield from of_saving(declaration, typed)
    if "wait" in held and declaration.habit == "signal" and declaration.checkpoint_exit_code:
        yield (
            "--wait returns when the job first leaves to be moved, with checkpoint_exit_code="
            f"{declaration.checkpoint_exit_code}; a script that requeues itself goes on waiting"
        )
    yield from _of_requeues(declaration, held, site)
    if declaration.checkpoint and "no-requeue" in held and "requeue" not in held:
        yield (
            f"--no-requeue keeps the job where it starts, so checkpoint={declaration.habit} has no "
            "effect; submit it without --no-requeue"
        )
    if declaration.may_move and (held.get("open-mode") or "").lower().startswith("t"):
        yield (
            f"--open-mode={held['open-mode']}: a move writes the job's output file anew, and what "
            "it printed before is lost; leave the option out to keep it"
        )
    yield from _of_backfill(declaration, held, site)
    yield from _of_several_nodes(declaration, held, site)
    yield from _of_the_model(declaration.model, site)
    yield from _of_the_types(declaration.types, held, site)


def of_saving(declaration: Declaration, typed: Mapping[str, str]) -> Iterator[str]:
    """Keys of ``typed`` that do nothing beside the ``checkpoint`` of the whole declaration."""
    habit = declaration.habit
    if "signal" in typed and habit not in ("signal", "yes"):
        yield f"signal={typed['signal']} has no effect without checkpoint=signal"
    least, most = declaration.batch or (0, 0)
    if {"batch", "checkpoint"} & typed.keys() and least < most and habit not in ("", "yes"):
        yield (
            f"batch={least}:{most} has no effect with checkpoint={habit}: another batch needs "
            "checkpoint=yes"
        )
    if habit == "restart" and not declaration.lose:
        yield "checkpoint=restart has no effect without lose=SECONDS: the work that it may lose"
    if "lose" in typed and habit not in ("restart", "watch"):
        yield f"lose={typed['lose']} has no effect without checkpoint=restart or watch:PATH"
    if "checkpoint_exit_code" in typed and habit != "signal":
        yield "checkpoint_exit_code has no effect without checkpoint=signal"
    if "progress" in typed and habit == "yes":
        yield "progress has no effect with checkpoint=yes: the runtime reports it"


def _partitions(held: Settings) -> set[str]:
    """Those that the owner named."""
    return {name for name in (held.get("partition") or "").split(",") if name}


def _of_requeues(
    declaration: Declaration, held: Settings, site: WrapperSite | None
) -> Iterator[str]:
    if not declaration.max_requeues:
        return
    known = site.chain if site is not None else None
    named = _partitions(held)
    if declaration.habit not in ("yes", "signal"):
        yield "max_requeues has no effect without checkpoint=yes or checkpoint=signal"
    elif known == ():
        yield "max_requeues has no effect: this site requeues no job at its time limit"
    elif known is not None and named and not named <= set(known):
        yield f"max_requeues has no effect outside of partition {' or '.join(known)}"


def _of_backfill(
    declaration: Declaration, held: Settings, site: WrapperSite | None
) -> Iterator[str]:
    if not declaration.backfill:
        return
    known = site.backfill if site is not None else None
    named = _partitions(held)
    if known == ():
        yield "backfill=yes has no effect: training on idle nodes is off at this site"
    elif known is not None and not (named and named <= set(known)):
        yield f"backfill=yes has no effect outside of partition {' or '.join(known)}"
    elif declaration.habit != "yes":
        yield ("backfill=yes without checkpoint=yes: the job loses its work when it is requeued")


def _of_several_nodes(
    declaration: Declaration, held: Settings, site: WrapperSite | None
) -> Iterator[str]:
    """``fork``, ``tasks`` and ``nodes`` that change nothing."""
    words, request = declaration.assignments(), gpu_request(held)
    per_job = (
        "gpus" in held if request is not None else (held.get("nodes") or "1") not in ("1", "1-1")
    )
    if declaration.fork[1] > 1:
        no_effect = f"fork={words['fork']} has no effect"
        if site is not None and not site.copies:
            yield f"{no_effect}: this site's policy makes no copies of jobs"
        elif not declaration.checkpoint:
            yield f"{no_effect} without checkpoint=yes: only a move gives the job more nodes"
        elif request is not None and not {"gres", "gpus-per-node"} & held.keys():
            yield f"{no_effect} with {request.text}: write --gres=gpu:N, the GPUs on each node"
    elif declaration.tasks > 1:
        yield f"tasks={declaration.tasks} has no effect without fork=1-N"
    if declaration.nodes and declaration.nodes[1] > 1 and not (declaration.backfill or per_job):
        most = declaration.nodes[1]
        yield (
            f"nodes={words['nodes']} has no effect without --gpus=N and -N1-{most}, or with "
            "backfill=yes on idle nodes"
        )


def _of_the_model(model: str, site: WrapperSite | None) -> Iterator[str]:
    """A name that differs from a known one in little, and in more than its numbers, in one digit
    only, or in the order of two: resnet51 and resnet81 are mistakes, and resnet101 is another
    model."""
    key = _letters_and_digits(model)
    if site is None or not key or key in site.models:
        return
    from difflib import get_close_matches

    for near in get_close_matches(key, site.models, n=3, cutoff=_LIKE):
        if _is_one_slip(near, key) or re.sub(r"\d", "", near) != re.sub(r"\d", "", key):
            yield f"model={model} is not known here; did you mean {near}?"
            return


def _is_one_slip(one: str, other: str) -> bool:
    """Whether two names differ in one character, or in the order of two neighbours."""
    if len(one) != len(other):
        return False
    wrong = [at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
    if len(wrong) != 2:
        return len(wrong) == 1
    first, second = wrong
    return second == first + 1 and one[first] == other[second] and one[second] == other[first]


def _letters_and_digits(model: str) -> str:
    """As :func:`slurm_hadar.profiles.table.model_key`, whose import takes long."""
    return "".join(c for c in model.lower() if c.isalnum())


def _of_the_types(types: Sequence[str], held: Settings, site: WrapperSite | None) -> Iterator[str]:
    """Types that no GPU of the job's partition has, where the site says which it has."""
    if site is None or not site.features or ANY in types:
        return
    for kind in types:
        near = next((one for one in site.features if _looks_like(one) == _looks_like(kind)), "")
        if near and near != kind:
            yield f"types={kind} is not known here; did you mean {near}?"
            return
    partition = held.get("partition") or site.default_partition
    group = _types_in(partition, site)
    kinds = [*dict.fromkeys(group.values())] if group else [*site.features]
    missing = [kind for kind in types if kind not in kinds]
    if missing == [*types] and group and partition not in site.groups:
        yield (
            f"types={','.join(types)} and partition {partition}, which has {', '.join(kinds)}, "
            "exclude each other, so Slurm starts the job nowhere; make them agree"
        )
    elif missing:
        place = f"partition {partition}" if group else "this site"
        yield f"types={','.join(missing)} has no effect: {place} has {', '.join(kinds)}"


def _types_in(partition: str, site: WrapperSite) -> Mapping[str, str]:
    """Partition -> GPU type, of those that a list of partitions stands for; empty where the type of
    one of them is not known."""
    members = {name: kind for group in site.groups.values() for name, kind in group.items()}
    found: dict[str, str] = {}
    for name in partition.split(","):
        types = site.groups.get(name) or ({name: members[name]} if name in members else {})
        if not types:
            return {}
        found.update(types)
    return found


def _looks_like(kind: str) -> str:
    return kind.lower().translate(str.maketrans("oil", "011", "-_"))


def repeated(words: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A sentence for each key that the ``#HADAR`` lines of a script have with several values.
    ``words``: (``key=value``, where), in order."""
    last: dict[str, tuple[str, str]] = {}
    again: dict[str, str] = {}
    for word, where in words:
        key, _, value = word.partition("=")
        key = key.replace("-", "_")
        if key in last and last[key][0] != value:
            again[key] = f"{key}={last[key][0]} in {last[key][1]} has no effect: {where} has {word}"
        last[key] = value, where
    yield from again.values()


def refuse_impossible(declaration: Declaration, gpus: Callable[[], Mapping[str, int]]) -> None:
    """Raises :class:`UsageError` where the job needs more GPUs than the cluster has.

    ``gpus``: asks for type -> GPUs of all nodes; what Slurm does not tell stops nothing.
    """
    if declaration.off or declaration.gpus is None or declaration.gpus[0] <= FEW_GPUS:
        return
    there = gpus()
    named = [kind for kind in declaration.types if kind != ANY]
    # GPUs without a type, or with names that are Slurm's only, may be of any of ours.
    if named and there and set(named) <= set(there):
        total, what = sum(there[kind] for kind in named), f" of type {', '.join(named)}"
    else:
        total, what = sum(there.values()), ""
    if 0 < total < declaration.gpus[0]:
        raise UsageError(
            f"gpus={declaration.gpus[0]} is declared, and the cluster has {total} GPUs{what}; "
            "declare fewer"
        )


def in_all(nodes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Type -> GPUs of all nodes, of those of each."""
    found: dict[str, int] = {}
    for node in nodes:
        for kind, number in node.items():
            found[kind] = found.get(kind, 0) + number
    return found


def gpus_of_nodes(
    program: str, environment: Mapping[str, str], partitions: str = ""
) -> list[dict[str, int]]:
    """Type -> GPUs, in use or not, of each node; empty where Slurm does not tell. ``partitions``:
    only of their nodes; empty: of all."""
    import subprocess

    from slurm_hadar.slurm.tres import parse_gpus

    try:
        done = subprocess.run(
            [
                os.path.join(os.path.dirname(program), "sinfo"),
                *("-h", "-N", "-o", "%N|%G"),
                # Together sinfo takes them for a conflict.
                f"--partition={partitions}" if partitions else "-a",
            ],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
        lines: Sequence[str] = done.stdout.decode(errors="replace").splitlines()
        nodes = dict(line.split("|", 1) for line in lines if "|" in line)
        found = [parse_gpus(gres) for gres in nodes.values()]
    except (OSError, ValueError, HadarError, subprocess.SubprocessError):
        return []
    return found if done.returncode == 0 else []
