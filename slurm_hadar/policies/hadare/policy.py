"""HadarE: Hadar, with jobs forked into copies on further nodes so that no node is idle beside work.

arXiv 2503.10918. Verified in the paper: jobs are forked into copies that train at the same time on
different nodes, and the gain. Recalled: at most as many copies as there are nodes, one node each;
in each round the remaining work is divided in proportion to throughput, and parameters are averaged
after it.

Here Hadar places each job first; the nodes that it leaves become further copies of jobs that may be
forked (``JobArrays.copies``), see :mod:`.forks`. The rate of a job is the sum of its copies' rates
less ``averaging``. Gangs over several nodes are not forked. A job that may not be moved now keeps
its copies; a waiting job comes before any second copy.

Options: Hadar's, and ``averaging``.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.hadare.completion import with_copies
from slurm_hadar.policies.hadare.forks import ForkSettings
from slurm_hadar.policies.hadare.main_copies import place, running
from slurm_hadar.policies.record import Policy, Trait


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = ForkSettings.read(view.options)
    before, past = state.get("forked"), state.get("hadar")
    forked = before if isinstance(before, dict) else {}
    now = running(view, forked, settings.min_stay_s)
    plan, memory = place(view, now, past if isinstance(past, dict) else {})
    if not plan.placements:
        return plan, {"hadar": memory, "forked": {}}
    gangs = {id_ for id_, placement in plan.placements.items() if len(placement.nodes) > 1}
    may = np.array([id_ not in gangs for id_ in view.jobs.ids], dtype=np.bool_)
    found, note = with_copies(view, plan, now, may, settings)
    copies = {
        id_: one.copies
        for id_, one in found.placements.items()
        if one.copies > 1 and id_ not in gangs
    }
    notes = tuple(f"before forking: {words}" for words in plan.notes)
    return replace(found, notes=(*notes, note)), {"hadar": memory, "forked": copies}


POLICY = Policy(
    name="hadare",
    decide=decide,
    options=ForkSettings,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.COPIES}),
    title="hadar, then spare nodes train copies of jobs that may be forked",
    paper="HadarE, arXiv 2503.10918",
)
