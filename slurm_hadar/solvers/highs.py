"""HiGHS, the solver of the extra ``controller``: imported where something is solved, so that what
only reads works without it."""

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from slurm_hadar.domain.errors import HadarError

if TYPE_CHECKING:
    import highspy

INFINITY = float("inf")
"""HiGHS's own."""


@cache
def library() -> ModuleType:
    """highspy. Raises HadarError where it is not installed."""
    try:
        import highspy
    except ModuleNotFoundError:
        raise HadarError(
            "this policy needs highspy, which is not installed; run: "
            "pip install 'slurm-hadar[controller]'"
        ) from None
    module: ModuleType = highspy
    return module


@cache
def _quiet() -> Any:
    base: Any = library().Highs

    class QuietHighs(base):  # type: ignore[misc]
        def enableCallbacks(self) -> None:
            # The constructor calls this, and HiGHS 1.16 prints its banner to stdout here, where a
            # command may print JSON.
            above: Any = super()
            self.setOptionValue("output_flag", False)
            above.enableCallbacks()

    return QuietHighs


def new_solver() -> "highspy.Highs":
    """HiGHS with one thread, a fixed seed and no output. Raises HadarError: :func:`library`."""
    solver: highspy.Highs = _quiet()()
    for name, setting in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, setting)
    return solver


def is_best(solver: "highspy.Highs") -> bool:
    """Whether the solution is proven optimal."""
    return bool(solver.getModelStatus() == library().HighsModelStatus.kOptimal)
