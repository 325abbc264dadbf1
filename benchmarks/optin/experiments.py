"""Two fixed experiments on a full cluster, as they showed what leases cost.

The crowd: three managed jobs, then many ordinary ones of 20 s, all of one priority. The nice: six
ordinary jobs at a nice value of 500000, then six managed ones.
"""

from benchmarks.optin.records import JobRecord, RunRecord
from benchmarks.optin.runs import Run
from benchmarks.optin.site import EQUAL, LAYOUT
from benchmarks.optin.workload import RESTART_S, SLEEP, TRAINING, Spec, speeds

CROWD, NICE = "crowd", "nice"
_NICE = 500_000
_OWNER, _OTHER = "news", "irc"
_GPUS = sum(len(types) for types in LAYOUT.node_types().values())
_FULL_S = 10.0
"""The blockers all run by then."""


def crowd(number: int) -> Run:
    """So many ordinary jobs behind three managed ones: two of any type, one of them with a model
    that is five times slower on one of the types, and one for v100 only."""
    sent = _blockers(first_s=40.0, apart_s=2.0)
    at = _FULL_S
    sent += [
        (_training("managed1", "resnet18", at), True),
        (_training("managed2", "resnet50", at), True),
        (_training("managed3", "lm", at, types=("v100",)), True),
    ]
    sent += [(_sleep(f"later{number}", _OTHER, at + 1, 20.0), False) for number in range(number)]
    return Run(CROWD, 0, 0.0, sent, EQUAL)


def nice() -> Run:
    """Six ordinary jobs at a low priority, then six managed ones."""
    sent = _blockers(first_s=40.0, apart_s=4.0)
    sent += [
        (_sleep(f"nice{number}", _OTHER, _FULL_S, 60.0, nice=_NICE), False) for number in range(6)
    ]
    sent += [(_training(f"managed{number}", "resnet18", _FULL_S + 2), True) for number in range(6)]
    return Run(NICE, 0, 0.0, sent, EQUAL)


def _blockers(first_s: float, apart_s: float) -> list[tuple[Spec, bool]]:
    """A job on each GPU, which end one after another."""
    return [
        (_sleep(f"blocker{number}", _OTHER, 0.0, first_s + apart_s * number), False)
        for number in range(_GPUS)
    ]


def _sleep(name: str, user: str, at_s: float, seconds: float, nice: int = 0) -> Spec:
    return Spec(name, SLEEP, user, at_s, seconds, limit_min=3, rank=1.0, nice=nice)


def _training(name: str, model: str, at_s: float, types: tuple[str, ...] = ()) -> Spec:
    rates = speeds(model)
    samples = int(40 * max(rates.values()))
    limit = 2 + int((samples / min(rates.values()) + RESTART_S) / 30)
    return Spec(
        name, TRAINING, _OWNER, at_s, 40.0, limit, 0.0, model=model, samples=samples, types=types
    )


def order(run: RunRecord) -> list[JobRecord]:
    """The jobs that are not blockers, in the order of their first starts."""
    found = [job for job in run.jobs if job.attempts and not job.name.startswith("blocker")]
    return sorted(found, key=lambda job: job.attempts[0].start_s)
