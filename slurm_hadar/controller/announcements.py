"""What a tick tells the operator once: that something begins, and that it is over."""

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.state_errors import new_file_message
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.accounting_limits import FAULTS, AccountingLimits
from slurm_hadar.controller.observation.group_problems import group_news, group_problems
from slurm_hadar.controller.observation.lost_gpus import lost_gpus, lost_news
from slurm_hadar.controller.observation.observed import Observation

_GROUPS, _LOST = "group_problems", "lost_gpus"
"""Under these names the store keeps what was reported of them."""


class Announcements:
    """Says what has changed since the last tick that came to its end."""

    def __init__(self, config: Config, store: Store, rules: AccountingLimits) -> None:
        self._config, self._store, self._rules = config, store, rules
        self._found: dict[str, dict[str, str]] = {}
        """What this tick found of what is said once, by its name in the store."""
        self._why_not, self._said_why_not = "", ""
        """Why nothing is changed: as this tick has it, and as the last one said it."""
        self.after_another = False
        """Whether the last heartbeat before this tick is of a controller on another host."""

    def of_changes(self, why_not: str) -> tuple[str, ...]:
        """Why this tick changes nothing, or that changes are sent again (``why_not`` is empty),
        where the one before said otherwise."""
        self._why_not = why_not
        return () if why_not == self._said_why_not else (why_not or "changes are sent again",)

    def of_cluster(self, observation: Observation) -> list[str]:
        """What the operator should know of the state file, lost GPUs, groups of partitions and
        the accounting database."""
        words = list(self._store.notes)
        # Of a new installation no job can tell.
        if self._store.new and observation.steering:
            folder, steered = self._config.site.state_dir, len(observation.steering)
            words.append(new_file_message(folder, steered, self.after_another))
        # Of ticks of a timer each is a process of its own.
        self._found = {
            _LOST: lost_gpus(observation.nodes.values(), observation.jobs.values()),
            _GROUPS: group_problems(observation, self._config),
            FAULTS: self._rules.faults,
        }
        known = {name: self._store.policy_state(name) for name in self._found}
        words += lost_news(known[_LOST], self._found[_LOST])
        words += group_news(known[_GROUPS], self._found[_GROUPS])
        words += self._rules.news(known[FAULTS])
        return words

    def reported(self) -> None:
        """The tick came to its end, so the operator knows. Raises sqlite3.Error."""
        self._store.opening_reported()
        for name, found in self._found.items():
            if self._store.policy_state(name) != found:
                self._store.keep_policy_state(name, dict(found))
        self._said_why_not = self._why_not
