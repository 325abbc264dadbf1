"""What happens between two iterations: save, answer, wait, leave, take another batch, report."""

import os
import time
from collections.abc import Callable

from slurm_hadar.exchange.job_side import host, in_step, seconds
from slurm_hadar.exchange.plan_file import JobPlan, save_wish
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.runtime import samples
from slurm_hadar.runtime.attempts import Superseded
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, State
from slurm_hadar.runtime.core import SessionCore
from slurm_hadar.runtime.finite import NOT_FINITE, LossWatch
from slurm_hadar.runtime.leaving import NOT_SAVED, LeftOnTerm, fail_at_exit
from slurm_hadar.runtime.meter import Meter
from slurm_hadar.runtime.noise import NoiseScale
from slurm_hadar.runtime.planned_batch import ChosenBatch, PlannedBatch
from slurm_hadar.runtime.ranks import Agreement, Wishes
from slurm_hadar.runtime.samples import Segment

_PAUSE_S = 10.0
_LOOK_S = 0.05
_CHECK_S, _AGAIN_S = 5.0, 30.0
"""How often an attempt looks whether it is superseded and whether its loss is finite."""


class TrainingSteering:
    """One attempt of one training, as the controller and Slurm steer it.

    ``batch``: None where the loop alone decides about its batch.
    """

    def __init__(
        self,
        core: SessionCore,
        state: State,
        store: CheckpointStore,
        batch: ChosenBatch | None = None,
        noise: NoiseScale | None = None,
    ) -> None:
        self._state, self._store, self._noise = state, store, noise
        self._batch = PlannedBatch(batch, state, core) if batch is not None else None
        self._ranks, self._signals, self._exchange = core.ranks, core.signals, core.exchange
        self._emulation, self._gpus, self._say = core.emulation, core.gpus, core.say
        options = core.options
        self._name, self._every_s = options.name, options.every_s
        self._started = time.time()
        self._saved_at = self._checked_at = time.monotonic()
        self._saved_samples = store.saved.samples if store.saved else -1
        self._taken_over = False
        self._ends_on_nonfinite = options.nonfinite == "end"
        self._ended, self._nonfinite = False, ""
        self.loss = LossWatch()
        self._meter = Meter()
        self._acked: Ack | None = None
        self._answered: set[str] = set()
        self._restart_s: float | None = None
        self._digest, self._agreed, self._until_agreement = 0, state.samples, 1

    def take_over(self, reload: Callable[[], None]) -> None:
        """Become the attempt that may save; in every process alike, before :meth:`begin`.

        ``reload`` restores the checkpoint again, where an earlier attempt saved after it was
        loaded. Raises Superseded where a later attempt has taken over already, UsageError where
        the checkpoint could not be saved.
        """
        if self._taken_over:
            # A loop that was left with break goes on in another one.
            self._store.check_current()
            return
        self._taken_over = True
        identity = self._store.begin_all_ranks(self._ranks)
        stamp = self._ranks.gather(self._store.stamp_now())[0]
        if stamp != self._store.stamp:
            reload()
            self._saved_samples = self._store.saved.samples if self._store.saved else -1
            self._agreed = self._state.samples
        self._ranks.must_agree(
            self._state.samples, f"the position in checkpoint {self._store.path}"
        )
        # Checkpoints of releases before 0.1 have a number, and their attempts no folders.
        number = identity.number if identity is not None else 1
        self._state.attempt = max(number, self._state.attempt)

    def begin(self) -> None:
        """The training starts or goes on now."""
        if self._batch is not None:
            first = self._batch.first(self._exchange.plan(now=True) if self._exchange else None)
            self._change_batch(self._ranks.agree(Wishes(batch=first)).batch)
        if self._emulation is not None:
            self._emulation.start(self._state.owed)
        self._saved_at = time.monotonic()
        self._tell()

    def give(self, digest: int) -> None:
        """Samples with this digest are handed to the loop of this process."""
        self._digest = (self._digest + digest) % 2**64

    def boundary(self, size: int, *, must_agree: bool) -> None:
        """An iteration that trained ``size`` samples ended; may raise SystemExit."""
        self._count(size)
        if self._until_agreement <= 0 or must_agree:
            self._agree()
        if self._exchange is not None and self._exchange.due():
            self._tell()

    def _count(self, size: int) -> None:
        if self._store.left is not None:
            self._restart_s = max(0.0, time.time() - self._store.left)
            self._store.left = None
        if self._emulation is not None:
            self._emulation.hold(size, self._urgent)
        self._meter.add(size)
        self._until_agreement -= 1

    def finish(self) -> None:
        """All work is done."""
        if self._state.samples > self._agreed:
            self._agree()
        saved = self.save()
        self._tell(finished=not self._ended)
        if self._ended:
            raise SystemExit(NOT_FINITE)
        if self._store.path is not None and self._ranks.first and not saved:
            self._say(
                f"the end of the training is not in checkpoint {self._store.path}; "
                f"the process will end with exit code {NOT_SAVED}"
            )
            fail_at_exit(NOT_SAVED)

    def _nonce(self, plan: JobPlan | None) -> str:
        """The plan's wish to save that was not answered yet."""
        if self._exchange is None:
            return ""
        return save_wish(plan, self._exchange.restarts, self._answered)

    def _urgent(self) -> bool:
        if self._signals.asked or self._signals.leave:
            return True
        return bool(self._exchange is not None and self._nonce(self._exchange.plan()))

    def _agree(self) -> None:
        agreed = self._consult()
        if agreed.leave:
            self._leave()
        if agreed.asked:
            self._signals.asked = False
            self._answer()
        elif agreed.due:
            self.save(background=True)
        self._change_batch(agreed.batch)

    def _consult(self) -> Agreement:
        """What all processes want now. Raises Superseded."""
        plan = self._exchange.plan(now=self._signals.asked) if self._exchange else None
        superseded = None
        if self._ranks.first and time.monotonic() - self._checked_at >= _CHECK_S:
            self._checked_at = time.monotonic()
            superseded = self._look_for_later()
            self._note_finite("the loss" if self.loss.bad else "")
        own = Wishes(
            asked=self._signals.asked or bool(self._nonce(plan)),
            leave=self._signals.leave or self._ended,
            due=time.monotonic() - self._saved_at >= self._every_s,
            batch=self._batch.wanted(plan) if self._batch is not None else 0,
            digest=self._digest,
            step_s=self._meter.step_s,
            superseded=superseded is not None,
        )
        agreed = self._ranks.agree(own)
        if agreed.superseded:
            raise superseded or Superseded("another attempt has taken over")
        self._note_samples(agreed.digest)
        self._until_agreement = agreed.steps
        return agreed

    def _look_for_later(self) -> Superseded | None:
        try:
            self._store.check_current()
        except Superseded as superseded:
            return superseded
        except OSError:
            # The file system does not answer as it should; at a save it is reported.
            return None
        return None

    def _note_samples(self, digest: int) -> None:
        state = self._state
        if state.samples == self._agreed:
            # A save in the middle of the iteration noted them.
            return
        epoch, start = divmod(self._agreed, state.dataset_size)
        stop = start + state.samples - self._agreed
        segment = Segment(epoch, start, stop, state.attempt, state.batch, self._gpus, digest)
        samples.extend(state.segments, segment)
        self._agreed, self._digest = state.samples, 0

    def _leave(self) -> None:
        if self.save(moving=True):
            self._say(f"saved at {self._state.samples} samples on TERM; leaving")
        elif self._store.path is not None:
            self._say(f"leaving at {self._state.samples} samples without saving")
        self._tell()
        self._ranks.wait()
        if self._ended:
            raise SystemExit(NOT_FINITE)
        raise LeftOnTerm

    def _answer(self) -> None:
        """Save because we were asked, say so, and wait for the move rather than train in vain."""
        if self._wait_for_move(self.save(moving=True)):
            self._leave()

    def _wait_for_move(self, saved: bool) -> bool:
        """Say whether it was saved as asked, and wait; whether to leave then."""
        begin = time.monotonic()
        if not saved and self._exchange is not None:
            # Asked once, tried once: the controller leaves a job that does not answer in place.
            self._answered.add(self._nonce(self._exchange.plan()))
            why = "" if self._store.path is not None else ", as it has no path for a checkpoint"
            self._say(f"was asked to save and cannot{why}; going on")
        if saved and self._ranks.first:
            self._say(f"saved at {self._state.samples} samples as asked")
            self._pause(begin + seconds(os.environ, "HADAR_PAUSE_S", _PAUSE_S))
        leave = self._ranks.agree(Wishes(leave=self._signals.leave)).leave
        self._skip(time.monotonic() - begin)
        return leave

    def _pause(self, until: float) -> None:
        look_now = True
        while not self._signals.leave and time.monotonic() < until:
            plan = self._exchange.plan(now=look_now) if self._exchange else None
            look_now = False
            nonce = self._nonce(plan)
            if nonce:
                self._answered.add(nonce)
                self._acked = Ack(nonce, time.time(), self._state.samples)
                self._tell()
            elif self._acked is not None and (plan is None or plan.save != self._acked.save):
                # The wish was taken back.
                break
            time.sleep(_LOOK_S)
        if not self._signals.leave:
            self._say("was not moved; going on")

    def _skip(self, idle: float) -> None:
        self._meter.skip(idle)
        if self._emulation is not None:
            self._emulation.shift(idle)

    def _change_batch(self, batch: int) -> None:
        if self._batch is not None and self._batch.change(batch):
            self._meter.restart()

    def agree_on_samples(self) -> None:
        """Note what was trained since the processes agreed last; in every process alike."""
        if self._state.samples > self._agreed:
            self._note_samples(self._ranks.agree(Wishes(digest=self._digest)).digest)

    def save(self, *, moving: bool = False, background: bool = False) -> bool:
        """Save unless this position is saved already; whether it is saved now.

        ``background``: it need only be begun, where the store writes while the training goes on.
        """
        if self._store.path is None:
            return False
        self.agree_on_samples()
        self._finish_background()
        if self._saved_samples == self._state.samples:
            return True
        if not self.is_finite():
            # Looked at again soon: a loss may have been out of range for one step.
            self._saved_at = time.monotonic() - max(0.0, self._every_s - _AGAIN_S)
            return False
        begin = time.monotonic()
        self._state.owed = self._emulation.owed if self._emulation is not None else 0.0
        store, state = self._store, self._state
        if background:
            done = store.in_all_ranks(self._ranks, lambda: store.begin_save(state))
        else:
            done = store.in_all_ranks(self._ranks, lambda: store.save(state, moving=moving))
        self._saved_at = time.monotonic()
        self._skip(self._saved_at - begin)
        if done:
            self._saved_samples = self._state.samples
            self._tell()
        return done

    def _finish_background(self) -> None:
        """Wait for a save in the background; where it failed its position is to be saved again."""
        if self._store.saving:
            begin = time.monotonic()
            if not self._store.in_all_ranks(self._ranks, self._store.finish_save):
                self._saved_samples = -1
            self._skip(time.monotonic() - begin)

    def forget_saved(self) -> None:
        """The iteration goes on after a save, so this position is to be saved again at its end."""
        self._saved_samples = -1

    def is_finite(self) -> bool:
        """Whether loss and parameters may go into a checkpoint; in every process alike."""
        bad = "the loss" if self.loss.bad else ""
        if not bad and (self._ranks.first or self._store.collective):
            bad = self._store.nonfinite()
        found = [one for one in self._ranks.gather(bad) if one]
        self._note_finite(found[0] if found else "")
        return not found

    def _note_finite(self, bad: str) -> None:
        """Report what is not finite, once, and end the training where that is wanted."""
        if bad and not self._nonfinite:
            kept = "no checkpoint was saved yet"
            if self._store.saved is not None:
                kept = f"the checkpoint at {self._store.saved.samples} samples is kept"
            then = "ending" if self._ends_on_nonfinite else "going on without saving"
            self._say(f"{bad} is not finite at {self._state.samples} samples; {kept}; {then}")
        self._nonfinite = bad
        self._ended = self._ended or (bool(bad) and self._ends_on_nonfinite)

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
                samples=self._state.samples,
                rate=rate,
                window_s=window,
                batch=self._state.batch,
                gpus=self._gpus,
                noise_scale=self._noise.scale() if self._noise else None,
                checkpoint=self._store.saved,
                ack=self._acked,
                restart_s=self._restart_s,
                lost=self._state.lost,
                finished=finished,
                nonfinite=bool(self._nonfinite),
            )
        )
