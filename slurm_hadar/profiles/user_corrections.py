"""Which measurements correct the expected rates of a model for a user: the user's own, or all
users' within bounds."""

import math
from dataclasses import dataclass

from slurm_hadar.profiles.estimate import Estimator
from slurm_hadar.profiles.measured import MeasuredStore
from slurm_hadar.profiles.measured_correction import Correction, Expected
from slurm_hadar.profiles.recent_cache import Recent

OTHERS_MOST = 5.0
"""Measurements of other users change the rates of a model of the table by at most this factor, as a
whole: one user with a wrong model name, or meaningless reports, must not spoil it for all. The
ratio between two GPU types changes by
:data:`~slurm_hadar.profiles.measured_correction.RATIO_MOST` at most."""
OTHERS = -1
"""In place of a uid: a user without measurements, for whom those of others count within bounds."""
_NOTHING = Correction((), lambda *_: 0.0)


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """The batch that a rate is expected for. ``declared``: global batch; ``per_gpu``: batch per GPU
    that the user's trainings report, if none is declared; 0: unknown, the table's middle batch."""

    declared: int | None
    per_gpu: float = 0.0

    def on(self, gpus: int) -> int | None:
        """The global batch on this many GPUs; None: the table's middle one."""
        if self.declared is None and self.per_gpu > 0:
            return max(1, round(self.per_gpu * gpus))
        return self.declared


_OWN_BATCH = ExpectedBatch(0)
"""Each measurement is compared with the rate expected for its own batch."""
_Corrected = tuple[str, int | None, ExpectedBatch]
"""Model, user, and the batch that is expected."""


class UserCorrections:
    """The corrections of a model's expected rates, by user, with a cache.

    A *user* is a uid, :data:`OTHERS`, or None, for whom measurements of all users count in full.
    """

    def __init__(self, estimator: Estimator, store: MeasuredStore, most_cached: int) -> None:
        self._estimator, self._store = estimator, store
        self._corrections: Recent[_Corrected, Correction] = Recent(most_cached)
        self._users: Recent[str, frozenset[int]] = Recent(most_cached)

    def drop(self, model: str) -> None:
        """Discard what depends on the measurements of a model."""
        self._corrections.drop(lambda place: place[0] == model)
        self._users.drop(lambda other: other == model)

    def clear(self) -> None:
        """Discard all."""
        self._corrections.drop(lambda _: True)
        self._users.drop(lambda _: True)

    def turn(self) -> None:
        """Drop what was not used since the last call."""
        self._corrections.turn()
        self._users.turn()

    def batch(self, model: str, user: int | None, declared: int | None) -> ExpectedBatch:
        """The expected batch of a user's job: the declared one, else the batch per GPU with which
        the user has measured longest. Batches that other users report do not count."""
        if declared is not None or user in (None, OTHERS):
            return ExpectedBatch(declared)
        seconds: dict[float, float] = {}
        for found in self._store.of(model):
            if found.uid == user:
                size = found.batch / found.gpus
                seconds[size] = seconds.get(size, 0.0) + found.weight_s
        return ExpectedBatch(None, max(seconds, key=lambda size: seconds[size], default=0.0))

    def measured_by(self, model: str, uid: int | None) -> int | None:
        """``uid`` if this user has measured the model, else :data:`OTHERS`; None for None."""
        if uid is None:
            return None
        users = self._users.get(model)
        if users is None:
            users = frozenset(found.uid for found in self._store.of(model))
            self._users.put(model, users)
        return uid if uid in users else OTHERS

    def own(self, model: str, user: int | None, size: ExpectedBatch) -> Correction:
        """By the measurements of ``user``, or of all users for None. Without a declared batch, each
        measurement is compared with the batch expected on other types, so that an error of the
        table in that batch cancels out."""
        return self._against_expected(model, user, size) if user != OTHERS else _NOTHING

    def others(self, model: str, user: int | None, size: ExpectedBatch) -> Correction:
        """By the measurements of all users, within the bounds for a user without any."""
        return self._against_expected(model, OTHERS, size) if user is not None else _NOTHING

    def _against_expected(self, model: str, user: int | None, size: ExpectedBatch) -> Correction:
        size = size if size.declared is None else _OWN_BATCH
        place = (model, user, size)
        correction = self._corrections.get(place)
        if correction is None:
            all_users = user is None or user == OTHERS
            rows = [found for found in self._store.of(model) if all_users or found.uid == user]
            careful = user == OTHERS and self._estimator.anchored(model)
            correction = Correction(
                rows, self._expected(place), OTHERS_MOST if careful else math.inf
            )
            self._corrections.put(place, correction)
        return correction

    def _expected(self, place: _Corrected) -> Expected:
        model, _, size = place

        def of(kind: str, gpus: int, batch: int | None) -> float:
            asked = ExpectedBatch(batch) if size is _OWN_BATCH else size
            return self._estimator.cell(model, kind, gpus, asked.on(gpus)).rate

        return of
