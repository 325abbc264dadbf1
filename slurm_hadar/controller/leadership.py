"""Which controller acts: whether this one may in a tick, and whether another one did before it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.state_errors import heartbeat_error
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import (
    SETTLE_S,
    me,
    newest_heartbeat,
    rival_in,
    stop_file_exists,
    taken_over,
    takes_over_from,
)
from slurm_hadar.exchange.heartbeat import Heartbeat, Writer, read_heartbeat, write_heartbeat

_ANOTHER = "another_acted"
"""Under this name the store keeps that another controller acted, until a tick has taken over."""


@dataclass(frozen=True)
class Turn:
    """What one tick may do. ``why_not``: why it changes nothing in Slurm; empty where it may.
    ``alone``: whether no other controller is active, so that it keeps the exchange folder in
    order. ``took_over``: whether it is the first after another controller, or after a pause.
    ``host_changed``: whether the last heartbeat before it is another host's."""

    why_not: str
    alone: bool
    took_over: bool
    host_changed: bool


class Leadership:
    """Finds out who acts, by the heartbeat in the exchange folder and the stop file."""

    def __init__(self, config: Config, store: Store, sleep: Callable[[float], None]) -> None:
        """``sleep``: takes seconds."""
        self._config, self._store, self._sleep = config, store, sleep
        self.another_acted: bool | None = None
        """Whether another controller may have changed jobs since this one did so last; None:
        that was not looked at yet."""

    def begin(
        self, now: Callable[[], float], interval_s: float, takes_lists: bool, process: str
    ) -> Turn:
        """Look who acts and write this controller's heartbeat, unless another one is active.

        ``now``: s since the epoch. ``interval_s``, ``takes_lists``: see :func:`write_heartbeat`;
        ``process``: see :class:`Writer`. Raises HadarError where the exchange folder does not
        answer or takes no heartbeat.
        """
        beat, own = newest_heartbeat(self._config), me(self._config)
        other = rival_in(beat, own, now())
        host_changed = beat is not None and beat.host != own.host
        acted = self._look(beat)
        if other is not None:
            why = f"a controller on {other} is active; running read-only"
            return Turn(why, False, acted, host_changed)
        why_not = self.why_not()
        begins = not why_not and takes_over_from(beat, own, now())
        if acted:
            # The heartbeat that shows it is replaced now, and this tick may fail.
            with self._store.readable_errors():
                self._store.keep_policy_state(_ANOTHER, {"acted": True})
        folder, writer = self._config.site.exchange_dir, Writer(own.identity, process)
        try:
            mode = "observe" if why_not else "act"
            write_heartbeat(folder, mode, interval_s, takes_lists, writer)
        except OSError as error:
            raise heartbeat_error(folder, error) from None
        if begins:
            self._sleep(SETTLE_S)
            other = rival_in(newest_heartbeat(self._config), own, now())
            if other is not None:
                why = f"a controller on {other} took over at the same time; running read-only"
                return Turn(why, False, True, host_changed)
        return Turn(why_not, True, acted or begins, host_changed)

    def look(self) -> bool:
        """Whether another controller may have changed jobs since this one did so last."""
        folder, uid = self._config.site.exchange_dir, self._config.controller_uid
        return self._look(read_heartbeat(folder, uid))

    def _look(self, beat: Heartbeat | None) -> bool:
        acted = beat is not None and beat.mode != "observe" and not me(self._config).wrote(beat)
        with self._store.readable_errors():
            acted = acted or bool(self._store.policy_state(_ANOTHER))
        self.another_acted = acted
        return acted

    def has_acted(self) -> None:
        """This controller acts again, and has kept what the other one did. Raises sqlite3.Error."""
        if self.another_acted:
            self._store.keep_policy_state(_ANOTHER, {})

    def why_not(self) -> str:
        """Why nothing may be changed, by the site's word; empty where it may."""
        if self._config.site.mode != "act":
            return "observe mode: nothing is changed (site.mode)"
        stop = self._config.guards.stop_file
        try:
            stopped = stop_file_exists(self._config)
        except OSError as error:
            return f"{stop} cannot be looked for ({error.strerror}): nothing is changed"
        return f"{stop} exists: nothing is changed" if stopped else ""

    def taken_over(self) -> str:
        """Why a tick that began may send nothing more, by the heartbeat; empty where it may."""
        # By the clock that the heartbeat was written with.
        return taken_over(self._config, time.time())

    def stopped(self) -> str:
        """Why nothing more may be sent since the tick began: it may have taken longer than a
        heartbeat lasts. Empty where all is as it was."""
        return self.taken_over() or self.why_not()
