"""Which alerts there are now. Pure: what was observed and what the look before kept, in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.config import AlertSettings
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports import formats
from slurm_hadar.reports.status import ControllerState

_HOUR_S = 3600.0
CONTROLLER_KINDS = ("silent", "failing_ticks", "refusals", "accounting")


@dataclass(frozen=True, slots=True)
class Alert:
    """``kind``: one of :data:`CONTROLLER_KINDS`, or ``held_idle``, ``no_progress``, ``no_report``,
    ``nonfinite`` of one ``job``; ``owner``: its user, "" for those of the controller. ``text``:
    what happened, to what, and what to do."""

    kind: str
    text: str
    job: str = ""
    owner: str = ""

    @property
    def key(self) -> str:
        """What makes it the same alert at the next look."""
        return f"{self.kind}|{self.job}"


@dataclass
class AlertMemory:
    """What one look keeps for the next. ``idle``: job -> since when its GPUs are held in vain;
    ``samples``: job -> (restarts, samples, since when); ``ticks``: (time, failed ticks, refusals)
    of the looks in the last hour; ``sent``: recipient|alert -> when; ``first``: the same, of the
    first time since it began; ``looked_s``: when the latest look was; ``mails``: recipient -> times
    of the messages of the last day. Times in s since the epoch."""

    idle: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    ticks: list[tuple[float, float, float]] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    looked_s: float = 0.0
    mails: dict[str, list[float]] = field(default_factory=dict)


def silence(state: ControllerState, now: float) -> list[Alert]:
    """Whether the controller is silent; one that was stopped in order, or never ran, is not."""
    if state.state != "silent":
        return []
    return [
        Alert(
            "silent",
            f"the controller on {formats.plain(state.host)} has not ticked for "
            f"{formats.duration(now - state.last_s)}; jobs go on as ordinary jobs of Slurm. Run: "
            "journalctl -u slurm-hadar; hadar check",
        )
    ]


def of_ticks(
    counts: Mapping[str, float], memory: AlertMemory, now: float, settings: AlertSettings
) -> list[Alert]:
    """Failing ticks and refusals within an hour. ``counts``: of the metrics, by name."""
    failed, refused = counts.get("ticks|failed", 0.0), counts.get("refusals", 0.0)
    recent = [row for row in memory.ticks if now - _HOUR_S <= row[0] < now]
    # After a new state file the counters begin anew.
    recent = [row for row in recent if row[1] <= failed and row[2] <= refused]
    memory.ticks = [*recent, (now, failed, refused)]
    _, failed_before, refused_before = memory.ticks[0]
    found = []
    if settings.failed_ticks and failed - failed_before >= settings.failed_ticks:
        found.append(
            Alert(
                "failing_ticks",
                f"{failed - failed_before:.0f} ticks failed within an hour. Run: "
                "journalctl -u slurm-hadar",
            )
        )
    if settings.refusals and refused - refused_before >= settings.refusals:
        found.append(
            Alert(
                "refusals",
                f"Slurm refused {refused - refused_before:.0f} changes within an hour. The log "
                "has why; hadar check compares the configuration with Slurm's",
            )
        )
    return found


def of_accounting(faults: Mapping[str, object]) -> list[Alert]:
    """Whether the accounting database does not answer the controller's ticks. ``faults``: as the
    last tick kept them."""
    if not (fault := str(faults.get("database", ""))):
        return []
    text = f"{formats.plain(fault)}. Run: systemctl status slurmdbd; sacctmgr show cluster"
    return [Alert("accounting", text)]


def of_jobs(observation: Observation, memory: AlertMemory, settings: AlertSettings) -> list[Alert]:
    """GPUs held idle, trainings without progress or without any report, NaN: of running managed
    jobs."""
    running = [j for j in observation.jobs.values() if j.managed and j.state is JobState.RUNNING]
    return [
        *_held_idle(running, observation, memory, settings),
        *_no_progress(running, observation, memory, settings.no_progress_s),
        *_no_report(running, observation, memory, settings.no_progress_s),
        *_nonfinite(running, observation, settings.nonfinite),
    ]


def _held_idle(
    jobs: Iterable[Job], observation: Observation, memory: AlertMemory, settings: AlertSettings
) -> list[Alert]:
    since, found, longest_s = {}, [], settings.held_idle_s
    for job in jobs:
        if not gpu_use.in_vain(observation, job.id):
            continue
        since[job.id] = max(memory.idle.get(job.id, observation.now), job.start_s)
        idle_s = observation.now - since[job.id]
        if longest_s and idle_s >= longest_s:
            text = (
                f"job {job.id} has held {formats.counted(job.gpu_count, 'GPU')} and computed "
                f"nothing for {formats.duration(idle_s)}. Look at its output, or run: "
                f"scancel {job.id}{_what_follows(job, settings)}"
            )
            found.append(Alert("held_idle", text, job.id, job.user))
    memory.idle = since
    return found


def _what_follows(job: Job, settings: AlertSettings) -> str:
    declared = job.declaration or Declaration()
    if not settings.preempt_held_idle_s or not declared.checkpoint or declared.pin:
        return ""
    more = formats.duration(settings.preempt_held_idle_s)
    return (
        f". If this lasts {more} more, the job is asked to save and is requeued when other jobs "
        f"wait for its GPUs; to keep it where it is run: hadar pin {job.id}"
    )


def _no_progress(
    jobs: Iterable[Job], observation: Observation, memory: AlertMemory, longest_s: float
) -> list[Alert]:
    last, found = {}, []
    for job in jobs:
        progress = observation.progress.get(job.id)
        if progress is None or progress.restarts != job.restarts:
            if memory.samples.get(job.id, (-1,))[0] == job.restarts:
                # It has reported, whatever became of that.
                last[job.id] = (job.restarts, -1, observation.now)
            continue
        if progress.finished:
            continue
        restarts, samples, since = memory.samples.get(job.id, (-1, -1, observation.now))
        if (restarts, samples) != (job.restarts, progress.samples):
            since = observation.now
        last[job.id] = (job.restarts, progress.samples, since)
        if longest_s and observation.now - since >= longest_s:
            text = (
                f"job {job.id} has stood at {progress.samples:,} samples for "
                f"{formats.duration(observation.now - since)}. Look at its output; run: "
                f"hadar doctor {job.id}"
            )
            found.append(Alert("no_progress", text, job.id, job.user))
    memory.samples = last
    return found


def _no_report(
    jobs: Iterable[Job], observation: Observation, memory: AlertMemory, longest_s: float
) -> list[Alert]:
    """Only of jobs whose owner declared what reports: the runtime, or ``progress=``."""
    if not (longest_s and observation.all_reports):
        return []
    found = []
    for job in jobs:
        declared, progress = job.declaration or Declaration(), observation.progress.get(job.id)
        keys = [
            *(["checkpoint=yes"] if declared.habit == "yes" else []),
            *(["progress="] if declared.progress else []),
        ]
        reported = progress is not None and progress.restarts == job.restarts
        # A file that is gone again was read at an earlier look.
        reported = reported or job.id in memory.samples
        if keys and not reported and observation.now - job.start_s >= longest_s:
            text = (
                f"job {job.id} declares {' and '.join(keys)} and has reported nothing since it "
                f"started {formats.duration(observation.now - job.start_s)} ago, so its speed is "
                f"not known. Look at its output; run: hadar doctor {job.id}"
            )
            found.append(Alert("no_report", text, job.id, job.user))
    return found


def _nonfinite(jobs: Iterable[Job], observation: Observation, wanted: bool) -> list[Alert]:
    found = []
    for job in jobs if wanted else ():
        progress = observation.progress.get(job.id)
        if progress is not None and progress.restarts == job.restarts and progress.nonfinite:
            text = (
                f"the loss or a parameter of job {job.id} is NaN or infinite: nothing is saved "
                f"any more. Its last checkpoint is good; to end it run: scancel {job.id}"
            )
            found.append(Alert("nonfinite", text, job.id, job.user))
    return found


def due(
    alerts: Sequence[Alert], memory: AlertMemory, now: float, settings: AlertSettings
) -> dict[str, list[Alert]]:
    """Recipient -> what is to be sent now: each alert once in ``repeat_s``, one message a look,
    ``most_per_day`` of them. An alert that is over begins anew."""
    wanted: dict[str, list[Alert]] = {}
    for alert in alerts:
        owners = alert.owner and settings.owners
        for one in (alert.owner,) if owners else settings.operators:
            wanted.setdefault(one, []).append(alert)
    keys = {f"{one}|{alert.key}" for one, mine in wanted.items() for alert in mine}
    memory.sent = {key: time for key, time in memory.sent.items() if key in keys}
    memory.first = {key: time for key, time in memory.first.items() if key in keys}
    memory.looked_s = now
    day = 24 * _HOUR_S
    memory.mails = {
        one: recent
        for one, times in memory.mails.items()
        if (recent := [time for time in times if now - day < time <= now])
    }
    found = {}
    for one, mine in wanted.items():
        again = now - settings.repeat_s
        new = [alert for alert in mine if memory.sent.get(f"{one}|{alert.key}", -1e12) <= again]
        if new and len(memory.mails.get(one, ())) < settings.most_per_day:
            found[one] = new
    return found


def mark_sent(recipient: str, alerts: Iterable[Alert], memory: AlertMemory, now: float) -> None:
    """These went out."""
    memory.mails.setdefault(recipient, []).append(now)
    for alert in alerts:
        memory.sent[f"{recipient}|{alert.key}"] = now
        memory.first.setdefault(f"{recipient}|{alert.key}", now)
