"""How long idle nodes stay idle: learned online from past nodes only.

Our own addition to BFTrainer. The probability per second that a node is taken back is counted by
its idle age and by the number of nodes that became idle together with it. On Summit's week it is
highest between one and three minutes and then falls with age, and nodes that became idle together
leave together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.bftrainer.records import IdleView

_AGES = np.array(
    [0, 60, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200, 14400], float
)
_WIDTHS = np.append(np.diff(_AGES), np.inf)
_SIZES = np.array([8, 64, 256])
_SHAPE = (len(_SIZES) + 1, len(_AGES))
_PRIOR_S = 1500.0
"""Mean idle time that is assumed before any observation, s."""
_PRIOR_WEIGHT_S = 20_000.0
_MEMORY_S = 30 * 86400.0
"""Age of an observation at which its weight is 1/e, s."""


@dataclass(frozen=True)
class IdleSurvival:
    """What is remembered between decisions; plain numbers, see :meth:`to_dict`.

    ``left`` (size classes, age classes): number of leaves; ``waited_s``: node-seconds observed.
    ``nodes``, ``since_s``, ``batch`` (I,): the idle nodes of the last view, and the number of nodes
    that became idle with each.
    """

    now: float
    nodes: IntArray
    since_s: FloatArray
    batch: IntArray
    left: FloatArray
    waited_s: FloatArray

    @classmethod
    def unknown(cls) -> "IdleSurvival":
        """The state before the first view."""
        waited = np.full(_SHAPE, _PRIOR_WEIGHT_S)
        none = np.zeros(0, np.int64)
        return cls(-np.inf, none, np.zeros(0), none, waited / _PRIOR_S, waited)

    def to_dict(self) -> dict[str, object]:
        """The state as JSON."""
        return {
            "version": 1,
            "now": float(self.now) if np.isfinite(self.now) else None,
            **{name: getattr(self, name).tolist() for name in _FIELDS},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> "IdleSurvival":
        """The inverse of :meth:`to_dict`. Raises UsageError for anything else."""
        try:
            now = stored["now"]
            found = cls(
                -np.inf if now is None else float(str(now)),
                *(_array(stored[name], kind) for name, kind in _FIELDS.items()),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"what was learned about idle nodes is damaged: {error}") from None
        idle = len(found.nodes)
        fits = len(found.since_s) == idle and len(found.batch) == idle
        if not fits or found.left.shape != _SHAPE or found.waited_s.shape != _SHAPE:
            raise UsageError("what was learned about idle nodes has another shape")
        return found

    def updated(self, view: IdleView) -> "IdleSurvival":
        """The state after a view. A node has left if it is no longer idle, or has become idle again
        since the last view."""
        left, waited = self.left, self.waited_s
        batch = np.zeros(len(view.nodes), np.int64)
        if len(self.nodes):
            at = np.searchsorted(view.nodes, self.nodes)
            inside = at < len(view.nodes)
            stayed = np.zeros(len(self.nodes), bool)
            here = at[inside]
            stayed[inside] = (view.nodes[here] == self.nodes[inside]) & (
                view.since_s[here] == self.since_s[inside]
            )
            batch[at[stayed]] = self.batch[stayed]
            left, waited = self._counted(view.now, stayed)
        fresh = np.flatnonzero(batch == 0)
        if len(fresh):
            _, which, size = np.unique(view.since_s[fresh], return_inverse=True, return_counts=True)
            batch[fresh] = size[which.ravel()]
        return IdleSurvival(view.now, view.nodes, view.since_s, batch, left, waited)

    def _counted(self, now: float, stayed: np.ndarray) -> tuple[FloatArray, FloatArray]:
        step = max(0.0, now - self.now)
        keep = np.exp(-step / _MEMORY_S)
        cells = _SHAPE[0] * _SHAPE[1]
        size = np.searchsorted(_SIZES, self.batch, side="right") * _SHAPE[1]
        # The time of a leave between two views is unknown: assume the middle.
        age = np.searchsorted(_AGES, self.now + step / 2 - self.since_s, side="right") - 1
        cell = size + np.maximum(age, 0)
        waited = np.bincount(cell, minlength=cells) * step
        left = np.bincount(cell[~stayed], minlength=cells)
        return self.left * keep + left.reshape(_SHAPE), self.waited_s * keep + waited.reshape(
            _SHAPE
        )

    def chance(self, view: IdleView, horizon_s: float) -> FloatArray:
        """(I,) probability that each idle node of the view is taken back within ``horizon_s``. The
        view must be the last one of :meth:`updated`."""
        size = np.searchsorted(_SIZES, self.batch, side="right")
        age = np.maximum(0.0, view.now - view.since_s)
        # Few (size, age) pairs, many nodes.
        pair, which = np.unique(np.stack([size.astype(float), age]), axis=1, return_inverse=True)
        hazard = (self.left / self.waited_s)[pair[0].astype(np.int64)]
        begin = pair[1][:, None]
        inside = np.clip(_AGES + _WIDTHS, begin, begin + horizon_s) - np.clip(
            _AGES, begin, begin + horizon_s
        )
        chance: FloatArray = (1.0 - np.exp(-(hazard * inside).sum(axis=1)))[which.ravel()]
        return chance


_FIELDS: dict[str, type] = {
    "nodes": np.int64,
    "since_s": np.float64,
    "batch": np.int64,
    "left": np.float64,
    "waited_s": np.float64,
}


def _array(value: object, kind: type) -> np.ndarray:
    if not isinstance(value, Sequence):
        raise TypeError("a list is missing")
    array: np.ndarray = np.array(value, dtype=kind)
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    return array
