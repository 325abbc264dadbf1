"""By what the learning rate of copies exceeds that of one run, so that they come equally far."""

from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST = 1.25
"""A step at the beginning is at most this many times as long as one of a later round."""


class LearningRates:
    """The factors of the parameter groups, round by round.

    To first order a copy with ``n_i`` samples moves the parameters by (rate) x ``n_i``, and the
    average weighted by w_i = n_i / n by (rate) x n x sum w_i^2, where one run moves them by
    (rate) x n. With the factor 1 / sum w_i^2 the way per sample is the same; the variance that
    sampling adds becomes (sum w_i^3) / (sum w_i^2)^2 times that of one run: 1 for equal copies,
    1.16 for speeds 4:2:1. Own derivation; for equal copies it is the linear rule of Goyal et al.
    2017, section 2.1 (recalled).

    Momentum b comes up from nothing over 1 / (1 - b) steps: step t goes 1 - b^t as far as a late
    one. One run makes these steps after each other, copies beside each other; with the same factor
    they would stay (factor - 1) x b / (1 - b) batches behind for good. So the ways are counted with
    the momentum that is there, and the first factors are larger. Own derivation.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], batch: int, done: int) -> None:
        """``groups``: the optimizer's; ``batch``: samples of a step; ``done``: samples so far."""
        self._batch, self._done = batch, done
        self._momenta = [_momentum(group) for group in groups]
        # An earlier attempt's came with the checkpoint. It is taken for that of one run.
        self._levels = [self._level_alone(b) for b in self._momenta]

    def factors(self, counts: Sequence[int]) -> list[float]:
        """One factor per group for a round in which the copies train ``counts`` samples."""
        number, most = sum(counts), max(counts, default=0)
        if not number:
            return [1.0] * len(self._momenta)
        late = number**2 / sum(count**2 for count in counts)
        found = []
        for b, level in zip(self._momenta, self._levels, strict=True):
            alone = _way(number / self._batch, b, self._level_alone(b))
            ways = [_way(count / self._batch, b, level) for count in counts]
            mean = sum(count * way for count, way in zip(counts, ways, strict=True)) / number
            end = _after(most / self._batch, b, level)
            found.append(min(alone / mean, _LONGEST * late / end))
        return found

    def trained(self, counts: Sequence[int]) -> None:
        """The copies trained ``counts`` samples and were averaged, momentum included."""
        number = sum(counts)
        self._done += number
        if number:
            self._levels = [
                sum(count * _after(count / self._batch, b, level) for count in counts) / number
                for b, level in zip(self._momenta, self._levels, strict=True)
            ]

    def _level_alone(self, momentum: float) -> float:
        return _after(self._done / self._batch, momentum, 0.0)


def _momentum(group: Mapping[str, Any]) -> float:
    """SGD's. 0 where there is none or where it is corrected for its beginning, as in Adam."""
    value = group.get("momentum", 0.0)
    comes_up = isinstance(value, float) and 0 < value < 1 and not group.get("dampening")
    return float(value) if comes_up else 0.0


def _after(steps: float, momentum: float, level: float) -> float:
    """How far momentum has come up (1: wholly) from ``level`` after ``steps`` steps."""
    return float(1 - (1 - level) * momentum**steps) if momentum else 1.0


def _way(steps: float, momentum: float, level: float) -> float:
    """Sum of 1 - (1 - level) x momentum^t over the steps t = 1, 2, ..., ``steps``."""
    late = (1 - level) * momentum / (1 - momentum)
    return float(steps - late * (1 - momentum**steps))
