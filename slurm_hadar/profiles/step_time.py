"""A model of a training step's time for each of thousands of jobs at once, fitted online.

The form is that of Pollux (OSDI 2021) and Sia (SOSP 2023), recalled and checked against what Sia's
simulator does. For K GPUs of type r on N nodes, each with x times the job's base batch of one GPU:

    grad(x, r)  = e^(u_r) (phi + (1 - phi) x)
    sync(K, N)  = 0 for K = 1, else a + b (K - 2) + [N > 1] (a' + b' (K - 2))
    step        = (grad^gamma + sync^gamma)^(1 / gamma),  1 <= gamma <= 10

Without gradient accumulation, and (ours) a second node adds to the time within one, where Pollux
has other constants, so that more nodes are never faster. A type enters by u_r alone, the logarithm
of a step's seconds on one GPU: what one type teaches of scaling holds for all, and as u has a part
common to all types, a job that is slower than expected on one is taken to be so on the others.

The parameters are fitted by maximum a posteriori (ours): where nothing was seen the priors stand,
which are optimistic, as in Sia: nearly no time for synchronization. Levenberg and Marquardt's
method on the logarithms of the times, all jobs together as arrays; the Hessian gives how sure
the parameters are (Laplace's approximation).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray

_SHARED = 6
"""Parameters besides u: logit phi; log a, b, a', b' over the job's scale; logit of gamma."""
_PRIOR_MEAN = np.array([-1.4, -4.6, -5.5, -4.6, -5.5, -2.1])
"""phi 0.2; a second GPU costs 1% of a step, each further one 0.4%; gamma 2: optimistic."""
_PRIOR_SD = np.array([1.0, 3.0, 3.0, 3.0, 3.0, 1.0])
"""Wide, as the means are optimistic: 20 times as much time is one standard deviation."""
_COMMON_SD, _TYPE_SD = 1.0, 0.4
"""Of u: the part that all types share, and that of each (logarithms)."""
MODEL_SD = 0.05
"""How far true times are off the model's form, logarithm: kinks, neighbours, interference."""
REPORT_SD, _MINUTE_SD = 0.02, 0.1
"""Of a reported speed, logarithm: of any, and besides of one over a minute."""
_ROUNDS = 25
_ENOUGH = 1e-3
_LEAST_LOG = -60.0
_FARTHEST = 20.0
"""Parameters stay within this of their priors, so that no exponential overflows."""


@dataclass(frozen=True)
class StepCells:
    """N places where a step of each of J jobs may run; all (J, N), or broadcast to it."""

    kind: IntArray
    """Index of the GPU type."""
    gpus: IntArray
    nodes: IntArray
    local: FloatArray
    """Batch of one GPU over the job's base batch of one GPU."""

    def take(self, rows: IntArray) -> "StepCells":
        """The same for these jobs."""
        kind, gpus, nodes = (
            one if len(one) == 1 else one[rows] for one in (self.kind, self.gpus, self.nodes)
        )
        local = self.local if len(self.local) == 1 else self.local[rows]
        return StepCells(kind, gpus, nodes, local)


@dataclass(frozen=True)
class StepTimes:
    """What was measured of J jobs at up to N places each."""

    cells: StepCells
    step_s: FloatArray
    """(J, N) seconds of a step."""
    sd: FloatArray
    """(J, N) standard deviation of their logarithm; inf or nan: nothing was measured."""

    @property
    def usable(self) -> BoolArray:
        """(J, N) where there is something that can be."""
        cells = self.cells
        with np.errstate(invalid="ignore"):
            found: BoolArray = (
                np.isfinite(self.sd) & (self.sd >= 0.0) & np.isfinite(self.step_s)
                & (self.step_s > 0.0) & (cells.gpus >= 1) & (cells.nodes >= 1)
                & np.isfinite(cells.local) & (cells.local > 0.0)
            )  # fmt: skip
        return found


def measured_sd(seconds: FloatArray) -> FloatArray:
    """Standard deviation of the logarithm of a speed that jobs reported over so many seconds; inf
    where that is none."""
    there = seconds > 0
    minutes = np.where(there, seconds, 1.0) / 60.0
    return np.where(there, np.hypot(REPORT_SD, _MINUTE_SD / np.sqrt(minutes)), np.inf)


@dataclass(frozen=True)
class StepTimeFit:
    """Fitted models of J jobs over R types; P = R + 6 parameters."""

    parameters: FloatArray
    """(J, P)"""
    covariance: FloatArray
    """(J, P, P)"""
    alone_sd: FloatArray
    """(J, P) standard deviation of each parameter were the others known."""
    scale: FloatArray
    """(J,) logarithm of the seconds in which synchronization is counted."""

    def predict(self, cells: StepCells) -> tuple[FloatArray, FloatArray]:
        """(J, N) seconds of a step, and the standard deviation of their logarithm, the model's own
        error not included.

        Derivatives alone know nothing of how much worse than a small prior a time may turn out.
        So each term of synchronization is also moved by as much as what was measured lets it move
        alone, and what that changes beyond its derivative is added.
        """
        at = _forward(self.parameters, self.scale, cells)
        slope = _slope(self.parameters, cells, at)
        variance = (np.matmul(slope, self.covariance) * slope).sum(axis=2)
        first = self.parameters.shape[1] - _SHARED + 1
        for number, factor in enumerate(_factors(cells)):
            there = np.flatnonzero(np.broadcast_to(factor, at.log_s.shape).any(axis=0))
            log_grad, factor, *sync = (
                np.broadcast_to(one, at.log_s.shape)[:, there]
                for one in (at.log_grad, factor, *at.sync)
            )
            sd, moved = self.alone_sd[:, first + number], []
            for sign in (1.0, -1.0):
                sync[number] = _term(self.parameters[:, first + number] + sign * sd, factor)
                moved.append(_added(log_grad, sync, self.scale, at.gamma)[1])
            straight = slope[:, there, first + number] * sd[:, None]
            further = ((moved[0] - moved[1]) / 2.0) ** 2 - straight**2
            variance[:, there] += np.maximum(further, 0.0)
        return np.exp(at.log_s), np.sqrt(np.maximum(variance, 0.0))

    def take(self, rows: IntArray) -> "StepTimeFit":
        """The same for these jobs."""
        return StepTimeFit(
            self.parameters[rows], self.covariance[rows], self.alone_sd[rows], self.scale[rows]
        )


def fit_step_times(
    expected_s: FloatArray,
    seen: StepTimes,
    common_sd: float = _COMMON_SD,
    start: FloatArray | None = None,
) -> StepTimeFit:
    """Fit all jobs together; J may be 0.

    ``expected_s`` (J, R): what a step on one GPU of each type should take at the base batch, s; nan
    or not above 0: unknown, then that of the other types, or 1 s. ``common_sd``: how far a job may
    be off on all types alike, logarithm. ``start`` (J, P): parameters to begin with, as those of an
    earlier fit. Never raises for what jobs report: values that cannot be are left out.
    O(J N P^2) memory; split jobs by the tens of thousands.
    """
    usable = seen.usable & (seen.cells.kind >= 0) & (seen.cells.kind < expected_s.shape[1])
    prior, precision = _priors(expected_s, common_sd)
    kinds = expected_s.shape[1]
    cells = _safe(seen.cells, usable)
    log_seen = np.log(np.clip(np.where(usable, seen.step_s, 1.0), 1e-12, 1e12))
    sd = np.where(usable, np.clip(seen.sd, 1e-3, 10.0), 1.0)
    weight = np.where(usable, 1.0 / (sd**2 + MODEL_SD**2), 0.0)
    scale = _scale(prior, kinds, cells, log_seen, weight)
    found = prior.copy() if start is None else np.clip(start, prior - 20.0, prior + 20.0)
    problem = _Problem(prior, precision, scale, cells, log_seen, weight)
    hessian = _minimise(problem, found)
    covariance: FloatArray = np.linalg.inv(hessian).astype(np.float64, copy=False)
    alone = 1.0 / np.sqrt(np.diagonal(hessian, axis1=1, axis2=2))
    return StepTimeFit(found, covariance, alone, scale)


def _priors(expected_s: FloatArray, common_sd: float) -> tuple[FloatArray, FloatArray]:
    """(J, P) means and (P, P) precision."""
    jobs, kinds = expected_s.shape
    with np.errstate(invalid="ignore"):
        there = np.isfinite(expected_s) & (expected_s > 0.0)
    log_s = np.log(np.clip(np.where(there, expected_s, 1.0), 1e-9, 1e9))
    mean = np.where(there, log_s, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    prior = np.empty((jobs, kinds + _SHARED))
    prior[:, :kinds] = np.where(there, log_s, mean[:, None])
    prior[:, kinds:] = _PRIOR_MEAN
    precision = np.zeros((kinds + _SHARED, kinds + _SHARED))
    spread = common_sd**2 + np.eye(kinds) * _TYPE_SD**2
    precision[:kinds, :kinds] = np.linalg.inv(spread)
    precision[kinds:, kinds:] = np.diag(_PRIOR_SD**-2.0)
    return prior, precision


def _safe(cells: StepCells, usable: BoolArray) -> StepCells:
    """What is not usable as one GPU of the first type."""
    return StepCells(
        np.where(usable, cells.kind, 0),
        np.where(usable, np.clip(cells.gpus, 1, 10**6), 1),
        np.where(usable, cells.nodes, 1),
        np.where(usable, np.clip(cells.local, 1e-6, 1e6), 1.0),
    )


def _scale(
    prior: FloatArray, kinds: int, cells: StepCells, log_seen: FloatArray, weight: FloatArray
) -> FloatArray:
    """(J,) typical seconds of a step: the expected ones, corrected by what was measured."""
    expected = np.take_along_axis(prior[:, :kinds], cells.kind, axis=1)
    total = weight.sum(axis=1)
    off = (weight * (log_seen - expected)).sum(axis=1) / np.where(total > 0, total, 1.0)
    found: FloatArray = prior[:, :kinds].mean(axis=1) + np.where(total > 0, off, 0.0)
    return found


@dataclass(frozen=True)
class _Forward:
    """The model's terms at (J, N) places; times as logarithms of seconds."""

    part: FloatArray
    phi: FloatArray
    sync: tuple[FloatArray, ...]
    """a, b, a' and b' with their factors, over the scale."""
    log_grad: FloatArray
    log_sync: FloatArray
    place: FloatArray
    gamma: FloatArray
    log_s: FloatArray


def _forward(parameters: FloatArray, scale: FloatArray, cells: StepCells) -> _Forward:
    kinds = parameters.shape[1] - _SHARED
    wide = (cells.kind.shape, cells.gpus.shape, cells.nodes.shape, cells.local.shape)
    kind = np.broadcast_to(cells.kind, (len(parameters), np.broadcast_shapes(*wide)[-1]))
    phi = _sigmoid(parameters[:, kinds, None])
    part = phi + (1.0 - phi) * cells.local
    log_grad = np.take_along_axis(parameters[:, :kinds], kind, axis=1) + np.log(part)
    sync = tuple(
        _term(parameters[:, kinds + 1 + number], factor)
        for number, factor in enumerate(_factors(cells))
    )
    place = _sigmoid(parameters[:, kinds + 5, None])
    gamma = 1.0 + 9.0 * place
    log_sync, log_s = _added(log_grad, sync, scale, gamma)
    return _Forward(part, phi, sync, log_grad, log_sync, place, gamma, log_s)


def _factors(cells: StepCells) -> tuple[FloatArray, ...]:
    """How often a, b, a' and b' count."""
    more = np.maximum(cells.gpus - 2, 0).astype(np.float64)
    several = (cells.gpus > 1).astype(np.float64)
    apart = several * (cells.nodes > 1)
    return several, several * more, apart, apart * more


def _term(value: FloatArray, factor: FloatArray) -> FloatArray:
    """A term of synchronization over the scale; ``value`` (J,): the logarithm for a factor of 1."""
    found: FloatArray = np.exp(np.minimum(value, 50.0))[:, None] * factor
    return found


def _added(
    log_grad: FloatArray, sync: Sequence[FloatArray], scale: FloatArray, gamma: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The logarithms of the seconds of synchronization and of a step."""
    total = sync[0] + sync[1] + sync[2] + sync[3]
    positive = total > 0.0
    log_sync = np.log(np.where(positive, total, 1.0)) + scale[:, None]
    log_sync = np.where(positive, log_sync, log_grad + _LEAST_LOG)
    return log_sync, np.logaddexp(gamma * log_grad, gamma * log_sync) / gamma


def _slope(parameters: FloatArray, cells: StepCells, at: _Forward) -> FloatArray:
    """(J, N, P) derivatives of the logarithm of a step's seconds."""
    kinds = parameters.shape[1] - _SHARED
    share = _sigmoid(at.gamma * (at.log_sync - at.log_grad))
    slope = np.zeros((*at.log_s.shape, kinds + _SHARED))
    kind = np.broadcast_to(cells.kind, at.log_s.shape)
    np.put_along_axis(slope, kind[:, :, None], (1.0 - share)[:, :, None], axis=2)
    inside = at.phi * (1.0 - at.phi) * (1.0 - cells.local) / at.part
    slope[:, :, kinds] = (1.0 - share) * inside
    total = at.sync[0] + at.sync[1] + at.sync[2] + at.sync[3]
    over = share / np.where(total > 0.0, total, 1.0)
    for number, term in enumerate(at.sync):
        slope[:, :, kinds + 1 + number] = over * term
    mixed = (1.0 - share) * at.log_grad + share * at.log_sync
    turn = 9.0 * at.place * (1.0 - at.place)
    slope[:, :, kinds + 5] = (mixed - at.log_s) / at.gamma * turn
    return slope


def _sigmoid(value: FloatArray) -> FloatArray:
    found: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(value, -500.0, 500.0)))
    return found


@dataclass(frozen=True)
class _Problem:
    prior: FloatArray
    precision: FloatArray
    scale: FloatArray
    cells: StepCells
    log_seen: FloatArray
    weight: FloatArray

    def take(self, rows: IntArray) -> "_Problem":
        return _Problem(
            self.prior[rows], self.precision, self.scale[rows], self.cells.take(rows),
            self.log_seen[rows], self.weight[rows],
        )  # fmt: skip

    def loss(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(J,) loss, (J, P) gradient, (J, P, P) Gauss and Newton's Hessian."""
        at = _forward(parameters, self.scale, self.cells)
        slope = _slope(parameters, self.cells, at)
        off, away = at.log_s - self.log_seen, parameters - self.prior
        pull = away @ self.precision
        loss = 0.5 * ((self.weight * off**2).sum(axis=1) + (away * pull).sum(axis=1))
        weighted = slope * self.weight[:, :, None]
        gradient = np.einsum("jnp,jn->jp", weighted, off) + pull
        hessian = np.matmul(weighted.transpose(0, 2, 1), slope) + self.precision
        return loss, gradient, hessian


def _minimise(problem: _Problem, parameters: FloatArray) -> FloatArray:
    """Change ``parameters`` (J, P) in place; (J, P, P) the Hessian where they end."""
    jobs, size = parameters.shape
    damping = np.full(jobs, 1e-3)
    loss, gradient, hessian = problem.loss(parameters)
    todo = np.arange(jobs)
    diagonal = np.arange(size)
    for _ in range(_ROUNDS):
        if not len(todo):
            break
        raised = hessian[todo]
        raised[:, diagonal, diagonal] *= 1.0 + damping[todo, None]
        step = np.linalg.solve(raised, gradient[todo][:, :, None])[:, :, 0]
        part = problem.take(todo)
        tried = np.clip(parameters[todo] - step, part.prior - _FARTHEST, part.prior + _FARTHEST)
        new_loss, new_gradient, new_hessian = part.loss(tried)
        better = new_loss <= loss[todo]
        gain = loss[todo] - new_loss
        rows = todo[better]
        parameters[rows], loss[rows] = tried[better], new_loss[better]
        gradient[rows], hessian[rows] = new_gradient[better], new_hessian[better]
        damping[todo] = np.where(better, damping[todo] / 5.0, damping[todo] * 10.0)
        done = better & (gain <= _ENOUGH * (1.0 + new_loss))
        todo = todo[~done & (damping[todo] < 1e8)]
    return hessian
