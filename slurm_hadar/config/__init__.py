"""The site's TOML, typed, with every default in one place.

Units stand in the names: ``_s`` seconds, ``_gb`` GB, ``_mb`` MB.
"""

from slurm_hadar.config.cluster import (
    GpuType,
    Partitions,
    Profiles,
    Rollout,
    Simulation,
    Site,
    Slurm,
    Wrapper,
)
from slurm_hadar.config.reader import (
    TO_ASK,
    find,
    load,
    load_believed,
    load_to_check,
    parse,
    wrapper_path,
)
from slurm_hadar.config.reporting import AlertSettings, Energy, Log, Metrics, Status, Web
from slurm_hadar.config.schema import Config, group_types, uid_of
from slurm_hadar.config.steering import Backfill, ControllerSettings, Guards, Moving, Queue

__all__ = [
    "TO_ASK",
    "AlertSettings",
    "Backfill",
    "Config",
    "ControllerSettings",
    "Energy",
    "GpuType",
    "Guards",
    "Log",
    "Metrics",
    "Moving",
    "Partitions",
    "Profiles",
    "Queue",
    "Rollout",
    "Simulation",
    "Site",
    "Slurm",
    "Status",
    "Web",
    "Wrapper",
    "find",
    "group_types",
    "load",
    "load_believed",
    "load_to_check",
    "parse",
    "uid_of",
    "wrapper_path",
]
