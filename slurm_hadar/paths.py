"""Where the configuration and the small JSON beside it lie: one rule for everybody.

Plain strings and no import but ``os``, since ``hbatch`` comes here at every submit.
"""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH110, PTH111, PTH122

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENV = "HADAR_CONFIG"
"""Environment variable that names the configuration file."""
SYSTEM_CONFIG = "/etc/slurm-hadar/hadar.toml"
USER_CONFIG = "~/.config/slurm-hadar/hadar.toml"


def config_file(environment: Mapping[str, str]) -> str:
    """The configuration file: ``$HADAR_CONFIG``, the user's own, the system's, in this order."""
    named = environment.get(ENV)
    if named:
        return named
    own = os.path.expanduser(USER_CONFIG)
    return own if os.path.exists(own) else SYSTEM_CONFIG


def wrapper_file(config: str) -> str:
    """The small JSON beside the TOML that hbatch reads."""
    return os.path.splitext(config)[0] + ".hbatch.json"
