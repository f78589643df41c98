"""A linear program in sparse form, grown row by row, and a bound on its optimum that no rounding can spoil."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

INF = float("inf")


@dataclasses.dataclass(frozen=True)
class Solved:
    """upper_bound: at least the optimum, whatever the solver's tolerances. objective: what the solver reached."""

    upper_bound: float
    objective: float
    status: int
    message: str


class Program:
    """Maximise worth @ x with rows @ x <= most (or == 0) and low <= x <= high; all bounds of x are finite."""

    def __init__(self) -> None:
        self.worth: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._rows: dict[bool, tuple[list[int], list[int], list[float], list[float]]] = {
            equal: ([], [], [], []) for equal in (False, True)
        }

    def variable(self, high: float, worth: float = 0.0, low: float = 0.0) -> int:
        assert -INF < low <= high < INF
        self.worth.append(worth)
        self.low.append(low)
        self.high.append(high)
        return len(self.worth) - 1

    def at_most(self, terms: Iterable[tuple[int, float]], most: float) -> None:
        self._add(False, terms, most)

    def balanced(self, terms: Iterable[tuple[int, float]]) -> None:
        self._add(True, terms, 0.0)

    def _add(self, equal: bool, terms: Iterable[tuple[int, float]], right: float) -> None:
        rows, columns, numbers, rights = self._rows[equal]
        row = len(rights)
        for column, number in terms:
            if number != 0.0:
                rows.append(row)
                columns.append(column)
                numbers.append(number)
        rights.append(right)

    @property
    def size(self) -> tuple[int, int, int]:
        """Variables, rows, numbers in the rows."""
        return (
            len(self.worth),
            sum(len(rows[3]) for rows in self._rows.values()),
            sum(len(rows[0]) for rows in self._rows.values()),
        )

    def solve(self, time_limit_s: float, method: str = "highs-ipm") -> Solved:
        """Solve with HiGHS. The upper bound is made of the multipliers it returns, by weak duality:

        worth @ x <= most @ y + max over low <= x <= high of (worth - rows^T y) @ x  for every y >= 0 (free where a
        row is an equation). Without multipliers (it ran out of time) it is that of y = 0.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        worth, low, high = (np.array(column) for column in (self.worth, self.low, self.high))
        matrices, rights = {}, {}
        for equal, (rows, columns, numbers, most) in self._rows.items():
            shape = (len(most), len(worth))
            matrices[equal] = csr_array((numbers, (rows, columns)), shape=shape) if most else None
            rights[equal] = np.array(most) if most else None
        found = linprog(
            -worth, matrices[False], rights[False], matrices[True], rights[True], np.column_stack([low, high]),
            method=method, options={"time_limit": time_limit_s, "presolve": True},
        )  # fmt: skip
        reduced, total = worth.copy(), 0.0
        for equal, part in ((False, found.get("ineqlin")), (True, found.get("eqlin"))):
            multipliers = None if part is None else part.get("marginals")
            matrix, right = matrices[equal], rights[equal]
            if matrix is None or right is None or multipliers is None or not np.isfinite(multipliers).all():
                continue
            prices = -np.asarray(multipliers, "f8")
            if not equal:
                prices = np.maximum(prices, 0.0)
            reduced -= matrix.T @ prices
            total += float(right @ prices)
        total += float(np.maximum(reduced * low, reduced * high).sum())
        objective = float("nan") if found.fun is None else -float(found.fun)
        return Solved(total, objective, int(found.status), str(found.message))
