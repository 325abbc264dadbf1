"""An ordinary PyTorch loop that resumes where it was, on whatever GPUs it finds.

::

    run = Training(model, optimizer, dataset_size=len(x), epochs=3, batch=64, path="run.pt")
    for batch in run:
        run.backward(loss_of(model(x[batch.indices]), y[batch.indices]))
        run.step()
"""

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.runtime import batches, checkpoint, samples
from slurm_hadar.runtime.exchange import Exchange, host, in_step, seconds
from slurm_hadar.runtime.meter import Meter
from slurm_hadar.runtime.pace import Pace, node_gpus
from slurm_hadar.runtime.plan_file import JobPlan
from slurm_hadar.runtime.progress import Ack, Progress, Saved
from slurm_hadar.runtime.ranks import Ranks
from slurm_hadar.runtime.samples import Segment
from slurm_hadar.runtime.signals import Signals

_PAUSE_S = 10.0
_LEFT_ON_TERM = 128 + 15
"""Exit code after TERM: a job that has work left must not look completed."""


def _say(line: str) -> None:
    print(f"hadar: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward and backward pass of this process.

    ``indices``: (n,) int64, the samples' indices in the data set. ``weight``: their share of the
    global batch. ``last``: this pass ends the global batch, so :meth:`Training.step` will change
    the parameters. ``ends_epoch``: and with it the epoch.
    """

    indices: torch.Tensor
    weight: float
    epoch: int
    last: bool
    ends_epoch: bool


class Training:
    """Model, optimizer and position in the data, saved and restored together.

    ``dataset_size`` and ``epochs`` (or ``samples``) say how much work there is; ``batch`` is the
    global batch in samples, fixed or a range ``(least, most)`` within which a plan may choose; the
    optimizer's learning rate belongs to the least, and follows by ``learning_rate`` (see
    :func:`batches.rate_factor`). ``per_gpu`` is the most samples that one GPU takes in a pass; by
    default what it took in the first attempt. More GPUs or fewer never change the global batch.

    ``path`` is the checkpoint, written every ``every_s`` seconds, on the signal (``signal``, else
    ``HADAR_SIGNAL``, else USR2), when a plan asks, on TERM (then the process exits with 143) and
    at the end. The scheduler is stepped per ``schedule`` (``"epoch"`` or ``"step"``). ``also`` is
    anything else with ``state_dict`` and ``load_state_dict``, by name. ``name`` is the model's
    name in the profiles.

    Raises UsageError for arguments that make no sense or do not fit the checkpoint, HadarError for
    a checkpoint that cannot be read.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        dataset_size: int,
        batch: int | tuple[int, int],
        epochs: int | None = None,
        samples: int | None = None,
        scheduler: Any = None,
        schedule: str = "epoch",
        scaler: Any = None,
        also: Mapping[str, Any] | None = None,
        seed: int = 0,
        path: str | Path | None = None,
        every_s: float = 600.0,
        per_gpu: int | None = None,
        learning_rate: batches.LearningRateRule = "auto",
        name: str = "",
        signal: str | None = None,
        gpus: int | None = None,
        trusted: bool = False,
        log: Callable[[str], None] = _say,
    ) -> None:
        low, high = (batch, batch) if isinstance(batch, int) else batch
        if not 0 < low <= high:
            raise UsageError(f"batch={batch}: a number above 0, or a range (least, most)")
        if dataset_size < 1 or seed < 0 or schedule not in ("epoch", "step"):
            raise UsageError("dataset_size >= 1, seed >= 0, schedule 'epoch' or 'step' are needed")
        if (epochs is None) == (samples is None) or (epochs or samples or 0) < 1:
            raise UsageError("say how much work there is: epochs=N or samples=N, one of the two")
        self.dataset_size, self.seed, self.batch = dataset_size, seed, low
        self.total = samples if samples is not None else (epochs or 0) * dataset_size
        self.samples = 0
        """Samples in the lineage of the parameters."""
        self.segments: list[Segment] = []
        self.attempt = 1
        self.lost = 0
        self._range, self._rule, self._name = (low, high), learning_rate, name
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._parts = _parts(model, optimizer, scheduler, scaler, also or {})
        self._scaler, self._schedule = scaler, schedule
        self._path = None if path is None else Path(path).absolute()
        self._every_s, self._trusted = every_s, trusted
        self._ranks = Ranks()
        self._say = log if self._ranks.first else (lambda line: None)
        if self._ranks.size > 1 and not _synchronised(model):
            raise UsageError(
                f"{self._ranks.size} processes train together: wrap the model in "
                "torch.nn.parallel.DistributedDataParallel"
            )
        self._signals = Signals(signal)
        self._signals.install()
        self._exchange = Exchange.from_env(self._say) if self._ranks.first else None
        plan = self._exchange.plan(now=True) if self._exchange else None
        planned = self._ranks.gather(dict(plan.gpus) if plan else None)[0]
        self._pace = Pace.from_env(name, planned, self._ranks.gather)
        self.gpus = gpus if gpus is not None else self._count_gpus()
        """GPUs that train together."""
        self._per_gpu = per_gpu or -(-low // max(1, self.gpus))
        self._started = time.time()
        self._meter = Meter()
        self._saved: Saved | None = None
        self._saved_at = time.monotonic()
        self._acked: Ack | None = None
        self._left: float | None = None
        self._restart_s: float | None = None
        self._stopped = False
        self._ignored = 0
        self._owed = 0.0
        self._current: Batch | None = None
        self._had_backward = False
        self._digest, self._agreed, self._until_agreement = 0, 0, 1
        self._load(fixed_per_gpu=per_gpu is not None)

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to."""
        return self.samples // self.dataset_size

    def __iter__(self) -> Iterator[Batch]:
        """The passes that are still to do; ends when all work is done."""
        try:
            self._begin()
            known, order = -1, None
            while self.samples < self.total and not self._stopped:
                epoch, position = divmod(self.samples, self.dataset_size)
                if epoch != known:
                    known, order = epoch, samples.order(self.seed, epoch, self.dataset_size)
                for part in self._split(position):
                    indices = order[position + part.start : position + part.stop]
                    if part.weight:
                        self._digest += samples.digest(indices)
                    if self._ranks.size > 1:
                        # What DistributedDataParallel.no_sync() sets: exchange gradients once.
                        self._model.require_backward_grad_sync = part.last
                    self._had_backward = False
                    self._current = Batch(
                        torch.from_numpy(indices),
                        part.weight,
                        epoch,
                        part.last,
                        part.last and position + self._size(position) == self.dataset_size,
                    )
                    yield self._current
                    if self._current is not None:
                        raise UsageError("call step() after backward(), in every round of the loop")
            self._finish()
        finally:
            self._signals.restore()

    def load(self, dataset: Any, **options: Any) -> Iterator[tuple[Batch, Any]]:
        """The passes with their data, through a torch ``DataLoader`` made with ``options``.

        Workers read ahead; what they read but the loop did not train is not counted.
        """
        planned: deque[torch.Tensor] = deque()
        loader: Iterator[Any] = iter(())
        for batch in self:
            if not planned or not torch.equal(planned[0], batch.indices):
                planned = deque(self._ahead(batch.indices))
                loader = iter(
                    torch.utils.data.DataLoader(
                        dataset,
                        batch_sampler=[indices.tolist() for indices in planned],
                        # A generator of its own: the global one must not depend on restarts.
                        generator=torch.Generator().manual_seed(self.seed + self.samples),
                        **options,
                    )
                )
            planned.popleft()
            yield batch, next(loader)

    def backward(self, loss: Any) -> None:
        """Add the gradients of ``loss``, the mean over the samples of the pass."""
        if self._current is None:
            raise UsageError("backward() belongs inside the loop over the training")
        factor = self._current.weight * self._ranks.size
        if factor != 1.0:
            loss = loss * factor
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()
        self._had_backward = True

    def step(self) -> None:
        """End the pass; the last one of a global batch changes the parameters.

        Here the training saves, tells its progress, waits and leaves when it has to.
        """
        batch, self._current = self._current, None
        if batch is None or not self._had_backward:
            raise UsageError("call backward() before step(), once each in every round of the loop")
        if not batch.last:
            return
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()
        size = self._size(self.samples % self.dataset_size)
        self.samples += size
        if self._scheduler is not None and (self._schedule == "step" or batch.ends_epoch):
            self._scheduler.step()
        self._boundary(size, batch.ends_epoch)

    def stop(self) -> None:
        """End the training after this step, for good (early stopping). All processes must agree."""
        self._stopped = True

    def _size(self, position: int) -> int:
        return min(self.batch, self.dataset_size - position, self.total - self.samples)

    def _split(self, position: int) -> list[batches.Part]:
        limit = max(1, self._per_gpu * max(1, self.gpus) // self._ranks.size)
        return batches.split(self._size(position), self._ranks.rank, self._ranks.size, limit)

    def _ahead(self, first: torch.Tensor) -> Iterator[torch.Tensor]:
        """The indices of the passes up to the end of the epoch, from the one that is ``first``."""
        epoch, begin = divmod(self.samples, self.dataset_size)
        order = torch.from_numpy(samples.order(self.seed, epoch, self.dataset_size))
        end = min(self.dataset_size, begin + self.total - self.samples)
        seen = False
        for position in range(begin, end, self.batch):
            size = min(self.batch, end - position)
            limit = max(1, self._per_gpu * max(1, self.gpus) // self._ranks.size)
            for part in batches.split(size, self._ranks.rank, self._ranks.size, limit):
                indices = order[position + part.start : position + part.stop]
                seen = seen or torch.equal(indices, first)
                if seen:
                    yield indices

    def _count_gpus(self) -> int:
        if self._pace is not None:
            return sum(self._pace.gpus.values())
        if not torch.cuda.is_available():
            return len(node_gpus(os.environ)) if self._ranks.size == 1 else self._ranks.size
        return self._ranks.size * len(getattr(self._model, "device_ids", None) or [0])

    def _begin(self) -> None:
        self._agreed = self.samples
        plan = self._exchange.plan(now=True) if self._exchange else None
        agreed = self._ranks.agree(asked=False, leave=False, batch=self._wanted_batch(plan))
        self._change_batch(agreed.batch)
        if self._pace is not None:
            self._pace.start(self._owed)
        self._saved_at = time.monotonic()
        self._tell()

    def _boundary(self, size: int, ends_epoch: bool) -> None:
        if self._left is not None:
            self._restart_s, self._left = max(0.0, time.time() - self._left), None
        if self._pace is not None:
            self._pace.hold(size, self._urgent)
        self._meter.add(size)
        self._until_agreement -= 1
        if self._until_agreement <= 0 or ends_epoch or self.samples >= self.total:
            self._agree()
        if self._exchange is not None and self._exchange.due():
            self._tell()

    def _nonce(self, plan: JobPlan | None) -> str:
        """The plan's wish to save that was not answered yet."""
        if plan is None or self._exchange is None or plan.restarts != self._exchange.restarts:
            return ""
        return plan.save if self._acked is None or plan.save != self._acked.save else ""

    def _urgent(self) -> bool:
        if self._signals.asked or self._signals.leave:
            return True
        return bool(self._exchange is not None and self._nonce(self._exchange.plan()))

    def _agree(self) -> None:
        plan = self._exchange.plan(now=self._signals.asked) if self._exchange else None
        agreed = self._ranks.agree(
            asked=self._signals.asked or bool(self._nonce(plan)),
            leave=self._signals.leave,
            due=time.monotonic() - self._saved_at >= self._every_s,
            batch=self._wanted_batch(plan),
            digest=self._digest % 2**64,
            step_s=self._meter.step_s,
        )
        self._note_samples(agreed.digest)
        self._until_agreement = agreed.steps
        if agreed.leave:
            self._leave()
        if agreed.asked:
            self._signals.asked = False
            self._answer()
        elif agreed.due:
            self._save("every so often")
        self._change_batch(agreed.batch)

    def _note_samples(self, digest: int) -> None:
        epoch, start = divmod(self._agreed, self.dataset_size)
        stop = start + self.samples - self._agreed
        samples.extend(
            self.segments,
            Segment(epoch, start, stop, self.attempt, self.batch, self.gpus, digest),
        )
        self._agreed, self._digest = self.samples, 0

    def _leave(self) -> None:
        if self._save("TERM"):
            self._say(f"saved at {self.samples} samples on TERM; leaving")
        self._tell()
        self._ranks.wait()
        raise SystemExit(_LEFT_ON_TERM)

    def _answer(self) -> None:
        """Save because we were asked, say so, and wait for the move rather than train in vain."""
        saved = self._save("asked")
        begin = time.monotonic()
        if saved and self._ranks.first:
            self._say(f"saved at {self.samples} samples as asked")
            self._pause(begin + seconds(os.environ, "HADAR_PAUSE_S", _PAUSE_S))
        leave = self._ranks.agree(asked=False, leave=self._signals.leave).leave
        self._skip(time.monotonic() - begin)
        if leave:
            self._leave()

    def _pause(self, until: float) -> None:
        look_now = True
        while not self._signals.leave and time.monotonic() < until:
            plan = self._exchange.plan(now=look_now) if self._exchange else None
            look_now = False
            nonce = self._nonce(plan)
            if nonce:
                self._acked = Ack(nonce, time.time(), self.samples)
                self._tell()
            elif self._acked is not None and (plan is None or plan.save != self._acked.save):
                break
            time.sleep(0.05)
        if not self._signals.leave:
            self._say("was not moved; going on")

    def _skip(self, idle: float) -> None:
        self._meter.skip(idle)
        if self._pace is not None:
            self._pace.shift(idle)

    def _wanted_batch(self, plan: JobPlan | None) -> int:
        """The global batch that the plan asks for and the job allows, 0: leave it."""
        if plan is None or plan.batch is None or plan.batch == self.batch:
            return 0
        if plan.save and self._exchange is not None and plan.restarts == self._exchange.restarts:
            return 0
        if self._range[0] <= plan.batch <= self._range[1]:
            return plan.batch
        if self._ignored != plan.batch:
            self._ignored = plan.batch
            self._say(f"batch {plan.batch} of the plan is outside {self._range}; not taken")
        return 0

    def _change_batch(self, batch: int) -> None:
        if not batch or batch == self.batch:
            return
        try:
            factor, rule = batches.rate_factor(self._rule, self._optimizer, self.batch, batch)
        except ValueError as error:
            raise UsageError(str(error)) from None
        batches.scale_rate(self._optimizer, self._scheduler, factor)
        self._say(
            f"global batch {self.batch} -> {batch} at {self.samples} samples; "
            f"learning rate x {factor:g} ({rule})"
        )
        self.batch = batch
        self._meter.restart()

    def _finish(self) -> None:
        if self.samples > self._agreed:
            self._agree()
        self._save("end")
        self._tell(finished=True)

    def _load(self, *, fixed_per_gpu: bool) -> None:
        content = None
        if self._path is not None:
            content = checkpoint.load(self._path, self._say, trusted=self._trusted)
        before = self._exchange.before if self._exchange else None
        if content is None:
            if before is not None:
                self.lost = before.lost + before.samples
            return
        state = json.loads(content["state"])
        for key, mine in (("dataset_size", self.dataset_size), ("seed", self.seed)):
            if state[key] != mine:
                raise UsageError(
                    f"checkpoint {self._path} was made with {key}={state[key]}, not {mine}; "
                    "positions in it would mean other samples"
                )
        try:
            for key, part in self._parts.items():
                part.load_state_dict(content["parts"][key])
        except (KeyError, RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise UsageError(
                f"checkpoint {self._path} does not fit this training: {first}"
            ) from None
        self.samples, self.batch = state["samples"], state["batch"]
        self.attempt = state["attempt"] + 1
        self.segments = samples.from_plain(state["segments"])
        self._stopped = state["stopped"]
        self._owed = state["owed"]
        if not fixed_per_gpu:
            self._per_gpu = state["per_gpu"]
        self.lost = state["lost"]
        if before is not None:
            self.lost = max(self.lost, before.lost) + max(0, before.samples - self.samples)
        self._saved = Saved(self.samples, state["time"], state["seconds"])
        self._left = state["time"] if state["reason"] in ("asked", "TERM") else None
        if self._ranks.first:
            checkpoint.restore_random(content["random"])
        else:
            torch.manual_seed(hash((self.seed, self.samples, self._ranks.rank)))
        if not self._range[0] <= self.batch <= self._range[1]:
            self._change_batch(min(max(self.batch, self._range[0]), self._range[1]))
        self._say(f"resumed at {self.samples} samples (attempt {self.attempt}, {self.gpus} GPUs)")

    def _save(self, reason: str) -> bool:
        """Save unless the position is saved already; whether it is saved now."""
        if self._path is None:
            return False
        done = True
        if self._saved is None or self._saved.samples != self.samples:
            begin, now = time.monotonic(), time.time()
            if self._ranks.first:
                done = self._write(reason, now)
            took = time.monotonic() - begin
            self._saved_at = time.monotonic()
            if done:
                self._saved = Saved(self.samples, now, took)
            self._skip(took)
            self._tell()
        return done

    def _write(self, reason: str, now: float) -> bool:
        assert self._path is not None
        state = {
            "samples": self.samples,
            "dataset_size": self.dataset_size,
            "seed": self.seed,
            "batch": self.batch,
            "per_gpu": self._per_gpu,
            "attempt": self.attempt,
            "segments": samples.to_plain(self.segments),
            "stopped": self._stopped,
            "lost": self.lost,
            "owed": self._pace.owed if self._pace is not None else 0.0,
            "reason": reason,
            "time": now,
            "seconds": self._saved.seconds if self._saved else 0.0,
            "name": self._name,
        }
        try:
            checkpoint.save(
                self._path,
                {
                    "parts": {key: part.state_dict() for key, part in self._parts.items()},
                    "random": checkpoint.random_state(),
                    "state": json.dumps(state),
                },
            )
        except OSError as error:
            self._say(f"checkpoint {self._path} cannot be written ({error}); training goes on")
            return False
        return True

    def _tell(self, *, finished: bool = False) -> None:
        if self._exchange is None:
            return
        rate, window = self._meter.rate()
        self._exchange.tell(
            Progress(
                job=self._exchange.job,
                time=time.time(),
                restarts=self._exchange.restarts,
                host=host(),
                pid=os.getpid(),
                in_step=in_step(os.environ),
                started=self._started,
                model=self._name,
                samples=self.samples,
                rate=rate,
                window_s=window,
                batch=self.batch,
                gpus=self.gpus,
                checkpoint=self._saved,
                ack=self._acked,
                restart_s=self._restart_s,
                lost=self.lost,
                finished=finished,
            )
        )


def lineage(path: str | Path) -> list[Segment]:
    """What went into the parameters of a checkpoint, in order; see :func:`samples.check_lineage`.

    Raises HadarError when there is no checkpoint or it cannot be read.
    """
    try:
        content = checkpoint.read(Path(path), lazy=True)
    except FileNotFoundError:
        raise HadarError(f"there is no checkpoint at {path}") from None
    return samples.from_plain(json.loads(content["state"])["segments"])


def _parts(
    model: Any, optimizer: Any, scheduler: Any, scaler: Any, also: Mapping[str, Any]
) -> dict[str, Any]:
    # A wrapped model is saved bare, so that one GPU and many read each other's checkpoints.
    bare = model.module if _synchronised(model) or _is(model, "DataParallel") else model
    parts = {"model": bare, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    found = {key: part for key, part in parts.items() if part is not None}
    clash = sorted(set(parts) & set(also))
    if clash:
        raise UsageError(f"also={{{clash[0]!r}: ...}}: this name is taken; choose another")
    return {**found, **also}


def _synchronised(model: Any) -> bool:
    return _is(model, "DistributedDataParallel")


def _is(model: Any, name: str) -> bool:
    with contextlib.suppress(AttributeError):
        return type(model).__name__ == name
    return False
