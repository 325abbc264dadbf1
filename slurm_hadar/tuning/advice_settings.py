"""Settings that are read from slurm.conf and not simulated: GPU types as features of the nodes and
in the accounting, KillWait and cred_expire."""

import math
from collections.abc import Iterator

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.node import Node
from slurm_hadar.slurm.times import parse_duration
from slurm_hadar.tuning.advice import Advice, Study
from slurm_hadar.tuning.conf import ConfEntry
from slurm_hadar.tuning.site import names_of

_USUAL_KILL_WAIT_S, _USUAL_CRED_EXPIRE_S = 30, 120
_LONGEST_KILL_WAIT_S = 120


def features(study: Study) -> Iterator[Advice]:
    """A feature per GPU type on the nodes that have it: the type of a job is steered by it."""
    nodes = study.site.gpu_nodes
    lacking = {node.name: _missing(node, study) for node in nodes if _missing(node, study)}
    untyped = sum(node.gpus.get(UNTYPED, 0) for node in nodes)
    if untyped:
        study.fine.append(
            f"features: {untyped} GPUs have no type in Gres, so there is no name to give; name "
            "the types (Gres=gpu:TYPE:N, and Type= in gres.conf) first"
        )
    if not lacking:
        if nodes and not untyped:
            study.fine.append("features: every GPU node has its GPU type as a feature")
        return
    refs = []
    for entry, names in _grouped(study, list(lacking)):
        node = next(node for node in nodes if node.name == names[0])
        words = [word for word in _words(entry, node) if word]
        wanted = dict.fromkeys([*words, *lacking[names[0]]])
        refs.append(study.draft.node(names, {"Features": ",".join(wanted)}, entry))
    yield Advice(
        topic="features",
        why=(
            f"{len(lacking)} of {len(nodes)} GPU nodes lack their GPU type as a feature. Jobs ask "
            "for GPUs without a type and are steered to one by its feature, since Slurm 22.05 "
            "cannot change the type of a request; jobs never go to nodes without it"
        ),
        refs=tuple(refs),
    )


def _missing(node: Node, study: Study) -> tuple[str, ...]:
    known = study.config.gpu_types if study.config else {}
    wanted = [known[kind].feature if kind in known else kind for kind in node.gpus if kind]
    return tuple(feature for feature in wanted if feature not in node.features)


def _words(entry: ConfEntry | None, node: Node) -> list[str]:
    if entry is None:
        return list(node.features)
    return (entry.keys.get("features") or entry.keys.get("feature") or "").split(",")


def _grouped(study: Study, lacking: list[str]) -> Iterator[tuple[ConfEntry | None, list[str]]]:
    """Nodes by their line in slurm.conf; where that is not known, by type and features."""
    left = set(lacking)
    for entry in study.site.conf.nodes if study.site.conf else ():
        here = [name for name in names_of(entry) if name in left]
        if here:
            left -= set(here)
            yield entry, here
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for node in study.site.gpu_nodes:
        if node.name in left:
            alike.setdefault((tuple(node.gpus), node.features), []).append(node.name)
    yield from ((None, names) for names in alike.values())


def accounting(study: Study) -> Iterator[Advice]:
    """GPUs by type in the accounting: without it a history does not tell who used what."""
    if not study.setting("AccountingStorageType").endswith("/slurmdbd"):
        study.fine.append(
            "AccountingStorageTRES: no advice; this slurm.conf names no accounting database"
        )
        return
    now = [word for word in study.setting("AccountingStorageTRES").split(",") if word]
    small = {word.lower() for word in now}
    wanted = ["gres/gpu", *(f"gres/gpu:{kind}" for kind in study.site.types if kind)]
    missing = [word for word in wanted if word.lower() not in small]
    if not missing:
        study.fine.append("AccountingStorageTRES: GPUs are accounted for by type")
        return
    more = ""
    if study.history and study.history.untyped:
        more = (
            f"; of {study.history.untyped} jobs of this history the type had to be taken from "
            "their nodes"
        )
    # What Slurm accounts for anyway is shown by it and need not be said.
    own = {"cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"}
    kept = [word for word in now if word.lower() not in own]
    yield Advice(
        topic="AccountingStorageTRES",
        why=(
            f"accounting does not record {', '.join(missing)}{more}. slurmctld has to be restarted "
            "for it"
        ),
        refs=(study.draft.set("AccountingStorageTRES", ",".join([*kept, *missing])),),
    )


def kill_wait(study: Study) -> Iterator[Advice]:
    """Long enough for a checkpoint, and not so long that others wait for a job that hangs."""
    now = _seconds(study.setting("KillWait"), _USUAL_KILL_WAIT_S)
    need = max(_USUAL_KILL_WAIT_S, math.ceil(2 * study.save_s))
    saves = f"twice the {study.save_s:g} s that a checkpoint takes" if study.save_s else "a save"
    if now < need:
        why = (
            f"a preempted job has KillWait ({now:g} s) to save after TERM; {need} s leaves {saves}"
        )
    elif now > max(_LONGEST_KILL_WAIT_S, need):
        why = (
            f"a job that does not leave on TERM keeps its GPUs from the job that preempts it for "
            f"{now:g} s; {need} s leaves {saves}"
        )
    else:
        study.fine.append(
            f"KillWait: {now:g} s leaves {saves}"
            + ("" if study.save_s else "; the time of a checkpoint is not given (--save)")
        )
        return
    yield Advice("KillWait", why, refs=(study.draft.set("KillWait", str(need)),))


def cred_expire(study: Study) -> Iterator[Advice]:
    """The margin in which a requeued job waits for its new place."""
    parts = [part for part in study.setting("AuthInfo").split(",") if part]
    now = next((part.partition("=")[2] for part in parts if part.startswith("cred_expire=")), "")
    seconds = _seconds(now, _USUAL_CRED_EXPIRE_S)
    if seconds >= _USUAL_CRED_EXPIRE_S:
        study.fine.append(f"cred_expire: {seconds:g} s leave a tick time to place a requeued job")
        return
    others = [part for part in parts if not part.startswith("cred_expire=")]
    value = ",".join([f"cred_expire={_USUAL_CRED_EXPIRE_S}", *others])
    yield Advice(
        topic="cred_expire",
        why=(
            f"Slurm starts a requeued job by itself after cred_expire + 1 s, {seconds + 1:g} s "
            "here: a slow tick finds it started where it was. slurmctld and all slurmds have to "
            "be restarted for it"
        ),
        refs=(study.draft.set("AuthInfo", value),),
    )


def _seconds(text: str, default: int) -> float:
    """``30``, ``30 sec``, ``00:30``; the default for what is none of these."""
    word = text.removesuffix("sec").strip()
    if not word:
        return default
    if word.isdigit() and len(word) < 10:
        return float(word)
    try:
        found = parse_duration(word)
    except SlurmError:
        return default
    return default if found is None or math.isinf(found) else found
