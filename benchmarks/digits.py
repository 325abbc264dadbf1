"""The digits that ``examples/train_digits.py`` keeps in a file, made without the import of
scikit-learn: 1.1 s of CPU time in each training that starts before the first one has made it."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def write_digits(path: Path) -> None:
    """Write the file, where it is not there and scikit-learn is; else a training does."""
    package = find_spec("sklearn")
    if path.exists() or package is None or package.origin is None:
        return
    source = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(source, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    aside = path.with_name(f".{path.name}.{id(table)}.npy")
    np.save(aside, table)
    aside.replace(path)
