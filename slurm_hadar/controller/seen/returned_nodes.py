"""Nodes that were down a moment ago.

When a node goes DOWN, Slurm requeues its jobs at once, while their processes there may take as long
as KillWait to leave. A job that starts there again meanwhile is ended with its own last attempt:
Slurm compares the node only (seen on 22.05.8: FAILED, JobLaunchFailure). Slurm itself waits for
cred_expire before it starts a requeued job; as the controller does not, it leaves such nodes alone.
A node that is only drained or reserved kept its jobs and is used as soon as it is open again.
"""

from collections.abc import Mapping
from dataclasses import replace

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.node import Node
from slurm_hadar.slurm.states import node_keeps_its_jobs

_KEPT_AS = "returned nodes"


class ReturnedNodes:
    """Remembers when each node was last seen down, over restarts of the controller too."""

    def __init__(self, store: Store, after_s: float) -> None:
        """``after_s``: how long a node that came back is not used yet."""
        self._store, self._after_s = store, after_s
        kept = store.policy_state(_KEPT_AS)
        self._last = {name: at for name, at in kept.items() if isinstance(at, int | float)}

    def applied(self, nodes: Mapping[str, Node], now: float) -> dict[str, Node]:
        """The nodes; those that came back less than ``after_s`` ago still count as unusable."""
        self._last |= {
            name: now for name, node in nodes.items() if not node_keeps_its_jobs(node.state)
        }
        # A time ahead was noted before the clock was set back.
        recent = {n for n, at in self._last.items() if 0 <= now - at < self._after_s}
        return {
            name: replace(node, usable=False) if name in recent else node
            for name, node in nodes.items()
        }

    def keep(self, now: float) -> None:
        """Write down what the next controller must know."""
        self._last = {n: at for n, at in self._last.items() if 0 <= now - at < self._after_s}
        self._store.keep_policy_state(_KEPT_AS, dict(self._last))
