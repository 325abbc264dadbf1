"""The trainings of the demonstration, as a small lab would submit them within a minute."""

from dataclasses import dataclass

from slurm_hadar.profiles.rates import Rates

TYPES = ("v100", "p100", "k80")


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


# name, model, batch, seconds of work on the best type, arrival in s, the type its owner asks for
_ROWS = (
    ("cats", "resnet18", 128, 50, 0, "v100"),
    ("speech", "lm", 80, 45, 0, "v100"),
    ("shop", "recommendation", 2048, 50, 0, "v100"),
    ("faces", "resnet50", 64, 55, 0, "v100"),
    ("essays", "transformer", 64, 45, 0, "v100"),
    ("dogs", "resnet18", 64, 40, 0, "p100"),
    ("news", "lm", 20, 40, 6, "p100"),
    ("films", "recommendation", 512, 40, 6, "v100"),
    ("cells", "resnet50", 32, 35, 12, "v100"),
    ("poems", "transformer", 32, 35, 12, "v100"),
    ("birds", "resnet18", 256, 30, 20, "k80"),
    ("mail", "lm", 40, 30, 20, "k80"),
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
