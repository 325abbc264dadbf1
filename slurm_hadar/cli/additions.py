"""What hbatch adds to a managed job. Only what the user set nowhere; never the script."""

from __future__ import annotations

import re
from dataclasses import replace

from slurm_hadar.domain.declaration import (
    ANY,
    COMMENT_LIMIT,
    Declaration,
    merge,
)
from slurm_hadar.domain.declaration_values import CountList, signal_of_sbatch
from slurm_hadar.domain.errors import SlurmError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slurm_hadar.cli.partition_list import Group
    from slurm_hadar.cli.submit_prices import Today
    from slurm_hadar.cli.wrapper_site import WrapperSite

    Settings = Mapping[str, str | None]
    """What the user set, by sbatch's long names."""

GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_UNTYPED = re.compile(r"((gres[:/])?gpu([:=]\d+)?(,|$))+")


class Request:
    """The GPUs that the user requested from sbatch: the option as typed, and the types named.
    ``none``: they are 0."""

    def __init__(self, text: str, types: tuple[str, ...], none: bool) -> None:
        self.text = text
        self.types = types
        self.none = none


class Additions:
    """``options`` go before the user's, ``behind`` and ``comment`` behind them; ``notes`` are for
    stderr. ``has_gpus``: the job asks for GPUs; ``listed``: the list of partitions that it gets;
    ``omitted``: a sentence on the GPU types that this omits for their speed, else empty."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self.behind: list[str] = []
        self.comment = ""
        self.notes: list[str] = []
        self.has_gpus = False
        self.listed: tuple[str, ...] = ()
        self.omitted = ""


def gpu_request(held: Settings) -> Request | None:
    """The user's own request for GPUs in any of Slurm's forms; None where there is none."""
    typed: list[str] = []
    shown, none = "", True
    for name in (*GPU_OPTIONS, "gres", "tres-per-task"):
        text = held.get(name)
        if not text:
            continue
        if name in GPU_OPTIONS:
            text = ",".join("gpu:" + part for part in text.split(","))
        elif not any(_is_gpu(part) for part in text.split(",")):
            continue
        shown = shown or f"--{name}={held[name]}"
        none = none and all(re.search(r"[:=]0+$", p) for p in text.split(",") if _is_gpu(p))
        typed += [kind for kind in _types_in(text) if kind not in typed]
    return Request(shown, tuple(typed), none) if shown else None


def gpus_not_asked_for(declaration: Declaration, held: Settings) -> str:
    """What to say, behind why a job goes unmanaged, where ``gpus`` is declared and nothing asks
    Slurm for GPUs; else empty. Without a digit, as of every line on whether a job is managed."""
    if declaration.gpus is None or gpu_request(held) is not None:
        return ""
    return "; it gets no GPU by the gpus= that it declares, so ask for them with --gres=gpu:N"


def _is_gpu(entry: str) -> bool:
    return re.match(r"\s*(gres[:/])?gpu([:=(]|\s*$)", entry) is not None


def _types_in(text: str) -> list[str]:
    # Only a job that needs the parser pays for its import.
    if _UNTYPED.fullmatch(text):
        return []
    from slurm_hadar.domain.job import UNTYPED
    from slurm_hadar.slurm.tres import parse_gpus

    try:
        return [kind for kind in parse_gpus(text) if kind != UNTYPED]
    except SlurmError:
        return []


def add(
    declaration: Declaration,
    held: Settings,
    site: WrapperSite | None,
    today: Callable[[], Today | None],
) -> Additions | str:
    """What to add to a declared job, or why it has to go unmanaged.

    ``today`` tells what is known of GPU types, or None where no controller acts that wants one more
    list of partitions in the queue; it is asked only where that matters.
    Raises :class:`UsageError` where the declaration contradicts the request or the site.
    """
    result = Additions()
    record = declaration.left_alone()
    if not declaration.off:
        record = _recorded(declaration, held)
        request = gpu_request(held)
        record = replace(record, types=_types(declaration, request))
        if request is None:
            _ask_for_gpus(result, record, held)
        elif request.none and declaration.gpus is not None:
            result.notes.append("its own request has precedence over the gpus= that it declares")
        asks = request is not None and not request.none
        result.has_gpus = asks or bool(result.options or result.behind)
        if result.has_gpus:
            choose = _choose_types if request is None or not request.types else _keep_to_type
            partition = choose(result, record, held, site, today)
            if result.listed:
                record = replace(record, partitions=_named(partition), listed=result.listed)
        if declaration.checkpoint:
            _make_movable(result, declaration, held)
    try:
        comment, size = _comment(held, record)
        if size > COMMENT_LIMIT and record.listed:
            # Without it a controller takes some of its owner's changes for hbatch's list.
            comment, size = _comment(held, replace(record, listed=()))
    except UnicodeEncodeError:
        return "an option of the submit is not UTF-8"
    if size > COMMENT_LIMIT:
        return "its Comment would exceed Slurm's limit"
    result.comment = f"--comment={comment}"
    return result


def _comment(held: Settings, record: Declaration) -> tuple[str, int]:
    """The job's Comment and its bytes. Raises UnicodeEncodeError."""
    comment = merge(held.get("comment") or "", record)
    return comment, len(comment.encode(errors="surrogateescape"))


def _recorded(declaration: Declaration, held: Settings) -> Declaration:
    return replace(
        declaration,
        signal=saves_on(declaration, held),
        constraint=held.get("constraint") or "",
        partitions=_named(held.get("partition") or ""),
        pin=declaration.pin or pinned_for_switches(declaration, held),
    )


def pinned_for_switches(declaration: Declaration, held: Settings) -> bool:
    """Whether a move could take the job to more switches than its ``--switches`` allows. Slurm
    would keep it waiting there for that time, and 22.05 does not show a controller that option."""
    on_one_node = held.get("nodes") in ("1", "1-1") and declaration.nodes is None
    return bool(held.get("switches")) and declaration.may_move and not on_one_node


def _named(partitions: str) -> tuple[str, ...]:
    named = tuple(name for name in partitions.split(",") if name)
    may_be_recorded = all(re.fullmatch(r"[A-Za-z0-9_.:/@+-]{1,100}", name) for name in named)
    return named if may_be_recorded else ()


def saves_on(declaration: Declaration, held: Settings) -> str:
    """``signal``; where none is declared, what the job's own ``--signal`` says that it hears."""
    if declaration.habit != "signal" or declaration.signal:
        return declaration.signal
    return signal_of_sbatch(held.get("signal") or "")


def _types(declaration: Declaration, request: Request | None) -> tuple[str, ...]:
    """A typed request stays what it says; a declaration may widen an untyped one only."""
    if request is None or not request.types:
        return declaration.types
    declared = declaration.types
    if declared and ANY not in declared and not set(request.types) <= set(declared):
        raise UsageError(
            f"{request.text} asks for {', '.join(request.types)}, but types={','.join(declared)} "
            "is declared; make them agree, or ask for GPUs without a type"
        )
    return request.types


def _ask_for_gpus(result: Additions, declaration: Declaration, held: Settings) -> None:
    """The least count: the job starts soonest by itself, and a controller may give it more.

    On more than one node the count is of the whole job, as in the declaration.
    """
    if declaration.gpus is None:
        result.notes.append("declare gpus, or add --gres=gpu")
        return
    least, most = declaration.gpus[0], declaration.gpus[-1]
    gres = held.get("gres") or ""
    if gres.lower() == "none":
        result.notes.append("--gres=none has precedence")
        return
    nodes = held.get("nodes") or "1"
    if nodes in ("1", "1-1"):
        # Of several --gres sbatch takes the last.
        place = result.behind if gres else result.options
        place.append("--gres=" + ",".join(filter(None, (gres, f"gpu:{least}"))))
        return
    match = re.match(r"\d{1,6}", nodes)
    fewest = int(match[0]) if match else 1
    if isinstance(declaration.gpus, CountList):
        least = next((count for count in declaration.gpus if count >= fewest), least)
    elif least < fewest <= most:
        least = fewest
    result.options.append(f"--gpus={least}")


def _choose_types(
    result: Additions,
    declaration: Declaration,
    held: Settings,
    site: WrapperSite | None,
    today: Callable[[], Today | None],
) -> str:
    """By a list of partitions where the site has one per type, else by node features: ``--gres``
    knows no OR. Returns the partition that ``listed`` of the result stands for, else empty.

    An array that may use all types gets no list: where a job ahead waits on its nodes Slurm's
    backfill starts tasks in one partition of a list in each pass, and in the one that its owner
    typed on all nodes at once.
    """
    group = _group_of(declaration, held, site, today)
    if site is not None and group is not None:
        from slurm_hadar.cli.partition_list import ordered

        kinds = list(dict.fromkeys(group.members.values()))
        usable = _usable(result, declaration, kinds, site, f"partition {group.partition}")
        if "array" in held and {*usable} == {*kinds}:
            return ""
        names, result.omitted = ordered(declaration, held, site, group, usable)
        if names:
            result.listed = tuple(names)
            result.behind.append("--partition=" + ",".join(names))
            return group.partition
    _constrain(result, declaration, held, site)
    return ""


def _keep_to_type(
    result: Additions,
    declaration: Declaration,
    held: Settings,
    site: WrapperSite | None,
    today: Callable[[], Today | None],
) -> str:
    """A request that names one GPU type gets the partition of that type in place of the one that
    stands for all: while a job waits in the latter, Slurm's main scheduler starts no later job on
    any of its nodes. Returns as :func:`_choose_types`."""
    if len(declaration.types) != 1:
        return ""
    group = _group_of(declaration, held, site, today)
    if site is None or group is None or declaration.types[0] not in group.members.values():
        return ""
    from slurm_hadar.cli.partition_list import ordered

    names, _ = ordered(declaration, held, site, group, declaration.types)
    if not names:
        return ""
    result.listed = tuple(names)
    result.behind.append("--partition=" + ",".join(names))
    return group.partition


def _group_of(
    declaration: Declaration,
    held: Settings,
    site: WrapperSite | None,
    today: Callable[[], Today | None],
) -> Group | None:
    """The partition that the job gets by itself, where it stands for others; None where the job
    keeps it, and where nothing is known today."""
    from slurm_hadar.cli.partition_list import Group, members_of

    known = None
    partition = held.get("partition")
    if partition is None and site is not None and site.may_list(site.default_partition):
        # What the controller sees today; the site's file may be older.
        known = today()
        partition = known.default if known is not None else ""
    members = members_of(declaration, held, site, partition or "")
    if members and known is None:
        known = today()
    if not members or known is None or partition in known.kept:
        return None
    return Group(partition or "", members, known)


def _constrain(
    result: Additions, declaration: Declaration, held: Settings, site: WrapperSite | None
) -> None:
    types, memory = declaration.types, declaration.gpu_mem
    anything = not types or ANY in types
    if held.get("constraint") is not None or (anything and not memory):
        return
    if site is None or not site.features:
        what = "gpu_mem is" if anything else "types are"
        result.notes.append(f"{what} not enforced: there is no site configuration")
        return
    known = _usable(result, declaration, list(site.features), site, "this site")
    if set(known) == set(site.features) and anything:
        return
    features = list(dict.fromkeys(site.features[name] for name in known))
    result.options.append("--constraint=" + "|".join(features))


def added_constraint(declaration: Declaration, site: WrapperSite) -> str:
    """The constraint that hbatch writes for ``types`` and ``gpu_mem`` where the user set none.

    Raises :class:`UsageError` where the site has no such GPU.
    """
    result = Additions()
    _constrain(result, declaration, {}, site)
    return result.options[0].partition("=")[2] if result.options else ""


def _usable(
    result: Additions, declaration: Declaration, kinds: list[str], site: WrapperSite, place: str
) -> list[str]:
    """Those of the GPU types ``kinds`` of a ``place`` that the declaration allows.

    Raises :class:`UsageError` where there is none.
    """
    types, memory = declaration.types, declaration.gpu_mem
    known = [name for name in kinds if not types or ANY in types or name in types]
    if not known:
        raise UsageError(f"types={','.join(types)} is declared, and {place} has {', '.join(kinds)}")
    if memory:
        known = _large_enough(result, known, memory, site)
    missing = [name for name in types if name not in kinds and name != ANY]
    if missing:
        result.notes.append(f"{place} has no {', '.join(missing)}")
    return known


def _large_enough(result: Additions, names: list[str], memory: int, site: WrapperSite) -> list[str]:
    large = [name for name in names if site.memory_mb[name] >= memory]
    unknown = [name for name in names if not site.memory_mb[name]]
    if not large and not unknown:
        best = max(site.memory_mb[name] for name in names)
        raise UsageError(
            f"gpu_mem={_size(memory)} is declared, and the largest GPU that may be used has "
            f"{_size(best)}"
        )
    if not large:
        result.notes.append("gpu_mem is not enforced: the site does not say its GPUs' memory")
    return large or unknown


def _size(memory_mb: int) -> str:
    return f"{memory_mb}M" if memory_mb % 1024 else f"{memory_mb // 1024}G"


_CUT_OFF = {
    "yes": "it cannot answer a request to save",
    "watch": "no controller sees its checkpoints",
}
"""``checkpoint`` -> what does not work where the job has no HADAR_EXCHANGE."""


def _make_movable(result: Additions, declaration: Declaration, held: Settings) -> None:
    if "requeue" not in held and "no-requeue" not in held:
        result.options.append("--requeue")
    if "open-mode" not in held:
        result.options.append("--open-mode=append")
    export = (held.get("export") or "ALL").split(",")
    why = _CUT_OFF.get(declaration.habit)
    if why and "ALL" not in export and "HADAR_EXCHANGE" not in export:
        result.notes.append(
            f"--export keeps HADAR_EXCHANGE from the job, so that {why}; add "
            "HADAR_EXCHANGE,HADAR_CHECKPOINT to it"
        )
