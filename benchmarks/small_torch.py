"""Imports PyTorch without what a small training on CPUs does not use: half of the CPU time of the
import, more than a second of it, in each process of many short trainings.

A program imports this before it imports torch. For a script that does not, run
``python small_torch.py SCRIPT [ARGUMENT...]``. Not for process groups: ``torch.distributed`` uses
what is left out.
"""

import gc
import runpy
import sys
from pathlib import Path
from types import ModuleType

_UNUSED = ("torch._meta_registrations", "torch.distributions", "torch.export")
_COMPILER = "torch._dynamo"
"""An optimizer imports it at its first step."""


def _import_torch() -> None:
    for name in _UNUSED:
        sys.modules.setdefault(name, ModuleType(name))
    compiler = ModuleType(_COMPILER)
    vars(compiler).update(graph_break=lambda: None, disable=lambda function, *_, **__: function)
    sys.modules.setdefault(_COMPILER, compiler)
    # What is imported stays: the collector looks through it again and again for nothing.
    gc.disable()
    import torch

    if hasattr(torch._C, "_set_generator_metaclass"):
        # As torch._prims does, which comes with what is left out.
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    gc.freeze()
    gc.enable()


_import_torch()
if __name__ == "__main__":
    del sys.argv[0]
    # Where Python looks for modules as if it had been started with the script.
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
