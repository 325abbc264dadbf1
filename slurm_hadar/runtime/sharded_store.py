"""Checkpoints of a model that is spread over processes: a file, and folders of shards beside it.

``PATH`` is a checkpoint as any other (see :mod:`.checkpoint`) without the tensors that go into
shards; it names the folder in ``PATH.shards`` that has them. All processes write a folder inside
the attempt's; the first one renames it out of there when all have written, and only then publishes
the file that names it. So what holds for the file holds for both: a killed save is never the
newest, and a stale attempt publishes nothing. A folder that neither ``PATH`` nor ``PATH.previous``
names is what a killed save left; the next save removes it, by a rename into the attempt's folder.
"""

import copy
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.progress import Saved
from slurm_hadar.runtime import checkpoint, finite, shards
from slurm_hadar.runtime.attempts import Attempt, AttemptId, Superseded, make_folder
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, State
from slurm_hadar.runtime.core import SessionCore
from slurm_hadar.runtime.ranks import Ranks


def shards_folder(path: Path) -> Path:
    """Where the checkpoint ``path`` and the one before have their shards."""
    return path.with_name(path.name + ".shards")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A save in the background: ``written`` ends when this process has written its shards,
    ``published`` when the first process has published them all."""

    written: "Future[Any]"
    published: "Future[None] | None"


class ShardedStore(CheckpointStore):
    """The checkpoints of one training, written by all its processes, read by any number of them.

    The tensors of models and optimizers, and all that several processes hold in part, are in the
    shards; the rest is the first process's. Raises UsageError for an optimizer whose model is not
    among the parts.
    """

    def __init__(
        self, path: Path, parts: Mapping[str, Any], core: SessionCore, *, trusted: bool
    ) -> None:
        super().__init__(path, shards.by_name(parts), core.say, trusted=trusted)
        self._path, self._ranks, self._model = path, core.ranks, parts.get("model")
        self._in_background = core.options.background
        self.collective = True
        self._group: Any = None
        self._begun: _Begun | None = None

    def begin_all_ranks(self, ranks: Ranks) -> AttemptId | None:
        """As of any store; all processes write, so all know the attempt."""
        identity = super().begin_all_ranks(ranks)
        if self.attempt is None and identity is not None:
            self.attempt = Attempt(self._path, identity)
        return identity

    def nonfinite(self) -> str:
        """As of any store, of the part of the model that is in this process."""
        return finite.nonfinite(self._model)

    def _read(self) -> tuple[checkpoint.Content, Path] | None:
        """As the first process finds it: another may see its files later."""
        found: tuple[checkpoint.Content, Path] | None = None
        failure: HadarError | None = None
        if self._ranks.first:
            try:
                found = checkpoint.load(
                    self._path, self._say, trusted=self._trusted, check=self._check_shards
                )
            except HadarError as error:
                failure = error
        found, failure, self.stamp = self._ranks.gather((found, failure, self.stamp))[0]
        if failure is not None:
            raise failure
        return found

    def _check_shards(self, content: checkpoint.Content) -> None:
        """Raises DamagedCheckpoint where a shard is missing or cut short, HadarError where that
        cannot be seen now."""
        if "shards" not in content:
            return
        folder = shards_folder(self._path) / content["shards"]["folder"]
        for name, size in content["shards"]["files"].items():
            try:
                found = (folder / name).stat().st_size
            except OSError as error:
                checkpoint.raise_if_passing(error, folder / name)
                found = -1
            if found != size:
                raise checkpoint.DamagedCheckpoint(f"shard {folder / name} is damaged or missing")

    def _load_parts(self, content: checkpoint.Content) -> None:
        if "shards" not in content:
            raise UsageError(
                f"checkpoint {self._path} was saved whole by one process, and this training is "
                "sharded: name another path, or begin it with Session(..., sharded=True)"
            )
        folder = shards_folder(self._path) / content["shards"]["folder"]
        places = content["shards"]["tensors"]
        with self._fitting():
            tensors = shards.to_read(self._parts, places)
            shards.load(folder, tensors, self._ranks.group)
            for key, part in self._parts.items():
                plain = content["parts"][key]
                if key in places:
                    plain = shards.joined(key, plain, places[key], tensors)
                part.load_state_dict(plain)

    def _write(self, kept: Mapping[str, Any]) -> None:
        content, tensors = self._cut(kept)
        written = self._written(content)
        try:
            shards.save(written, tensors, self._ranks.group)
            if self._ranks.first:
                self._publish(written, content)
        except OSError:
            self._checked_attempt().check()
            raise
        finally:
            if self._ranks.first:
                shutil.rmtree(written, ignore_errors=True)

    def _cut(self, kept: Mapping[str, Any]) -> tuple[checkpoint.Content, shards.Tensors]:
        """What the file is to hold, and what the shards."""
        number = self._checked_attempt().identity.number
        folder = self._ranks.gather(f"{number}.{os.urandom(8).hex()}")[0]
        plain, tensors, places = shards.cut(self._parts)
        content = self._content(kept, plain)
        content["shards"] = {"folder": folder, "tensors": places, "files": {}}
        return content, tensors

    def _written(self, content: checkpoint.Content) -> Path:
        """The folder in which the shards are written before they are published."""
        return self._checked_attempt().folder / str(content["shards"]["folder"])

    def _checked_attempt(self) -> Attempt:
        if self.attempt is None:
            raise UsageError("save() belongs inside the loop over the training, or behind it")
        return self.attempt

    def _publish(self, written: Path, content: checkpoint.Content) -> None:
        """Publish the shards, then the file that names them; all have written. Raises OSError and
        Superseded."""
        attempt = self._checked_attempt()
        sizes = {one.name: one.stat().st_size for one in written.iterdir()}
        content["shards"]["files"] = sizes
        folder = shards_folder(self._path)
        make_folder(folder)
        checkpoint.publish_folder(attempt, written, folder / written.name)
        checkpoint.save(attempt, content)
        self._remove_unnamed(attempt)

    def _remove_unnamed(self, attempt: Attempt) -> None:
        named = set()
        for path in (self._path, checkpoint.previous(self._path)):
            try:
                content = checkpoint.read(path, trusted=self._trusted, lazy=True)
            except (FileNotFoundError, checkpoint.DamagedCheckpoint):
                continue
            except HadarError:
                # It may be whole: what it names stays.
                return
            named.add(content.get("shards", {}).get("folder"))
        for old in shards_folder(self._path).iterdir():
            if old.name not in named:
                checkpoint.remove_folder(attempt, old)

    def begin_save(self, state: State) -> bool:
        """Copy what is to be saved; it is written while the training goes on."""
        if not self._in_background:
            return self.save(state)
        begin, kept = time.monotonic(), self.describe(state, moving=False)
        content, tensors = self._cut(kept)
        # DCP copies what goes into shards; the loop changes the rest in its place, too.
        content["parts"] = copy.deepcopy(content["parts"])
        written = self._written(content)
        if self._group is None:
            self._group = self._ranks.another_group()
        done = shards.begin_save(written, tensors, self._group)
        self._begun = _Begun(done, Future() if self._ranks.first else None)
        published, samples = self._begun.published, state.samples
        if published is not None:

            def publish(_: "Future[Any]") -> None:
                # In the thread that has written; what it raises would be lost there.
                try:
                    shards.finish_save(done)
                    self._publish(written, content)
                except BaseException as error:
                    published.set_exception(error)
                else:
                    # The next report shows it.
                    self.saved = Saved(samples, kept["time"], time.monotonic() - begin)
                    published.set_result(None)
                finally:
                    shutil.rmtree(written, ignore_errors=True)

            done.add_done_callback(publish)
        return True

    @property
    def saving(self) -> bool:
        """As of any store."""
        return self._begun is not None

    def finish_save(self) -> bool:
        """As of any store."""
        begun, self._begun = self._begun, None
        if begun is None:
            return True
        try:
            shards.finish_save(begun.written)
            if begun.published is not None:
                begun.published.result()
        except Superseded as superseded:
            self.leave_to(superseded)
            raise
        except OSError as error:
            self.check_current()
            self._say(f"checkpoint {self._path} cannot be written ({error}); training goes on")
            return False
        return True
