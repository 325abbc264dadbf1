"""The state of the timetable policy between rounds, as plain JSON, and how long it is valid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.timetable.plan import Timetable
from slurm_hadar.policies.timetable.settings import TimetableOptions
from slurm_hadar.policies.timetable.work import Options

_VERSION = 2
_CHOSEN = {1: "laid", _VERSION: "chosen"}
"""Version of the state -> its key for the options chosen last, by job."""
_NOTHING = 1e-6


@dataclass(frozen=True)
class TimetableState:
    """``chosen``: the option of each job that the last choice placed. That choice was made at
    ``chosen_s`` among the jobs ``present``."""

    table: Timetable
    chosen: Mapping[str, int] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    chosen_s: float = -np.inf


def pool_names(view: View, pools: ResourcePools) -> list[str]:
    """Identifies the options; a state with other names is discarded."""
    rows = zip(pools.pool_type, pools.pool_group, pools.capacity, strict=True)
    names = [f"{view.types[kind]}/{group}/{gpus}" for kind, group, gpus in rows]
    return [*names, ",".join(str(count) for count in view.counts)]


def to_state(past: TimetableState, names: Sequence[str]) -> State:
    """The state as JSON."""
    table = past.table
    return {
        "version": _VERSION,
        "names": list(names),
        "ids": list(table.ids),
        "start_s": table.start_s,
        "deadline_s": table.deadline_s,
        "least_s": table.least_s,
        "edges": table.edges.tolist(),
        "price": table.price.tolist(),
        "worth": table.worth.tolist(),
        "run_s": table.run_s.tolist(),
        "limit": table.limit.tolist(),
        "best_s": table.best_s.tolist(),
        "mix": _sparse(table.mix),
        "share": _sparse(table.share),
        "chosen": dict(past.chosen),
        "present": list(past.present),
        "chosen_s": past.chosen_s,
    }


def from_state(state: State, names: Sequence[str]) -> TimetableState | None:
    """The state, or None if there is none or the cluster has changed. Reads version 1 too, in which
    ``chosen`` had another name."""
    if state.get("version") not in (*_CHOSEN,) or state.get("names") != list(names):
        return None
    kept = cast(dict[str, Any], state)
    ids = tuple(kept["ids"])
    table = Timetable(
        ids=ids,
        start_s=float(kept["start_s"]),
        deadline_s=float(kept["deadline_s"]),
        least_s=float(kept["least_s"]),
        edges=np.asarray(kept["edges"], dtype=np.float64),
        price=np.asarray(kept["price"], dtype=np.float64),
        worth=np.asarray(kept["worth"], dtype=np.float64),
        run_s=np.asarray(kept["run_s"], dtype=np.float64),
        limit=np.asarray(kept["limit"], dtype=np.float64),
        best_s=np.asarray(kept["best_s"], dtype=np.float64),
        mix=_dense(kept["mix"]),
        share=_dense(kept["share"]),
    )
    chosen = kept[_CHOSEN[kept["version"]]]
    return TimetableState(table, chosen, tuple(kept["present"]), float(kept["chosen_s"]))


def outdated(past: TimetableState, view: View, settings: TimetableOptions) -> bool:
    """Whether a new timetable is due: its time is over, or too many jobs are not in it."""
    table = past.table
    horizon = table.deadline_s - table.start_s
    if view.now - table.start_s >= max(settings.solve_every * horizon, view.round_s):
        return True
    new = len(set(view.jobs.ids) - set(table.ids))
    return new > settings.newcomers * len(table.ids)


def unchanged(
    past: TimetableState, view: View, options: Options, settings: TimetableOptions
) -> bool:
    """Whether the last choice is still valid: same jobs, all on their chosen options, not too
    old."""
    interval = settings.choose_every * (past.table.deadline_s - past.table.start_s)
    if view.now - past.chosen_s >= max(interval, view.round_s) or past.present != view.jobs.ids:
        return False
    chosen = np.array([past.chosen.get(id_, -1) for id_ in view.jobs.ids], dtype=np.int64)
    return bool(np.array_equal(chosen, options.now))


def _sparse(array: FloatArray) -> dict[str, object]:
    where = np.flatnonzero(array > _NOTHING)
    values = np.round(array.reshape(-1)[where], 6)
    return {"shape": list(array.shape), "where": where.tolist(), "values": values.tolist()}


def _dense(kept: Mapping[str, Any]) -> FloatArray:
    array = np.zeros(int(np.prod(kept["shape"])))
    array[np.asarray(kept["where"], dtype=np.int64)] = kept["values"]
    return array.reshape(kept["shape"])
