"""The queue as Slurm itself shows it, for a page whose controller does not answer.

Slurm is asked once for all users, and again after a while at the earliest. A page of the
controller's user may know all jobs, so what each user sees of them hangs on Slurm's PrivateData; a
page that a user started knows what Slurm shows to that user.
"""

import os
import time

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.observation.accounting_limits import FAULTS
from slurm_hadar.controller.observer import Observer
from slurm_hadar.controller.presentation import without_controller
from slurm_hadar.controller.presentation.cluster_view import cluster_view
from slurm_hadar.controller.presentation.overview import (
    Sight,
    Viewer,
    controller_state,
    midnight,
)
from slurm_hadar.controller.service.placement_history import DAY_S, PlacementHistory
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.reports.cluster import ClusterView, JobTimeline
from slurm_hadar.reports.status import STATE_FILE
from slurm_hadar.slurm.cluster import Cluster, open_cluster
from slurm_hadar.web.state_file import opened

_LEAST_S, _FAILED_S = 30.0, 10.0


class QueueOfSlurm:
    """Answers as the controller would; each call blocks, and they come from one thread."""

    def __init__(self, config: Config, controllers_uid: int) -> None:
        self.again_s = max(_LEAST_S, config.controller.interval_s)
        """Slurm is asked again after so many seconds."""
        self._config, self._controllers_uid = config, controllers_uid
        self._cluster: Cluster | None = None
        self._known: tuple[float, Sight, frozenset[str]] | None = None
        self._failed: tuple[float, HadarError] | None = None

    def cluster(self, uid: int) -> ClusterView:
        """The cluster and the queue, as this user may see them. Raises HadarError."""
        sight, private = self._newest(time.time())
        return cluster_view(sight, self._viewer(uid, private))

    def timeline(self, uid: int) -> JobTimeline:
        """The day before the controller's last tick, as the state file has it, to this user.
        Raises HadarError where that cannot be read."""
        if os.getuid() != self._controllers_uid:
            raise HadarError("the timeline is the controller's; it is shown when one runs")
        viewer = self._viewer(uid, self._newest(time.time())[1])
        with opened(self._config) as store:
            day = PlacementHistory(store.connection)
            day.read(time.time())
            until = day.last_s or time.time()
            return day.timeline(until, store.moves_since(until - DAY_S), viewer)

    def _viewer(self, uid: int, private: frozenset[str]) -> Viewer:
        everything = uid in (0, self._controllers_uid)
        hidden = frozenset() if everything else private
        return Viewer(uid, everything, "jobs" in hidden, "nodes" in hidden)

    def _newest(self, now: float) -> tuple[Sight, frozenset[str]]:
        if self._failed is not None and now - _FAILED_S < self._failed[0] <= now:
            raise self._failed[1]
        if self._known is None or not now - self.again_s < self._known[0] <= now:
            try:
                self._known = (now, *self._asked(now))
            except HadarError as error:
                self._failed = (now, error)
                raise
        return self._known[1:]

    def _asked(self, now: float) -> tuple[Sight, frozenset[str]]:
        self._cluster = self._cluster or open_cluster(self._config.slurm)
        if os.getuid() != self._controllers_uid:
            # Slurm has hidden what the caller may not see.
            return without_controller.sight(self._config, self._cluster, now), frozenset()
        beat = read_heartbeat(self._config.site.exchange_dir, self._controllers_uid)
        with opened(self._config) as store:
            observer = Observer(self._config, self._cluster, store, os.getuid(), racks=False)
            observation = observer.observe(now)
            sight = Sight(
                observation,
                self._config,
                controller_state(beat, now),
                STATE_FILE,
                store.decisions.last(list(observation.jobs)),
                store.moves_since(midnight(now)),
                in_vain=store.all_in_vain(Kind.MOVE.value),
                accounting=store.policy_state(FAULTS),
            )
        return sight, observer.rules.private
