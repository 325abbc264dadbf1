"""The whole file: its tables, and what follows from several of them."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr, field_validator

from slurm_hadar import users
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
from slurm_hadar.config.reporting import AlertSettings, Energy, Log, Metrics, Status, Web
from slurm_hadar.config.section import Section
from slurm_hadar.config.steering import Backfill, ControllerSettings, Guards, Moving, Queue
from slurm_hadar.domain.errors import UsageError

_RUN, _WEB = Path("/run/slurm-hadar/hadar.sock"), Path("/run/slurm-hadar-web/web.sock")


class Config(Section):
    """The whole file."""

    version: Literal[1] = 1
    site: Site = Site()
    slurm: Slurm = Slurm()
    gpu_types: dict[str, GpuType] = Field(default_factory=dict)
    partitions: Partitions = Partitions()
    queue: Queue = Queue()
    guards: Guards = Guards()
    moving: Moving = Moving()
    controller: ControllerSettings = ControllerSettings()
    backfill: Backfill = Backfill()
    profiles: Profiles = Profiles()
    wrapper: Wrapper = Wrapper()
    log: Log = Log()
    status: Status = Status()
    web: Web = Web()
    metrics: Metrics = Metrics()
    alerts: AlertSettings = AlertSettings()
    energy: Energy = Energy()
    rollout: Rollout = Rollout()
    simulation: Simulation = Simulation()
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> tuple[str, ...]:
        """What in the file has no effect any more, a sentence each."""
        return self._notes

    @property
    def ignored(self) -> tuple[str, ...]:
        """Mistakes in the file, a sentence each: their tables have defaults here."""
        return self._ignored

    @field_validator("gpu_types")
    @classmethod
    def _name_the_feature(cls, types: dict[str, GpuType]) -> dict[str, GpuType]:
        return {
            name: gpu.model_copy(
                update={"feature": gpu.feature or name, "profile": gpu.profile or name}
            )
            for name, gpu in types.items()
        }

    @property
    def status_socket(self) -> Path:
        """Where ``hadar run`` answers."""
        if self.status.socket is not None:
            return self.status.socket
        return _RUN if self.site.rights == "operator" else self.site.state_dir / _RUN.name

    @property
    def web_socket(self) -> Path:
        """Where ``hadar web`` answers."""
        if self.web.socket is not None:
            return self.web.socket
        # A folder of its own: systemd removes the controller's when that restarts.
        return _WEB if self.site.rights == "operator" else self.site.state_dir / _WEB.name

    @property
    def controller_uid(self) -> int:
        """UID whose plan files jobs believe. Raises UsageError when the user does not exist."""
        if not self.site.controller_user:
            return os.getuid()
        return uid_of("site.controller_user", self.site.controller_user)


def group_types(config: Config) -> dict[str, dict[str, str]]:
    """Group of ``partitions.groups`` -> its members -> the GPU type of each.

    A member is named like a GPU type of ``gpu_types`` or like that type's feature. A group with a
    member whose type is not clear by this is left out.
    """
    by_feature: dict[str, list[str]] = {}
    for name, gpu in config.gpu_types.items():
        by_feature.setdefault(gpu.feature, []).append(name)

    def type_of(member: str) -> str:
        named = by_feature.get(member, [])
        if member in config.gpu_types:
            return member
        return named[0] if len(named) == 1 else ""

    groups = {
        name: {member: type_of(member) for member in members}
        for name, members in config.partitions.groups.items()
    }
    return {name: types for name, types in groups.items() if types and all(types.values())}


def uid_of(key: str, user: str) -> int:
    """UID of the user whom a key of the file names. Raises UsageError when there is none."""
    uid = users.number_of(user)
    if uid is None:
        raise UsageError(
            f"{key} = {user!r} is no user of this machine; create it or correct the name"
        )
    return uid
