"""For authors of policies. Provisional: names and fields may still change until release 0.2.

A policy is a pure function ``decide(view, state) -> (plan, state)`` and a :class:`Policy` that says
what it is. A package registers it with an entry point of the group ``slurm_hadar.policies``.

- What a policy gets: :class:`View` with :class:`NodeArrays` and :class:`JobArrays`, whose arrays
  have their shape and unit beside them, and the traits :class:`CpuTrait`, :class:`BatchTrait`,
  :class:`NetworkTrait` and :class:`Prospects`, each None where nothing is known of it.
- What it returns: :class:`Plan` of :class:`Placement`.
- What it reads from ``View.options``: a subclass of :class:`PolicyOptions`.
- Which nodes have free capacity: :func:`resource_pools`, :class:`FreeCapacity`,
  :func:`allocations`, :func:`demands`, :func:`placement`.

Checks and builders for tests: :mod:`slurm_hadar.testing`.
"""

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import TIERS, BatchTrait, CpuTrait, NetworkTrait, Prospects
from slurm_hadar.domain.view import JobArrays, NodeArrays, State, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    FreeCapacity,
    ResourcePools,
    resource_pools,
)
from slurm_hadar.policies.allocation import demands_of as demands
from slurm_hadar.policies.allocation import held_allocations as allocations
from slurm_hadar.policies.allocation import placement_of as placement
from slurm_hadar.policies.options import Amount, Flag, Part, PolicyOptions, Whole
from slurm_hadar.policies.queues.list_scheduler import seconds_left
from slurm_hadar.policies.record import Decide, Policy, Trait

__all__ = [
    "TIERS",
    "Allocation",
    "Amount",
    "BatchTrait",
    "CpuTrait",
    "Decide",
    "Demand",
    "Flag",
    "FreeCapacity",
    "HadarError",
    "JobArrays",
    "NetworkTrait",
    "NodeArrays",
    "Part",
    "Placement",
    "Plan",
    "Policy",
    "PolicyOptions",
    "Prospects",
    "ResourcePools",
    "State",
    "Trait",
    "UsageError",
    "View",
    "Whole",
    "allocations",
    "demands",
    "placement",
    "resource_pools",
    "seconds_left",
]
