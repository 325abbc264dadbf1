"""What the controller does at a tick of a simulation in Slurm's order.

The policy decides over the managed jobs; those that wait get the planned type at the head of their
list, and may leave out others; those that run may move to GPUs that no waiting job can use, or be
stopped for others. The policy has the same guards as in a cluster.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from slurm_hadar.domain.declaration import SLOWEST
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.record import Decide
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.queue import surplus
from slurm_hadar.simulator.queue.cluster_state import ClusterState, stopped
from slurm_hadar.simulator.queue.foresight import Foresight, Pools, RunningJobs
from slurm_hadar.simulator.queue.open_places import OpenPlaces
from slurm_hadar.simulator.queue.reported_rates import ReportedRates
from slurm_hadar.simulator.queue.requests import as_requested
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.views import Views

_NONE: frozenset[int] = frozenset()


class TypePreference:
    """In which order a managed job's list names the GPU types, and which of them it leaves out.

    Of J jobs on R types, by their expected rates, corrected at ticks by what is reported. What
    ``hbatch`` writes into a list at the submit goes by the expected ones."""

    def __init__(self, expected: FloatArray, column: IntArray) -> None:
        """``expected``: (J, R) samples per s; ``column``: (J,) of each job's count of GPUs."""
        self._expected, self._column = expected, column
        self._rate, self._own = expected.copy(), expected.copy()

    def correct(self, jobs: IntArray, reported: ReportedRates) -> None:
        """Take in what is reported; another user's reports leave no type out."""
        rows, column = np.arange(len(jobs)), self._column[jobs]
        expected = self._expected[jobs]
        self._rate[jobs] = expected * reported.factors(jobs)[rows, :, column]
        self._own[jobs] = expected * reported.own_factors(jobs)[rows, :, column]

    def order(
        self,
        job: int,
        kinds: Sequence[int],
        first: frozenset[int] = _NONE,
        kept: frozenset[int] = _NONE,
    ) -> list[int]:
        """Those of ``first``, then the fastest first, without the ones that are far slower and not
        ``kept``."""
        own, rate = self._own[job], self._rate[job]
        best = max(own[kind] for kind in kinds)
        found = [kind for kind in kinds if own[kind] * SLOWEST >= best or kind in kept]
        return sorted(found, key=lambda kind: (kind not in first, -rate[kind]))


class SimulatedController:
    """The controller of a simulated Slurm: it reads and steers the managed jobs of ``state``."""

    def __init__(self, setting: SimulationSetting, state: ClusterState, decide: Decide) -> None:
        work, cluster, steering = setting.workload, setting.cluster, setting.steering
        self._state, self._decide, self._steering = state, decide, steering
        self._work, self._asked, self._gpus = work, state.asked, cluster.gpus
        self._tested, self._pause_s = setting.limits.tested, setting.costs.pause_s
        estimates = setting.seen or estimate(work)
        estimates = replace(estimates, rate=estimates.rate * state.asked.types[:, :, None])
        guards = {
            "gain_over_cost": steering.gain_over_cost,
            "min_stay_s": steering.min_between_moves_s,
            "preempt": steering.preempt,
        }
        options = {**guards, **setting.options}
        self._views = Views(work, cluster, estimates, setting.costs, setting.seed, options)
        self._index = {id_: at for at, id_ in enumerate(work.ids)}
        self._types = {name: at for at, name in enumerate(cluster.types)}
        rate = as_requested(estimates.rate, work, cluster)
        self._reported = ReportedRates.of(setting, estimates.rate)
        column = np.searchsorted(np.asarray(work.counts), work.request)
        self._preference = TypePreference(rate, column)
        self._foresight = Foresight(state.asked, work.request, rate, estimates.total)
        # No guess keeps a job from a type.
        self._may_wait = steering.max_wait_s > 0 and estimates.known
        self._shared = _NONE
        self._memory: State = {}
        self._due_s = self._decided_s = -inf
        self.next_tick_s = inf
        """When the next tick is due; inf: without managed jobs there is none."""
        self.decide_s: list[float] = []
        """Seconds that each decision took."""

    def submitted(self, come: Sequence[int]) -> None:
        """Jobs have arrived: hbatch orders the types of the managed ones."""
        self._look_at_others()
        for job in come:
            if self._asked.managed[job]:
                self._state.lists[job] = self._by_speed(job)

    def tick_if_due(self, now: float) -> bool:
        """Decide and act, where a tick is due and the last decision is out of date; whether it
        did."""
        state = self._state
        managed = np.flatnonzero(self._asked.managed & (state.waits | state.runs))
        decides = False
        if now >= self._due_s and len(managed):
            self._due_s = now + self._steering.tick_s
            decides = state.changed or self._out_of_date(managed, now)
            if decides:
                self._tick(managed, now)
        self.next_tick_s = self._due_s if len(managed) else inf
        return decides

    def _out_of_date(self, managed: IntArray, now: float) -> bool:
        """Whether a job has become movable since the last decision, or reports may be new."""
        runs = managed[self._state.runs[managed]]
        at = self._state.present.since[runs] + self._steering.min_between_moves_s
        return self._reported is not None or bool(((self._decided_s < at) & (at <= now)).any())

    def _tick(self, managed: IntArray, now: float) -> None:
        if self._reported is not None:
            runs = managed[self._state.runs[managed]]
            self._reported.report(runs, self._state.on[runs], self._state.ready[runs], now)
            self._preference.correct(managed, self._reported)
        view = self._view(managed, now)
        began = time.perf_counter()
        plan, self._memory = self._decide(view, self._memory)
        self.decide_s.append(time.perf_counter() - began)
        self._decided_s, self._state.changed = now, False
        self._look_at_others()
        for job in managed[self._state.waits[managed]].tolist():
            placement = plan.placements.get(self._work.ids[job])
            first = frozenset(self._types[kind] for kind in placement.gpus) if placement else _NONE
            self._state.lists[job] = self._by_speed(job, first)
        if self._state.order.may_change:
            self._exchange(plan, now)
        if self._may_wait:
            self._narrow(now)
        movable = dict(zip(view.jobs.ids, view.jobs.movable.tolist(), strict=True))
        if self._steering.preempt:
            self._make_way(plan, movable, now)
        if self._steering.moves:
            queue, pause_s = self._state.queue(self._tested), self._pause_s
            for job, placement in surplus.returned(self._state, plan, queue, now, pause_s):
                self._state.move(job, placement, now)
                movable[self._work.ids[job]] = False
            self._move(plan, movable, now)

    def _view(self, managed: IntArray, now: float) -> View:
        """The managed jobs, and the nodes without what the others hold."""
        state, steering = self._state, self._steering
        held = {job: seats for job, seats in state.seats.of.items() if self._asked.managed[job]}
        view = self._views.of(now, steering.tick_s, managed, state.present, held)
        gpus = self._gpus.copy()
        for job, seats in state.seats.of.items():
            if job not in held:
                for node, kind, count in seats:
                    gpus[node, kind] -= count
        stayed = state.present.since[managed] + steering.min_between_moves_s <= now
        jobs = replace(
            view.jobs if self._reported is None else self._reported.corrected(view.jobs, managed),
            priority=-state.order.owners(managed, now).astype(np.float64),
            movable=~view.jobs.running | (stayed & steering.moves),
        )
        return replace(view, nodes=replace(view.nodes, gpus=gpus), jobs=jobs)

    def _look_at_others(self) -> None:
        """Which types are accepted by unmanaged jobs that name several."""
        here = self._state.waits | self._state.runs
        types = self._asked.types[here & ~self._asked.managed]
        types = types[types.sum(axis=1) > 1]
        self._shared = frozenset(np.flatnonzero(types.any(axis=0)).tolist())

    def _by_speed(self, job: int, first: frozenset[int] = _NONE) -> list[int]:
        """A job's types: those of ``first``, then the fastest first, without the ones that are far
        slower. A job that may be moved keeps those that unmanaged jobs accept, or these would be
        left with them."""
        shared = self._shared if self._steering.moves else _NONE
        return self._preference.order(job, self._asked.kinds(job), first, shared)

    def _exchange(self, plan: Plan, now: float) -> None:
        order, waiting = self._state.order, self._state.waiting()
        if order.unpromised(waiting):
            line = waiting[np.argsort(order.owners(waiting, now))]
            times = self._foresight.times(line, self._state.present.done)
            ends = self._foresight.ends(line, times, self._released(now))
            order.promise(line, now + ends)
        planned = np.array([self._work.ids[job] in plan.placements for job in waiting])
        order.exchange(waiting.tolist(), planned)

    def _narrow(self, now: float) -> None:
        """Takes from the lists of waiting jobs the types that are not worth taking."""
        state = self._state
        line = state.order.sort(state.waiting())
        longest = self._work.arrival_s[line] + self._steering.max_wait_s - now
        times = self._foresight.times(line, state.present.done)
        lists = [state.lists[job] for job in line.tolist()]
        kept = self._foresight.narrowed(line, times, self._released(now), lists, longest)
        for job, kinds in zip(line.tolist(), kept, strict=True):
            state.lists[job] = list(kinds)

    def _released(self, now: float) -> Pools:
        state, jobs = self._state, self._state.running()
        begins = np.maximum(state.ready[jobs] - now, 0.0)
        ran, done = now - state.present.since[jobs], state.present.done[jobs]
        running = RunningJobs(jobs, ran, begins, done, state.speed[jobs], state.on[jobs])
        return self._foresight.released(state.free(), running)

    def _make_way(self, plan: Plan, movable: Mapping[str, bool], now: float) -> None:
        """Stops running jobs for those that the plan starts."""
        state, ids = self._state, self._work.ids
        candidates = [
            job
            for job in state.placed
            if self._asked.managed[job] and ids[job] not in plan.placements and movable[ids[job]]
        ][: self._steering.max_moves_per_tick]
        if not candidates:
            return
        newcomers = {self._index[id_] for id_ in plan.placements} - state.placed.keys()
        queue = state.queue(self._tested)
        for job in stopped(queue, newcomers, candidates, state.on, state.free()):
            state.requeue(job, now)
            state.lists[job] = self._by_speed(job)

    def _move(self, plan: Plan, movable: Mapping[str, bool], now: float) -> None:
        """Moves running jobs to GPUs that no waiting job can use."""
        state, left = self._state, self._steering.max_moves_per_tick
        moves = []
        for id_, placement in plan.placements.items():
            job = self._index[id_]
            was = state.placed.get(job)
            if was is None or not movable[id_] or not placement.gpus:
                continue
            if dict(was.gpus) != dict(placement.gpus) or was.batch != placement.batch:
                moves.append((job, placement))
        if not moves:
            return
        leaving = [job for job, _ in moves[:left]]
        places = OpenPlaces(state, state.queue(self._tested), leaving, now)
        for job, placement in moves:
            if left <= 0 or not places.is_open(job, placement):
                continue
            choices = (placement, replace(placement, nodes={}))
            wanted = next((one for one in choices if state.fits(job, one)), None)
            if wanted is not None:
                places.take(job, wanted)
                state.move(job, wanted, now)
                left -= 1
