"""The trainings of the demonstration, as a small lab would submit them within a minute."""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.profiles.rates import Rates

TYPES = ("v100", "p100", "k80")
_COUNTS = (1, 2)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job. ``samples`` is its declared work; ``arrival_s`` when it is submitted, s.

    ``usual`` is the GPU type that its owner is used to asking for.
    """

    name: str
    model: str
    batch: int
    samples: int
    arrival_s: float
    usual: str


# One batch per model, since the sandbox knows one true speed per model and type. The models gain
# differently by a V100: against a K80 7 times (resnet18 and resnet50), 4 times (lm), twice
# (transformer) or not at all (recommendation). 12 owners ask for a V100, 8 for a P100, 4 for a K80.
# name, model, batch, seconds of work on the best type, arrival in s, the type its owner asks for
_ROWS = (
    ("cats", "resnet18", 16, 18, 0, "v100"),
    ("shop", "recommendation", 2048, 20, 0, "v100"),
    ("speech", "lm", 20, 18, 0, "v100"),
    ("faces", "resnet50", 64, 16, 0, "p100"),
    ("essays", "transformer", 16, 20, 0, "v100"),
    ("dogs", "resnet18", 16, 14, 2, "p100"),
    ("films", "recommendation", 2048, 18, 4, "k80"),
    ("news", "lm", 20, 14, 6, "v100"),
    ("cells", "resnet50", 64, 12, 8, "v100"),
    ("poems", "transformer", 16, 16, 10, "p100"),
    ("birds", "resnet18", 16, 10, 12, "v100"),
    ("shoes", "recommendation", 2048, 16, 14, "v100"),
    ("calls", "lm", 20, 12, 17, "p100"),
    ("lungs", "resnet50", 64, 16, 20, "v100"),
    ("laws", "transformer", 16, 18, 23, "k80"),
    ("trees", "resnet18", 16, 12, 26, "p100"),
    ("songs", "recommendation", 2048, 20, 29, "p100"),
    ("mails", "lm", 20, 16, 32, "v100"),
    ("eyes", "resnet50", 64, 10, 35, "p100"),
    ("tales", "transformer", 16, 14, 38, "v100"),
    ("fish", "resnet18", 16, 16, 41, "v100"),
    ("books", "recommendation", 2048, 14, 44, "p100"),
    ("chats", "lm", 20, 10, 47, "k80"),
    ("bones", "resnet50", 64, 12, 50, "k80"),
)


def trainings(scale: float = 1.0) -> list[DemoJob]:
    """The workload. ``scale`` shortens or lengthens every job."""
    table = Rates()
    found = []
    for name, model, batch, seconds, arrival, usual in _ROWS:
        rate, _ = table.rates((None, model, batch), TYPES, (1,))
        samples = int(float(rate.max()) * seconds * scale)
        found.append(DemoJob(name, model, batch, samples, float(arrival), usual))
    return found


def base_rates(work: Sequence[DemoJob]) -> dict[str, dict[str, dict[int, float]]]:
    """The profile's samples/s of the workload's models: model -> type -> GPUs -> rate.

    The sandbox makes its hidden true speeds of these.
    """
    table = Rates()
    found: dict[str, dict[str, dict[int, float]]] = {}
    for job in work:
        rate, _ = table.rates((None, job.model, job.batch), TYPES, _COUNTS)
        found[job.model] = {
            kind: dict(zip(_COUNTS, map(float, rate[row]), strict=True))
            for row, kind in enumerate(TYPES)
        }
    return found
