"""Times: KillWait and cred_expire. Both are read, neither is simulated."""

import math
from collections.abc import Iterator

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.times import parse_duration
from slurm_hadar.tuning.advice import Advice, Study

_USUAL_KILL_WAIT_S, _USUAL_CRED_EXPIRE_S = 30, 120
_LONGEST_KILL_WAIT_S = 120


def kill_wait(study: Study) -> Iterator[Advice]:
    """Long enough for a checkpoint, and not so long that others wait for a job that hangs."""
    now = _seconds(study.setting("KillWait"), _USUAL_KILL_WAIT_S)
    need = max(_USUAL_KILL_WAIT_S, math.ceil(2 * study.save_s))
    saves = f"twice the {study.save_s:g} s that a checkpoint takes" if study.save_s else "a save"
    if now < need:
        why = (
            f"a preempted job has KillWait ({now:g} s) to save after TERM; {need} s leaves {saves}"
        )
    elif now > max(_LONGEST_KILL_WAIT_S, need):
        why = (
            f"a job that does not leave on TERM keeps its GPUs from the job that preempts it for "
            f"{now:g} s; {need} s leaves {saves}"
        )
    else:
        study.fine.append(
            f"KillWait: {now:g} s leaves {saves}"
            + ("" if study.save_s else "; the time of a checkpoint is not given (--save)")
        )
        return
    yield Advice("KillWait", why, refs=(study.draft.set("KillWait", str(need)),))


def cred_expire(study: Study) -> Iterator[Advice]:
    """The margin in which a requeued job waits for its new place."""
    parts = [part for part in study.setting("AuthInfo").split(",") if part]
    now = next((part.partition("=")[2] for part in parts if part.startswith("cred_expire=")), "")
    seconds = _seconds(now, _USUAL_CRED_EXPIRE_S)
    if seconds >= _USUAL_CRED_EXPIRE_S:
        study.fine.append(f"cred_expire: {seconds:g} s leave a tick time to place a requeued job")
        return
    others = [part for part in parts if not part.startswith("cred_expire=")]
    value = ",".join([f"cred_expire={_USUAL_CRED_EXPIRE_S}", *others])
    yield Advice(
        topic="cred_expire",
        why=(
            f"Slurm starts a requeued job by itself after cred_expire + 1 s, {seconds + 1:g} s "
            "here: a slow tick finds it started where it was. slurmctld and all slurmds have to "
            "be restarted for it"
        ),
        refs=(study.draft.set("AuthInfo", value),),
    )


def _seconds(text: str, default: int) -> float:
    """``30``, ``30 sec``, ``00:30``; the default for what is none of these."""
    word = text.removesuffix("sec").strip()
    if not word:
        return default
    if word.isdigit() and len(word) < 10:
        return float(word)
    try:
        found = parse_duration(word)
    except SlurmError:
        return default
    return default if found is None or math.isinf(found) else found
