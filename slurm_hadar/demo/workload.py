"""The trainings of the demonstration, as a small lab would submit them within a minute."""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.profiles.rates import Rates

TYPES = ("v100", "p100", "k80")
_COUNTS = (1, 2)


@dataclass(frozen=True, slots=True)
class Training:
    """One job. ``samples`` is its declared work; ``arrival_s`` when it is submitted, s.

    ``usual`` is the GPU type that its owner is used to asking for.
    """

    name: str
    model: str
    batch: int
    samples: int
    arrival_s: float
    usual: str


# One batch per model, since the sandbox knows one true speed per model and type.
# name, model, batch, seconds of work on the best type, arrival in s, the type its owner asks for
_ROWS = (
    ("cats", "resnet18", 64, 28, 0, "v100"),
    ("shop", "recommendation", 2048, 28, 0, "v100"),
    ("speech", "lm", 20, 30, 0, "v100"),
    ("faces", "resnet50", 16, 30, 0, "v100"),
    ("essays", "transformer", 16, 28, 0, "v100"),
    ("dogs", "resnet18", 64, 24, 0, "p100"),
    ("films", "recommendation", 2048, 28, 5, "p100"),
    ("news", "lm", 20, 20, 5, "p100"),
    ("cells", "resnet50", 16, 14, 10, "p100"),
    ("poems", "transformer", 16, 28, 10, "p100"),
    ("birds", "resnet18", 64, 18, 15, "k80"),
    ("shoes", "recommendation", 2048, 24, 15, "p100"),
)


def trainings(scale: float = 1.0) -> list[Training]:
    """The workload. ``scale`` shortens or lengthens every job."""
    table = Rates()
    found = []
    for name, model, batch, seconds, arrival, usual in _ROWS:
        rate, _ = table.rates(model, batch, TYPES, (1,))
        samples = int(float(rate.max()) * seconds * scale)
        found.append(Training(name, model, batch, samples, float(arrival), usual))
    return found


def base_rates(work: Sequence[Training]) -> dict[str, dict[str, dict[int, float]]]:
    """The profile's samples/s of the workload's models: model -> type -> GPUs -> rate.

    The sandbox makes its hidden true speeds of these.
    """
    table = Rates()
    found: dict[str, dict[str, dict[int, float]]] = {}
    for job in work:
        rate, _ = table.rates(job.model, job.batch, TYPES, _COUNTS)
        found[job.model] = {
            kind: dict(zip(_COUNTS, map(float, rate[row]), strict=True))
            for row, kind in enumerate(TYPES)
        }
    return found
