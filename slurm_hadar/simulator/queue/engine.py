"""The simulation in Slurm's order: its schedulers start the jobs, ticks steer those that opted in.

What the controller does at a tick, in short: the policy decides over the managed jobs; those
that wait get the planned type at the head of their list, and may leave out others; those that run
may move to GPUs that no waiting job can use, or be stopped for others. The policy has the
same guards.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.scheduling import schedule
from slurm_hadar.scheduling.profile import Profile, free_profiles
from slurm_hadar.scheduling.schedule import Waiting
from slurm_hadar.simulator.engine import Decide
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.job_owners import JobOwners
from slurm_hadar.simulator.outcome import Outcome, Timeline
from slurm_hadar.simulator.queue.foresight import Foresight, Pools, RunningJobs
from slurm_hadar.simulator.queue.making_way import AWAY_S, stopped
from slurm_hadar.simulator.queue.order import QueueOrder
from slurm_hadar.simulator.queue.reported_rates import ReportedRates
from slurm_hadar.simulator.queue.requests import Requests, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.queue.type_preference import TypePreference
from slurm_hadar.simulator.seats import Seats
from slurm_hadar.simulator.speed import TrueRates
from slurm_hadar.simulator.views import Present, Views
from slurm_hadar.simulator.workload import check, doable

_TOLERANCE = 1e-9
_ABSENT, _WAITS, _RUNS, _OVER = range(4)
_NONE: frozenset[int] = frozenset()


def simulate(setting: SimulationSetting, decide: Decide | None, policy: str = "") -> Outcome:
    """Run all jobs to their end. ``decide`` None: Slurm alone.

    Raises UsageError for a job that fits nowhere, HadarError for a plan that cannot be.
    """
    check(setting.workload, setting.cluster)
    run = _Run(setting, decide)
    began = time.perf_counter()
    run.to_the_end()
    return run.outcome(policy, time.perf_counter() - began)


class _Run:
    def __init__(self, setting: SimulationSetting, decide: Decide | None) -> None:
        work, cluster = setting.workload, setting.cluster
        jobs = len(work.ids)
        self.setting, self.decide, self.work, self.cluster = setting, decide, work, cluster
        self.asked: Requests = requests(work, cluster, setting.drawn)
        self.seats, self.speeds = Seats(cluster), TrueRates(work, cluster, setting.costs)
        told = setting.seen or estimate(work)
        told = replace(told, rate=told.rate * self.asked.types[:, :, None])
        steering = setting.steering
        guards = {
            "gain_over_cost": steering.gain_over_cost,
            "min_stay_s": steering.min_between_moves_s,
            "preempt": steering.preempt,
        }
        options = {**guards, **setting.options}
        self.views = Views(work, cluster, told, setting.costs, setting.seed, options)
        self.index = {id_: at for at, id_ in enumerate(work.ids)}
        self.types = {name: at for at, name in enumerate(cluster.types)}
        column = np.searchsorted(np.asarray(work.counts), work.request)
        can = doable(work, cluster)
        self.told: FloatArray = np.where(can, told.rate, 0.0)[np.arange(jobs), :, column]
        self.reported = ReportedRates.of(setting, told.rate)
        self.preference = TypePreference(self.told, column)
        self.foresight = Foresight(self.asked, work.request, self.told, told.total)
        # No guess keeps a job from a type.
        self.may_wait = steering.max_wait_s > 0 and told.known
        self.order = QueueOrder(work, self.asked, setting.steering.exchange)
        self.state: IntArray = np.full(jobs, _ABSENT)
        self.placed: dict[int, Placement] = {}
        self.lists: dict[int, list[int]] = {}
        self.present = Present.nothing(jobs)
        self.ready: FloatArray = np.zeros(jobs)
        self.speed: FloatArray = np.zeros(jobs)
        self.ends_by: FloatArray = np.full(jobs, inf)
        self.finish: FloatArray = np.full(jobs, np.nan)
        self.moves: IntArray = np.zeros(jobs, dtype=np.int64)
        self.away: FloatArray = np.zeros(jobs)
        self.shared = _NONE
        self.on: IntArray = np.zeros((jobs, len(cluster.types)), dtype=np.int64)
        self.decided, self.news = -inf, False
        self.decide_s: list[float] = []
        self.timeline = Timeline()

    def to_the_end(self) -> None:
        interval = self.setting.limits.interval_s
        arrivals = np.sort(self.work.arrival_s)
        now = float(arrivals[0])
        tick, filled, waits = now, -inf, False
        memory: State = {}
        while True:
            if self._arrive(now) or self._back(now) or waits:
                depth = self.setting.limits.depth
                schedule.main(self._queue(depth), len(self.cluster.types), self._starter(now))
                waits = True
            if waits and now >= filled + interval:
                profiles = free_profiles(self.cluster.capacity, self.on, self.ends_by, now)
                schedule.backfill(
                    self._queue(self.setting.limits.tested), profiles, self._starter(now)
                )
                filled, waits = now, False
            managed = self._managed()
            if now >= tick and len(managed):
                tick = now + self.setting.steering.tick_s
                if self.news or self._ripe(managed, now):
                    memory = self._tick(managed, memory, now)
                    waits = True
            until = self._next(now, arrivals)
            if waits:
                until = min(until, max(now, filled + interval))
            if len(managed):
                until = min(until, tick)
            if until == inf:
                return
            waits |= self._train(now, until)
            now = until

    def _next(self, now: float, arrivals: FloatArray) -> float:
        """When the next job ends or arrives; inf: never."""
        come = int(np.searchsorted(arrivals, now, side="right"))
        coming = float(arrivals[come]) if come < len(arrivals) else inf
        ending = self._ends(self._running(), now).min(initial=inf)
        return min(coming, float(ending), float(self.away[self.away > 0].min(initial=inf)))

    def _arrive(self, now: float) -> bool:
        """Jobs that arrived until now join the queue, with the list that hbatch gives them."""
        come = np.flatnonzero((self.work.arrival_s <= now) & (self.state == _ABSENT))
        self.state[come] = _WAITS
        self._look_at_others()
        self.news |= bool(len(come))
        for job in come.tolist():
            kinds = np.flatnonzero(self.asked.types[job]).tolist()
            steered = self.decide is not None and self.asked.managed[job]
            self.lists[job] = self._by_speed(job, kinds) if steered else kinds
        return bool(len(come))

    def _look_at_others(self) -> None:
        """Which types are accepted by unmanaged jobs that name several."""
        there = (self.state == _WAITS) | (self.state == _RUNS)
        types = self.asked.types[there & ~self.asked.managed]
        types = types[types.sum(axis=1) > 1]
        self.shared = frozenset(np.flatnonzero(types.any(axis=0)).tolist())

    def _back(self, now: float) -> bool:
        """Jobs that were stopped and may start again from now on; whether there are some."""
        back = (self.away > 0) & (self.away <= now)
        self.away[back] = 0.0
        return bool(back.any())

    def _by_speed(self, job: int, kinds: list[int], first: frozenset[int] = _NONE) -> list[int]:
        """Those of ``first``, then the fastest first, without the ones that are far slower. A job
        that may be moved keeps those that unmanaged jobs accept, or these would be left with
        them."""
        shared = self.shared if self.setting.steering.moves else _NONE
        return self.preference.order(job, kinds, first, shared)

    def _queue(self, most: int) -> list[Waiting]:
        """The first jobs of the queue in Slurm's order."""
        waiting = np.flatnonzero((self.state == _WAITS) & (self.away == 0))
        jobs = self.order.sort(waiting)[:most].tolist()
        counts, limits = self.work.request, self.asked.limit_s
        return [Waiting(j, self.lists[j], int(counts[j]), float(limits[j])) for j in jobs]

    def _starter(self, now: float) -> schedule.Start:
        def start(job: int, kind: int) -> bool:
            gpus = {self.cluster.types[kind]: int(self.work.request[job])}
            placement = Placement(gpus=gpus)
            if self.state[job] != _WAITS or not self._room(job, placement):
                return False
            self._start(job, placement, now)
            return True

        return start

    def _room(self, job: int, placement: Placement) -> bool:
        return self.seats.fits(job, placement, int(self.work.max_nodes[job]))

    def _start(self, job: int, placement: Placement, now: float) -> None:
        self.order.start(job)
        self.seats.take({job: placement}, self.work.ids)
        seats = self.seats.of[job]
        self.state[job], self.placed[job] = _RUNS, placement
        self.speed[job] = self.speeds.of(job, placement, seats)
        again = self.moves[job] > 0
        self.ready[job] = now + (self.setting.costs.pause_s if again else 0.0)
        self.ends_by[job] = now + self.asked.limit_s[job]
        self.present.since[job] = now
        batches = self.work.batches
        own = int(batches.base[job]) if batches is not None else 0
        self.present.batch[job] = placement.batch or own
        self.present.given[job] = self.speeds.cpus_and_memory(job, placement)
        for _, kind, count in seats:
            self.on[job, kind] += count
        self.news = True

    def _stop(self, job: int) -> None:
        del self.placed[job]
        self.on[job], self.speed[job] = 0, 0.0
        self.seats.release(job)
        self.news = True

    def _managed(self) -> IntArray:
        """Jobs that take part in ticks, rising."""
        if self.decide is None:
            return np.zeros(0, dtype=np.int64)
        there = (self.state == _WAITS) | (self.state == _RUNS)
        return np.flatnonzero(self.asked.managed & there)

    def _ripe(self, managed: IntArray, now: float) -> bool:
        """Whether a job has become movable since the last decision, or reports may be new."""
        runs = managed[self.state[managed] == _RUNS]
        at = self.present.since[runs] + self.setting.steering.min_between_moves_s
        return self.reported is not None or bool(((self.decided < at) & (at <= now)).any())

    def _tick(self, managed: IntArray, memory: State, now: float) -> State:
        assert self.decide is not None
        if self.reported is not None:
            runs = managed[self.state[managed] == _RUNS]
            self.reported.report(runs, self.on[runs], self.ready[runs], now)
            self.preference.correct(managed, self.reported)
        view = self._view(managed, now)
        began = time.perf_counter()
        plan, memory = self.decide(view, memory)
        self.decide_s.append(time.perf_counter() - began)
        self.decided, self.news = now, False
        self._look_at_others()
        for job in managed[self.state[managed] == _WAITS].tolist():
            placement = plan.placements.get(self.work.ids[job])
            first = frozenset(self.types[kind] for kind in placement.gpus) if placement else _NONE
            kinds = np.flatnonzero(self.asked.types[job]).tolist()
            self.lists[job] = self._by_speed(job, kinds, first)
        if self.order.may_change:
            self._exchange(plan, now)
        if self.may_wait:
            self._narrow(now)
        movable = dict(zip(view.jobs.ids, view.jobs.movable.tolist(), strict=True))
        if self.setting.steering.preempt:
            self._make_way(plan, movable, now)
        if self.setting.steering.moves:
            self._move(plan, movable, now)
        return memory

    def _make_way(self, plan: Plan, movable: Mapping[str, bool], now: float) -> None:
        """Stops running jobs for those that the plan starts."""
        ids = self.work.ids
        candidates = [
            job
            for job in self.placed
            if self.asked.managed[job] and ids[job] not in plan.placements and movable[ids[job]]
        ][: self.setting.steering.max_moves_per_tick]
        if not candidates:
            return
        newcomers = {self.index[id_] for id_ in plan.placements} - self.placed.keys()
        free = self.cluster.capacity - self.on.sum(axis=0)
        queue = self._queue(self.setting.limits.tested)
        for job in stopped(queue, newcomers, candidates, self.on, free):
            self._stop(job)
            self.moves[job] += 1
            self.state[job], self.away[job] = _WAITS, now + AWAY_S
            self.order.requeue(job, now)
            kinds = np.flatnonzero(self.asked.types[job]).tolist()
            self.lists[job] = self._by_speed(job, kinds)

    def _exchange(self, plan: Plan, now: float) -> None:
        waiting = np.flatnonzero(self.state == _WAITS)
        if self.order.unpromised(waiting):
            line = waiting[np.argsort(self.order.owners(waiting))]
            times = self.foresight.times(line, self.present.done)
            ends = self.foresight.ends(line, times, self._released(now))
            self.order.promise(line, now + ends)
        planned = np.array([self.work.ids[job] in plan.placements for job in waiting])
        self.order.exchange(waiting.tolist(), planned)

    def _narrow(self, now: float) -> None:
        """Takes from the lists of waiting jobs the types that are not worth taking."""
        line = self.order.sort(np.flatnonzero(self.state == _WAITS))
        longest = self.work.arrival_s[line] + self.setting.steering.max_wait_s - now
        times = self.foresight.times(line, self.present.done)
        lists = [self.lists[job] for job in line.tolist()]
        kept = self.foresight.narrowed(line, times, self._released(now), lists, longest)
        for job, kinds in zip(line.tolist(), kept, strict=True):
            self.lists[job] = list(kinds)

    def _released(self, now: float) -> Pools:
        jobs, present = self._running(), self.present
        begins = np.maximum(self.ready[jobs] - now, 0.0)
        ran, done = now - present.since[jobs], present.done[jobs]
        running = RunningJobs(jobs, ran, begins, done, self.speed[jobs], self.on[jobs])
        return self.foresight.released(self.cluster.capacity - self.on.sum(axis=0), running)

    def _view(self, managed: IntArray, now: float) -> View:
        """The managed jobs, and the nodes without what the others hold."""
        held = {job: seats for job, seats in self.seats.of.items() if self.asked.managed[job]}
        steering = self.setting.steering
        view = self.views.of(now, steering.tick_s, managed, self.present, held)
        gpus = self.cluster.gpus.copy()
        for job, seats in self.seats.of.items():
            if job not in held:
                for node, kind, count in seats:
                    gpus[node, kind] -= count
        stayed = self.present.since[managed] + steering.min_between_moves_s <= now
        jobs = replace(
            view.jobs if self.reported is None else self.reported.corrected(view.jobs, managed),
            priority=-self.order.owners(managed).astype(np.float64),
            movable=~view.jobs.running | (stayed & steering.moves),
        )
        return replace(view, nodes=replace(view.nodes, gpus=gpus), jobs=jobs)

    def _move(self, plan: Plan, movable: Mapping[str, bool], now: float) -> None:
        """Moves running jobs to GPUs that nobody who waits can use, now or by a reservation."""
        profiles = free_profiles(self.cluster.capacity, self.on, self.ends_by, now)
        tested = self._queue(self.setting.limits.tested)
        schedule.backfill(tested, profiles, lambda job, kind: True)
        left = self.setting.steering.max_moves_per_tick
        for id_, placement in plan.placements.items():
            job = self.index[id_]
            was = self.placed.get(job)
            if was is None or not movable[id_] or left <= 0 or not placement.gpus:
                continue
            if dict(was.gpus) == dict(placement.gpus) and was.batch == placement.batch:
                continue
            if self._moved(job, placement, profiles, now):
                left -= 1

    def _moved(
        self, job: int, placement: Placement, profiles: Mapping[int, Profile], now: float
    ) -> bool:
        more = {
            self.types[name]: count - int(self.on[job, self.types[name]])
            for name, count in placement.gpus.items()
        }
        limit = float(self.asked.limit_s[job])
        if any(n > 0 and profiles[kind].earliest(n, limit) > now for kind, n in more.items()):
            return False
        choices = (placement, replace(placement, nodes={}))
        wanted = next((one for one in choices if self._room(job, one)), None)
        if wanted is None:
            return False
        self._stop(job)
        self.moves[job] += 1
        self._start(job, wanted, now)
        for kind, n in more.items():
            profiles[kind].take(now, now + limit, max(0, n))
        return True

    def _running(self) -> IntArray:
        return np.fromiter(self.placed, dtype=np.int64, count=len(self.placed))

    def _ends(self, jobs: IntArray, now: float) -> FloatArray:
        left = self.work.total[jobs] - self.present.done[jobs]
        ends: FloatArray = np.maximum(self.ready[jobs], now) + left / self.speed[jobs]
        return ends

    def _train(self, now: float, until: float) -> bool:
        """Run to the next event; whether a job ended."""
        jobs = self._running()
        ends, done = self._ends(jobs, now), self.present.done
        over = ends <= until + _TOLERANCE * max(1.0, abs(until))
        stop = np.where(over, ends, until)
        trained = self.speed[jobs] * np.maximum(until - np.maximum(self.ready[jobs], now), 0.0)
        done[jobs] = np.where(over, self.work.total[jobs], done[jobs] + trained)
        gpu_s = self.on[jobs] * (stop - now)[:, None]
        self.present.attained[jobs] += gpu_s.sum(axis=1)
        waiting = int((self.state == _WAITS).sum())
        self.timeline.add(now, until, gpu_s.sum(axis=0), waiting)
        for job, end in zip(jobs[over].tolist(), stop[over].tolist(), strict=True):
            self._stop(job)
            self.state[job], self.finish[job] = _OVER, end
        return bool(over.any())

    def outcome(self, policy: str, wall_s: float) -> Outcome:
        """What came of it."""
        return Outcome(
            policy=policy,
            workload=self.work,
            capacity=self.cluster.capacity,
            finish_s=self.finish,
            moves=self.moves,
            attained=self.present.attained,
            decide_s=np.array(self.decide_s),
            wall_s=wall_s,
            timeline=self.timeline,
            owners=JobOwners(self.asked.users, self.asked.accounts),
            order="slurm",
            managed=self.asked.managed,
        )
