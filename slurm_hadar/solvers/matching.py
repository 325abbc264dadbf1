"""The cheapest matching of rows to columns, by shortest augmenting paths on arrays."""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray


def cheapest_matching(cost: FloatArray) -> IntArray:
    """(N,) the column of each row, no column twice, with the least sum. ``cost`` (N, M), M >= N,
    finite. O(N^2 M), Jonker and Volgenant, Computing 38, 1987 (recalled). Raises ValueError where
    there are fewer columns than rows.
    """
    rows, columns = cost.shape
    if rows > columns:
        raise ValueError(f"{rows} rows cannot be matched to {columns} columns")
    dual_row, dual = np.zeros(rows), np.zeros(columns)
    owner: IntArray = np.full(columns, -1, dtype=np.int64)
    for start in range(rows):
        shortest: FloatArray = np.full(columns, np.inf)
        came: IntArray = np.full(columns, -1, dtype=np.int64)
        done: list[int] = []
        row, length, column = start, 0.0, -1
        while row >= 0:
            step = length + cost[row] - dual_row[row] - dual
            # A column that is done has its length, which no path over this row can beat.
            better = step < shortest
            better[done] = False
            shortest[better] = step[better]
            came[better] = column
            open_ = shortest.copy()
            open_[done] = np.inf
            column = int(open_.argmin())
            length = float(open_[column])
            done.append(column)
            row = int(owner[column])
        passed = np.array(done[:-1], dtype=np.int64)
        dual_row[start] += length
        dual_row[owner[passed]] += length - shortest[passed]
        dual[passed] -= length - shortest[passed]
        while column >= 0:
            before = int(came[column])
            owner[column] = owner[before] if before >= 0 else start
            column = before
    found: IntArray = np.empty(rows, dtype=np.int64)
    taken = np.flatnonzero(owner >= 0)
    found[owner[taken]] = taken
    return found
