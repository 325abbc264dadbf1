"""The jobs of a run, drawn from a seed: in every run of the seed the same jobs, arrivals, requests
and true run times. Only who sends them differs: sbatch, or hbatch for those that opt in."""

import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.optin.site import GOLD, LAYOUT, USERS
from slurm_hadar.profiles.rates import Rates

TRAINING, SLEEP, ARRAY = "training", "sleep", "array"
RESTART_S = 3.0
"""What a training needs to go on from its checkpoint, s."""
_DECLARED_RESTART_S = 5
MODELS = {"resnet18": 64, "resnet50": 16, "lm": 20, "transformer": 16, "recommendation": 2048}
"""Model of the shipped table -> batch. Slowest to fastest type: 1 to 2 for two of them, 1 to 3.4,
3.8 and 5 for the others."""
_TYPED, _GOLD, _NICED = 0.2, 0.15, 0.15
"""Parts of the jobs whose owner names a GPU type, a better QOS, a nice value."""
_SLOW = 0.75
"""The sandbox's true speeds are that much of the table's at worst."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One submission. ``seconds``: how long it sleeps; of a training, how long it trains on its
    best type by the table. ``rank``: it opts in where the share is above. ``types``: declared,
    empty: any. Times in s."""

    name: str
    kind: str
    user: str
    arrival_s: float
    seconds: float
    limit_min: int
    rank: float
    gpus: int = 1
    gpu_type: str = ""
    partition: str = "gpu"
    model: str = ""
    samples: int = 0
    tasks: int = 1
    nice: int = 0
    gold: bool = False
    types: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of its jobs: its own, or one for each task."""
        if self.tasks == 1:
            return [self.name]
        return [f"{self.name}_{task}" for task in range(self.tasks)]

    def words(self) -> list[str]:
        """What its owner types behind the command."""
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        found = [
            f"--job-name={self.name}",
            f"--partition={self.partition}",
            f"--gres=gpu:{kind}{self.gpus}",
            f"--time={self.limit_min}",
            "--nodes=1",
            "--output=/dev/null",
        ]
        found += [f"--array=0-{self.tasks - 1}"] if self.tasks > 1 else []
        found += [f"--nice={self.nice}"] if self.nice else []
        found += [f"--qos={GOLD}"] if self.gold else []
        return found

    def script(self, folder: Path) -> str:
        """The batch script; its #HADAR line means nothing to sbatch. ``folder``: the owner's."""
        types = f"types={','.join(self.types) or 'any'}"
        if self.kind != TRAINING:
            declared, command = types, f"sleep {self.seconds:.2f}"
        else:
            declared = (
                f"{types} model={self.model} batch={MODELS[self.model]} samples={self.samples} "
                f"checkpoint=yes restart_cost={_DECLARED_RESTART_S}"
            )
            words = [sys.executable, str(Path(__file__).with_name("training.py")), self.model]
            words += [str(MODELS[self.model]), str(self.samples), str(RESTART_S)]
            command = shlex.join([*words, str(folder / f"{self.name}.saved")])
        return f"#!/bin/sh\n#HADAR {declared}\nexec {command}\n"


def draw(seed: int, jobs: int, minutes: float, scale: float = 1.0) -> list[Spec]:
    """So many submissions that arrive within ``minutes``. ``scale``: of all run times."""
    dice = random.Random(f"optin/{seed}")
    arrivals = sorted(dice.uniform(0, 60 * minutes) for _ in range(jobs))
    # The cluster is full soon, so that there is a queue in which anything can go wrong.
    arrivals = [0.0 if number < jobs // 3 else at for number, at in enumerate(arrivals)]
    return [_spec(dice, number, at, scale) for number, at in enumerate(arrivals)]


def _spec(dice: random.Random, number: int, arrival_s: float, scale: float) -> Spec:
    kind = dice.choices((TRAINING, SLEEP, ARRAY), (55, 33, 12))[0]
    user, rank = dice.choice(list(USERS)), dice.random()
    typed, gold, niced = (dice.random() < part for part in (_TYPED, _GOLD, _NICED))
    usual = dice.choices(LAYOUT.gpu_types, (6, 3, 1))[0] if typed else ""
    by_partition = typed and dice.random() < 0.5
    model = dice.choice(list(MODELS))
    seconds = scale * dice.uniform(*{TRAINING: (15, 50), SLEEP: (5, 60), ARRAY: (8, 25)}[kind])
    two = kind == SLEEP and dice.random() < 0.3
    longest, samples = seconds, 0
    if kind == TRAINING:
        rates = speeds(model)
        samples = int(max(rates.values()) * seconds)
        longest = samples / min(rates.values()) / _SLOW + RESTART_S
    return Spec(
        name=f"{kind}{number}",
        kind=kind,
        user=user,
        arrival_s=arrival_s,
        seconds=seconds,
        # People ask for more than they need, each in another measure.
        limit_min=1 + int(longest * dice.uniform(1.2, 3.0) / 60 + 0.999),
        rank=rank,
        gpus=2 if two else 1,
        gpu_type="" if by_partition else usual,
        partition=usual if by_partition else "gpu",
        model=model if kind == TRAINING else "",
        samples=samples,
        tasks=dice.randrange(3, 6) if kind == ARRAY else 1,
        nice=dice.choice((100, 1000)) if niced else 0,
        gold=gold,
    )


def speeds(model: str) -> dict[str, float]:
    """GPU type -> samples/s of the model on one GPU, by the shipped table."""
    rate, _ = Rates().rates((None, model, MODELS[model]), LAYOUT.gpu_types, (1,))
    return {kind: float(row[0]) for kind, row in zip(LAYOUT.gpu_types, rate, strict=True)}


def base_rates(models: Sequence[str] = tuple(MODELS)) -> dict[str, dict[str, dict[int, float]]]:
    """The same for the sandbox, which makes its hidden true speeds of it."""
    return {model: {kind: {1: rate} for kind, rate in speeds(model).items()} for model in models}
