"""What a job is expected to do before it is measured: the table, or the specification."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.profiles import specs
from slurm_hadar.profiles.table import SCALING, Curve, Table

REFERENCE = "v100"
UNKNOWN_MODEL_RATE = 100.0
"""Samples/s on one V100 assumed of an unknown model: only the ratios between types and
counts mean something until the job is measured."""
UNKNOWN_TFLOPS = specs.SPECS["p100"].tflops
"""Assumed of a GPU type that has no specification: an old one, so that it is used last."""


@dataclass(frozen=True, slots=True)
class ExpectedRate:
    """One expected rate: samples/s of the whole job, whether a table says so, and as text how."""

    rate: float
    known: bool
    how: str


class Estimator:
    """Expected samples/s from a table, filled up by the specifications of the GPU types."""

    def __init__(
        self,
        table: Table,
        tflops: Mapping[str, float] | None = None,
        profile: Mapping[str, str] | None = None,
    ) -> None:
        """``tflops`` and ``profile``: the site's own, by GPU type; 0 or absent: as shipped."""
        self._table = table
        self._profile = {k: v.lower() for k, v in (profile or {}).items()}
        self._own_tflops = {k: v for k, v in (tflops or {}).items() if v > 0}
        self._of_profile = {
            self._profile.get(kind, kind.lower()): value for kind, value in self._own_tflops.items()
        }

    def cell(
        self, model: str, gpu_type: str, gpus: int, batch: int | None, spread: bool = False
    ) -> ExpectedRate:
        """Expected rate of a model with a global batch on GPUs of one type.

        ``spread``: the GPUs lie on several nodes. Never raises; 0 only where the table says that
        the job cannot run.
        """
        curves = self._table.curves(model)
        if not curves:
            return self._by_specification(gpu_type, gpus)
        name = self._table_name(gpu_type, curves)
        if name:
            return self._from_table(model, name, gpus, batch, spread)
        return self._from_neighbour(model, gpu_type, gpus, batch, spread)

    def table_rates(self, model: str, gpu_type: str) -> dict[int, float]:
        """Batch -> samples/s on one GPU of a type, as the table has it; empty where it has none."""
        curves = self._table.curves(model)
        name = self._table_name(gpu_type, curves)
        cells = curves[name].cells if name else {}
        return {batch: rate for (gpus, batch), rate in cells.items() if gpus == 1}

    def anchored(self, model: str) -> bool:
        """Whether the model's rates mean samples/s at all, rather than ratios only."""
        return bool(self._table.curves(model))

    def _table_name(self, gpu_type: str, curves: Mapping[str, Curve]) -> str:
        name = self._profile.get(gpu_type, gpu_type.lower())
        if name in curves:
            return name
        known = specs.canonical(name)
        return known if known in curves and not specs.is_slice(name) else ""

    def _from_table(
        self, model: str, name: str, gpus: int, batch: int | None, spread: bool
    ) -> ExpectedRate:
        source = self._table.source(model)
        together = self._table.curves(model)[name].at(gpus, batch)
        if not spread:
            if together.within:
                return ExpectedRate(together.rate, True, f"table ({source})")
            return ExpectedRate(together.rate, False, f"estimated beyond the table ({source})")
        apart = self._table.curves(model, spread=True).get(name)
        if apart is None or together.rate <= 0:
            return ExpectedRate(
                together.rate, False, f"estimated from GPUs close together ({source})"
            )
        point = apart.at(gpus, batch)
        if point.within:
            return ExpectedRate(point.rate, together.within, f"table ({source}, GPUs spread)")
        return ExpectedRate(
            point.rate, False, f"estimated beyond the table ({source}, GPUs spread)"
        )

    def _from_neighbour(
        self, model: str, gpu_type: str, gpus: int, batch: int | None, spread: bool
    ) -> ExpectedRate:
        mine, curves = self._peak(gpu_type), self._table.curves(model)

        def distance(name: str) -> float:
            return abs(math.log(self._peak(name) / mine))

        for name in sorted(curves, key=lambda name: (distance(name), name)):
            cell = self._from_table(model, name, gpus, batch, spread)
            if cell.rate > 0:
                factor = specs.relative_speed(mine, self._peak(name))
                how = f"estimated from {name} by specification (x{factor:.2g})"
                return ExpectedRate(cell.rate * factor, False, how)
        return ExpectedRate(
            0.0, False, f"runs on no type of the table ({self._table.source(model)})"
        )

    def _by_specification(self, gpu_type: str, gpus: int) -> ExpectedRate:
        speed = specs.relative_speed(self._peak(gpu_type), specs.SPECS[REFERENCE].tflops)
        rate = UNKNOWN_MODEL_RATE * speed * gpus**SCALING
        return ExpectedRate(rate, False, "estimated from the GPU's specification (unknown model)")

    def _peak(self, gpu_type: str) -> float:
        own = self._own_tflops.get(gpu_type) or self._of_profile.get(gpu_type.lower())
        if own:
            return own
        spec = specs.lookup(gpu_type) or specs.lookup(self._profile.get(gpu_type, ""))
        return spec.tflops if spec else UNKNOWN_TFLOPS
