"""What a training script imports.

Nothing heavy is imported until it is used: the controller reads progress files through this
package and has no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_hadar.runtime.checkpoint_store import lineage
    from slurm_hadar.runtime.copies import Copies
    from slurm_hadar.runtime.fixed_scale import FixedScale
    from slurm_hadar.runtime.local_folder import LocalFolder
    from slurm_hadar.runtime.ranks import join
    from slurm_hadar.runtime.samples import Segment, check_lineage
    from slurm_hadar.runtime.session import Session
    from slurm_hadar.runtime.training import Batch, Training

_HOME = {
    "Batch": "training",
    "Copies": "copies",
    "FixedScale": "fixed_scale",
    "LocalFolder": "local_folder",
    "Segment": "samples",
    "Session": "session",
    "Training": "training",
    "check_lineage": "samples",
    "join": "ranks",
    "lineage": "checkpoint_store",
}
__all__ = [
    "Batch",
    "Copies",
    "FixedScale",
    "LocalFolder",
    "Segment",
    "Session",
    "Training",
    "check_lineage",
    "join",
    "lineage",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
