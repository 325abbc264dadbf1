"""Imports PyTorch without what a small training on CPUs does not use: more than half of the CPU
time of the import, 0.65 s of 1.1 s, in each process of many short trainings.

A program imports this before it imports torch. For a script that does not, run
``python small_torch.py SCRIPT [ARGUMENT...]``. Not for process groups: ``torch.distributed`` uses
what is left out.
"""

import gc
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_UNUSED = ("torch._meta_registrations", "torch.distributions", "torch.export")
_COMPILER = "torch._dynamo"
"""An optimizer imports it at its first step."""
_TRACING = "torch._guards"
"""What loads a checkpoint asks it whether a model is traced."""
_NAMED_ONLY = (
    "torch._functorch",
    "torch._higher_order_ops",
    "torch._logging",
    "torch._native",
    "torch._subclasses",
    "torch.ao",
    "torch.fx",
    "torch.hub",
    "torch.masked",
    "torch.nested",
    "torch.nn.intrinsic",
    "torch.nn.parallel",
    "torch.package",
    "torch.quantization",
    "torch.testing",
    "torch.utils._debug_mode",
    "torchgen",
)
"""Packages of which the import of torch only takes names. Whoever calls one of these later gets
an error."""
_NAMED_FIRST = ("torch.utils.data", "unittest.mock")
"""The same, but who imports one of these later gets the real one."""
_imported = False


class _LeftOut(type):
    """The class of what stands for a name: as decorator, base, annotation or in ``isinstance``."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _left_out(f"{cls.__name__}.{name}")

    def __call__(cls, *given: Any, **more: Any) -> Any:
        if "left_out" not in vars(cls):
            return super().__call__(*given, **more)
        if _imported:
            raise RuntimeError(f"{cls.__name__} is left out by small_torch.py")
        decorates = len(given) == 1 and not more and callable(given[0])
        return given[0] if decorates else _left_out(f"{cls.__name__}()")

    def __getitem__(cls, _: object) -> "_LeftOut":
        return cls

    def __or__(cls, _: object) -> "_LeftOut":
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[object]:
        return iter(())


def _left_out(name: str) -> _LeftOut:
    return _LeftOut(name, (), {"left_out": True})


class _Names(ModuleType):
    """A module with every name."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _imported and self.__name__ in _NAMED_FIRST:
            return getattr(import_module(self.__name__), name)
        vars(self)[name] = found = _left_out(f"{self.__name__}.{name}")
        return found


class _NamedOnly:
    """Finds :data:`_NAMED_ONLY` and what is in them before Python does."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        if _is_in(name, _NAMED_ONLY) or (not _imported and _is_in(name, _NAMED_FIRST)):
            return ModuleSpec(name, _NamedOnly, is_package=True)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    @staticmethod
    def exec_module(_: ModuleType) -> None:
        """There is nothing to run."""


def _import_torch() -> None:
    for name in _UNUSED:
        sys.modules.setdefault(name, ModuleType(name))
    compiler, tracing = ModuleType(_COMPILER), _Names(_TRACING)
    vars(compiler).update(graph_break=lambda: None, disable=lambda function, *_, **__: function)
    vars(tracing)["detect_fake_mode"] = lambda _=None: None
    for module in (compiler, tracing):
        sys.modules.setdefault(module.__name__, module)
    global _imported
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _NamedOnly)
    # What is imported stays: the collector looks through it again and again for nothing.
    gc.disable()
    import torch

    vars(torch).setdefault("_guards", tracing)
    if hasattr(torch._C, "_set_generator_metaclass"):
        # As torch._prims does, which comes with what is left out.
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    gc.freeze()
    gc.enable()
    _imported = True
    for name, module in list(sys.modules.items()):
        if isinstance(module, _Names) and _is_in(name, _NAMED_FIRST):
            del sys.modules[name]
            for found in [key for key, one in vars(module).items() if isinstance(one, _LeftOut)]:
                delattr(module, found)


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in packages)


_import_torch()
if __name__ == "__main__":
    del sys.argv[0]
    # Where Python looks for modules as if it had been started with the script.
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
