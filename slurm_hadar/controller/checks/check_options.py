"""``hadar check`` on ``controller.options``: what the policy does not know, or does not take."""

from collections.abc import Iterator
from difflib import get_close_matches

import numpy as np

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import JobArrays, NodeArrays, View


class _Noting(dict[str, object]):
    """Options that note which of them somebody looks for."""

    def __init__(self, values: dict[str, str | int | float | bool]) -> None:
        super().__init__(values)
        self.looked_for: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        self.looked_for[str(key)] = None
        return super().__contains__(key)

    def __getitem__(self, key: str) -> object:
        self.looked_for[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        """As of any mapping."""
        self.looked_for[key] = None
        return super().get(key, default)


def option_findings(config: Config) -> Iterator[Finding]:
    """Every policy reads its own options before all else and ignores the others', so it is asked to
    decide on an empty cluster, and what it looks for is noted."""
    name = config.controller.policy
    if name not in policies.names():
        return
    options = _Noting(config.controller.options)
    try:
        policies.get(name)(_empty(options), {})
    except UsageError as error:
        yield Finding("problem", f"controller.options: {error}", "correct it in the configuration")
        return
    known = sorted(options.looked_for)
    for option in config.controller.options:
        if option in options.looked_for:
            continue
        near = get_close_matches(option, known, n=1)
        cure = f"did you mean {near[0]}?" if near else f"it knows {', '.join(known) or 'none'}"
        yield Finding("warning", f"controller.options: policy {name} has no option {option}", cure)


def _empty(options: _Noting) -> View:
    none, no_cells = np.zeros(0), np.zeros((0, 0, 1))
    whole, false = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    nodes = NodeArrays((), np.zeros((0, 0), np.int64), whole, whole, whole, whole)
    jobs = JobArrays(
        ids=(),
        arrival_s=none,
        weight=none,
        priority=none,
        total=none,
        left=none,
        rate=no_cells,
        known=no_cells.astype(np.bool_),
        running=false,
        movable=false,
        mixable=false,
        held=np.zeros((0, 4), np.int64),
        since_s=none,
        restart_s=none,
        attained=none,
        cpus_per_gpu=none,
        mem_per_gpu_mb=none,
        groups=np.zeros((0, 0), np.bool_),
        max_nodes=whole,
    )
    return View(0.0, 360.0, 0, (), (1,), nodes, jobs, options)
