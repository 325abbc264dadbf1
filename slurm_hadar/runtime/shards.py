"""Tensors that several processes hold in part, through torch.distributed.checkpoint (DCP).

Parts of a training as state dicts, cut into the tensors that go into a folder of shards and the
plain values that do not; the folder, written by all processes and read by any number of them.
"""

import contextlib
import pickle
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime.ranks import is_sharded

try:
    from torch.distributed.checkpoint import filesystem, metadata
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
    from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
except ImportError as error:
    raise UsageError(f"this build of torch cannot save in shards: {error}") from None

Tensors = dict[str, torch.Tensor]
Where = list[str | int]
"""The keys and positions that lead to a value in a state dict."""

# One process alone is what no_dist says.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class ModelPart:
    """A model; all its tensors go into the shards."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """By the names of its parameters and buffers."""
        return dict(get_model_state_dict(self._model))

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Raises RuntimeError for one of another model."""
        set_model_state_dict(self._model, kept)


class OptimizerPart:
    """An optimizer, by the names of its parameters in ``model``; all its tensors go into the
    shards."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model

    def state_dict(self) -> dict[str, Any]:
        """Flat: one entry for each value of each parameter."""
        if not self._optimizer.state:
            # To ask for it by names would make a step, for which hooks of the loop listen.
            return {"plain": self._optimizer.state_dict()}
        return dict(get_optimizer_state_dict(self._model, self._optimizer, options=_FLAT))

    def to_load(self) -> dict[str, Any]:
        """A state dict that a checkpoint is read into."""
        return dict(get_optimizer_state_dict(self._model, self._optimizer, options=_FLAT))

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Raises RuntimeError, KeyError or ValueError for one of another optimizer."""
        if "plain" in kept:
            self._optimizer.load_state_dict(kept["plain"])
            return
        set_optimizer_state_dict(self._model, self._optimizer, kept, options=_FLAT)


def by_name(parts: Mapping[str, Any]) -> dict[str, Any]:
    """``parts`` with the tensors of models and optimizers under names that fit any number of
    processes. Raises UsageError for an optimizer whose parameters are in no model among them."""
    models = {key: part for key, part in parts.items() if isinstance(part, torch.nn.Module)}
    found: dict[str, Any] = {}
    for key, part in parts.items():
        if key in models:
            found[key] = ModelPart(part)
        elif isinstance(part, torch.optim.Optimizer):
            found[key] = OptimizerPart(part, _owner(key, part, list(models.values())))
        else:
            found[key] = part
    return found


def _owner(
    key: str, optimizer: torch.optim.Optimizer, models: list[torch.nn.Module]
) -> torch.nn.Module:
    steered = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for model in models:
        if steered <= {id(one) for one in model.parameters()}:
            return model
    raise UsageError(
        f"{key}=...: hand in the model that has all parameters of this optimizer, too (several "
        "models: as one torch.nn.ModuleDict)"
    )


def cut(parts: Mapping[str, Any]) -> tuple[dict[str, Any], Tensors, dict[str, list[Where]]]:
    """The state of ``parts``: without the tensors for the shards, these, and where they belong."""
    plain: dict[str, Any] = {}
    tensors: Tensors = {}
    places: dict[str, list[Where]] = {}
    for key, part in parts.items():
        state = part.state_dict()
        every = isinstance(part, ModelPart | OptimizerPart) and "plain" not in state
        found: list[tuple[Where, torch.Tensor]] = []
        rest = _without(state, [], every, found)
        # What has none stays as it is, whatever its types are.
        plain[key] = rest if found else state
        if found:
            places[key] = [where for where, _ in found]
            tensors.update({_name(key, where): tensor for where, tensor in found})
    return plain, tensors, places


def _without(value: Any, where: Where, every: bool, found: list[tuple[Where, torch.Tensor]]) -> Any:
    """``value`` with None for each tensor that is appended to ``found``."""
    if isinstance(value, torch.Tensor):
        if every or is_sharded(value):
            found.append((where, value))
            return None
        return value
    if isinstance(value, dict):
        return {key: _without(one, [*where, key], every, found) for key, one in value.items()}
    if isinstance(value, list | tuple):
        kept = [_without(one, [*where, at], every, found) for at, one in enumerate(value)]
        return tuple(kept) if isinstance(value, tuple) else kept
    return value


def to_read(parts: Mapping[str, Any], places: Mapping[str, list[Where]]) -> Tensors:
    """The tensors of ``parts`` that shards are read into. Raises KeyError where one is missing."""
    tensors: Tensors = {}
    for key, wheres in places.items():
        part = parts[key]
        state = part.to_load() if isinstance(part, OptimizerPart) else part.state_dict()
        for where in wheres:
            name = _name(key, where)
            value: Any = state
            for step in where:
                value = value[step]
            if not isinstance(value, torch.Tensor):
                raise KeyError(f"{name} is no tensor here")
            tensors[name] = value
    return tensors


def joined(key: str, plain: Any, wheres: list[Where], tensors: Tensors) -> Any:
    """The state of part ``key`` from what :func:`cut` made of it."""
    return _with(plain, [], {tuple(where): tensors[_name(key, where)] for where in wheres})


def _with(value: Any, where: Where, tensors: Mapping[tuple[str | int, ...], Any]) -> Any:
    if value is None:
        return tensors.get(tuple(where))
    if isinstance(value, dict):
        return {key: _with(one, [*where, key], tensors) for key, one in value.items()}
    if isinstance(value, list | tuple):
        kept = [_with(one, [*where, at], tensors) for at, one in enumerate(value)]
        return tuple(kept) if isinstance(value, tuple) else kept
    return value


def _name(key: str, where: Where) -> str:
    return ".".join([key, *map(str, where)])


class _Files(filesystem.FileSystem):
    """Makes no folder but the last: that of a stale attempt is gone, and must stay so."""

    def mkdir(self, path: Any) -> None:
        Path(path).mkdir(exist_ok=True)


def _writer(folder: Path) -> FileSystemWriter:
    writer = FileSystemWriter(folder)
    writer.fs = _Files()
    return writer


def save(folder: Path, tensors: Tensors, group: Any) -> None:
    """Write ``tensors`` into ``folder``; in every process of ``group`` (None: one alone) alike.

    Raises OSError, in all of them, where one could not.
    """
    with _as_os_error():
        dcp_save(
            tensors,
            storage_writer=_writer(folder),
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=group,
            no_dist=group is None,
        )


def begin_save(folder: Path, tensors: Tensors, group: Any) -> "Future[Any]":
    """As :func:`save`, from copies that are made now, while the training goes on.

    ``group``: one that nothing else uses. When the first process is done all have written.
    """
    with _as_os_error():
        done: Any = dcp_async_save(
            tensors,
            storage_writer=_writer(folder),
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=group,
            no_dist=group is None,
        )
    assert isinstance(done, Future)
    return done


def finish_save(done: "Future[Any]") -> None:
    """Wait for what :func:`begin_save` began. Raises OSError as :func:`save`."""
    with _as_os_error():
        done.result()


def load(folder: Path, tensors: Tensors, group: Any) -> None:
    """Read into ``tensors``, however many processes wrote them; in every process alike.

    Raises ValueError, in all of them, where they are not those of the folder; OSError.
    """
    try:
        dcp_load(
            tensors,
            storage_reader=_Reader(folder),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as failure:
        found = _first(failure)
        raise found if isinstance(found, OSError) else ValueError(str(found)) from None


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Each way to say that a write failed, as OSError."""
    try:
        yield
    except OSError:
        raise
    except (Exception, CheckpointException) as error:
        found = _first(error) if isinstance(error, CheckpointException) else error
        if isinstance(found, OSError):
            raise found from None
        raise OSError((str(found) or repr(found)).splitlines()[0]) from None


def _first(failure: CheckpointException) -> Exception:
    """What went wrong in the first of the processes where something did."""
    errors = [error for _, (error, _) in sorted(failure.failures.items())]
    found = errors[0] if errors else failure
    return found if isinstance(found, Exception) else OSError(str(found))


class _Reader(FileSystemReader):
    """Reads the list of a folder's tensors without running code from it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with (Path(self.path) / ".metadata").open("rb") as stream:
            return _Plain(stream).load()


class _Plain(pickle.Unpickler):
    """Knows the classes of such a list and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if module == metadata.__name__ and name in _CLASSES:
            return getattr(metadata, name)
        if (module, name) == (filesystem.__name__, "_StorageInfo"):
            return filesystem._StorageInfo
        if module == "torch":
            found = getattr(torch, name, None)
            if found is torch.Size or isinstance(found, torch.dtype):
                return found
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if module.startswith("pathlib") and name in ("PosixPath", "PurePosixPath"):
            return Path
        if (module, name) == ("builtins", "getattr"):
            return _memory_format
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise pickle.UnpicklingError(f"it names {module}.{name}")


_CLASSES = {
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
}


def _memory_format(owner: Any, name: str) -> Any:
    """How an enumeration's value is pickled."""
    if owner is not metadata._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it asks for {name}")
    return owner[name]
