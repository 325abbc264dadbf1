"""Linear and integer programmes: from arrays to the solution of HiGHS."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import library, new_solver

if TYPE_CHECKING:
    import highspy


@dataclass(frozen=True)
class Programme:
    """Maximise ``cost`` (n,) x, or with ``minimise`` minimise it, over 0 <= x <= ``upper`` (n,)
    with ``low`` <= A x <= ``high`` (m,). ``integer``: integer x only.

    A has k non-zeros ``value`` (n, k) in each column, in the rows ``index`` (n, k). With ``start``
    (n + 1,) both are flat, and column i has those from ``start[i]`` up to ``start[i + 1]``; with
    ``by_row`` these are rows of A, and ``index`` has the columns.
    """

    cost: FloatArray
    upper: FloatArray
    low: FloatArray
    high: FloatArray
    index: IntArray
    value: FloatArray
    start: IntArray | None = None
    by_row: bool = False
    minimise: bool = False
    integer: bool = False

    def solve(self, **options: float | str) -> "highspy.Highs":
        """The solver with its solution. ``options``: options of HiGHS."""
        size, start = len(self.cost), self.start
        if start is None:
            start = np.arange(size + 1) * self.index.shape[1]
        highs = library()
        lp = highs.HighsLp()
        lp.num_col_, lp.num_row_ = size, len(self.low)
        lp.sense_ = highs.ObjSense.kMinimize if self.minimise else highs.ObjSense.kMaximize
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = self.cost, np.zeros(size), self.upper
        lp.row_lower_, lp.row_upper_ = self.low, self.high
        if self.integer:
            lp.integrality_ = [highs.HighsVarType.kInteger] * size
        formats = highs.MatrixFormat
        lp.a_matrix_.format_ = formats.kRowwise if self.by_row else formats.kColwise
        lp.a_matrix_.start_ = start.astype(np.int32)
        lp.a_matrix_.index_ = self.index.ravel().astype(np.int32)
        lp.a_matrix_.value_ = self.value.ravel()
        solver = new_solver()
        for name, setting in options.items():
            solver.setOptionValue(name, setting)
        solver.passModel(lp)
        solver.run()
        return solver
