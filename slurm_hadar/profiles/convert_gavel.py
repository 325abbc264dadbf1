"""Makes data/gavel.json out of Gavel's simulation_throughputs.json.

``python -m slurm_hadar.profiles.convert_gavel simulation_throughputs.json > gavel.json``

Gavel's rates are steps/s summed over the workers (its profiler adds each worker's rate up), and
its batch size is each worker's own. So samples/s of the whole job = steps/s x batch size, at a
global batch of batch size x GPUs. CycleGAN and A3C name no batch: 1.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.profiles.table import COLUMNS

Rows = list[list[str | int | float | None]]

_NAME = re.compile(r"\('(?P<model>[^'(]+?)(?: \(batch size (?P<batch>\d+)\))?', (?P<gpus>\d+)\)")
_SPREAD = "_unconsolidated"


def convert(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Rows:
    """Rows of :data:`COLUMNS` from Gavel's table; rates rounded to 5 significant digits.

    Raises ValueError at a job name that is not Gavel's.
    """
    rows: Rows = []
    for kind in sorted(name for name in table if not name.endswith(_SPREAD)):
        for name, rates in table[kind].items():
            found = _NAME.fullmatch(name)
            if found is None:
                raise ValueError(f"{name!r} is no job of Gavel's table")
            batch = int(found["batch"] or 1)
            apart = table.get(kind + _SPREAD, {}).get(name, {}).get("null")
            rows.append(
                [
                    found["model"],
                    kind,
                    int(found["gpus"]),
                    batch,
                    _samples(rates["null"], batch),
                    None if apart is None else _samples(apart, batch),
                ]
            )
    return sorted(rows, key=lambda row: [(str(row[0]), str(row[1])), int(row[3] or 0), row[2]])


def _samples(steps_per_s: float, batch: int) -> float:
    return float(f"{steps_per_s * batch:.5g}")


def text(rows: Rows) -> str:
    """The file's text, one row a line so that a difference can be read."""
    head = {
        "version": 1,
        "source": "Gavel",
        "licence": "MIT, Copyright (c) 2020 Stanford Future Data Systems; see gavel.LICENSE",
        "columns": COLUMNS,
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'


if __name__ == "__main__":
    sys.stdout.write(text(convert(json.loads(Path(sys.argv[1]).read_text()))))
