"""Whether a controller is at work, as a command on any host can know it."""

import socket
import time
from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.controller.lock import controllers_uid, process_ended, stop_file_exists
from slurm_hadar.controller.presentation import overview
from slurm_hadar.controller.service import client
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.reports.status import ControllerState


def controller_of(site: Config) -> ControllerState:
    """What the heartbeat, the stop file and, on the controller's host, its process say."""
    beat = read_heartbeat(site.site.exchange_dir, controllers_uid(site))
    state = overview.controller_state(beat, time.time())
    if beat is None or not state.alive:
        return state
    state = _with_stop_file(site, state)
    here = beat.host == socket.gethostname()
    # Under a timer each tick has its process, but there is no socket.
    if here and process_ended(beat) and client.refuses(site.status_socket):
        said = f"its process {beat.pid} on this host has ended and nothing listens at "
        said += f"{site.status_socket}: it was killed, or ticks come from a timer"
        state = replace(state, doubt=said)
    return state


def _with_stop_file(site: Config, state: ControllerState) -> ControllerState:
    stop = site.guards.stop_file
    try:
        return replace(state, stop_file=str(stop)) if stop_file_exists(site) else state
    except OSError as error:
        said = f"the stop file {stop} cannot be looked for by this user ({error.strerror}): "
        said += "if it exists, nothing is changed; ask an admin"
        return replace(state, stop_file_unseen=said)
