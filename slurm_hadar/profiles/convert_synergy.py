"""Makes data/synergy.json out of Synergy's profiles.

``python -m slurm_hadar.profiles.convert_synergy synergy_profiles.json > synergy.json``

Input: ``{"profiles": {"models": {"alexnet_1": {"gpus": 1, "tput": [[...], ...]}, ...}}}``, the
tables of the model files in Synergy's simulator. Rows of ``tput`` are CPUs per GPU, columns memory
per GPU; both axes stand in its ``jobs/job.py``. Tables of several GPUs lack the least memory. 1 is
the rate with the fair share of a server with 8 GPUs, 24 CPUs and 500 GB; 0 means not measured.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.profiles.cpu_table import text

CPUS = (1, 2, 3, 4, 5, 6, 9, 12, 24)
MEM_GB = (20.83, 62.5, 125.0, 187.5, 250.0)

Rows = list[tuple[str, int, int, float, float]]


def convert(models: Mapping[str, Mapping[str, object]]) -> Rows:
    """Rows of ``cpu_table.COLUMNS``. Raises ValueError at a table of another form."""
    rows: Rows = []
    for name, found in sorted(models.items()):
        model, _, gpus = name.rpartition("_")
        tput = found["tput"]
        if not model or not gpus.isdigit() or not isinstance(tput, list):
            raise ValueError(f"{name!r} is no profile of Synergy's")
        for cpus, row in zip(CPUS, tput, strict=True):
            if any(row):
                memory = MEM_GB[len(MEM_GB) - len(row) :]
                rows += [
                    (model, int(gpus), cpus, gb, rate) for gb, rate in zip(memory, row, strict=True)
                ]
    return rows


HEAD = {
    "source": "Synergy",
    "licence": "MIT, Copyright (c) 2015 - present Microsoft Corporation; see synergy.LICENSE",
}

if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(text(convert(given["profiles"]["models"]), HEAD))
