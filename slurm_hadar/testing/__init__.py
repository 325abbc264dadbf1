"""For tests of policies: views by hand, a check of plans. Provisional until release 0.2.

Random views for hypothesis: :func:`slurm_hadar.testing.strategies.views`.
"""

from slurm_hadar.policies.validity import held_by
from slurm_hadar.testing.views import (
    NOW,
    ROUND_S,
    applied,
    check_plan,
    crowd,
    jobs_of,
    nodes_of,
    place_of,
    places,
    view_of,
)

__all__ = [
    "NOW",
    "ROUND_S",
    "applied",
    "check_plan",
    "crowd",
    "held_by",
    "jobs_of",
    "nodes_of",
    "place_of",
    "places",
    "view_of",
]
