"""A chunk of a file's rows, which converts cells to numbers; a malformed cell is an error that names its row."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import MAX_TOKENS

if TYPE_CHECKING:
    import pandas as pd

LONGEST_QUOTE = 40
YEARS = (1678, 2261)  # range of nanoseconds since 1970 in 64 bits
ZONE = r"\d[T ].*\d\s?(Z|z|[+-]\d{2}(?::?\d{2})?)$"
UTC = ("Z", "z", "+00:00", "+0000", "+00", "-00:00")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file. first_row: number of the first one, counted from 1 without a header. names: the
    file's names of columns that have been renamed.
    """

    file: str
    first_row: int
    frame: pd.DataFrame
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: str) -> bool:
        return column in self.frame.columns

    def renamed(self, names: Mapping[str, str]) -> Chunk:
        """Select the columns `names`, servegym's name to the file's."""
        frame = self.frame[list(names.values())].set_axis(list(names), axis=1)
        return Chunk(self.file, self.first_row, frame, names)

    def lengths(self, column: str, least: int = 1, empty: float | None = None, hint: str = "") -> np.ndarray:
        """Read whole numbers of tokens, `least` to MAX_TOKENS, as int32 of shape (rows,); an empty cell is `empty`.

        hint: what helps with cells that are empty or 0.
        """
        right = f"a whole number of tokens, {least} to {MAX_TOKENS}"
        numbers = self.numbers(column, right, np.nan if hint else empty)
        if hint:
            self.check(column, np.isnan(numbers) | (numbers == 0), f"{right}{hint}")
        self.check(column, (numbers < least) | (numbers > MAX_TOKENS) | (numbers != np.floor(numbers)), right)
        return numbers.astype("i4")

    def codes(self, column: str, empty: float | None = None) -> np.ndarray:
        """Read whole numbers of 0 or more that fit int32, of shape (rows,); an empty cell is `empty`, or an error."""
        right = f"a whole number, 0 to {2**31 - 1}"
        numbers = self.numbers(column, right, empty)
        self.check(column, (numbers < 0) | (numbers > 2**31 - 1) | (numbers != np.floor(numbers)), right)
        return numbers.astype("i4")

    def positive(self, column: str, right: str, finite: bool = False, empty: float | None = None) -> np.ndarray:
        """Read numbers above 0 (unless `finite`, inf too), float64 of shape (rows,); an empty cell is `empty`."""
        numbers = self.numbers(column, right, empty)
        self.check(column, (numbers <= 0) | (finite & np.isinf(numbers)), right)
        return numbers

    def numbers(self, column: str, right: str, empty: float | None = None) -> np.ndarray:
        """Read numbers as float64 of shape (rows,); an empty cell is `empty`, or an error where that is None."""
        import pandas as pd

        cells = self.frame[column]
        if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_datetime64_any_dtype(cells):
            self.check(column, np.ones(len(cells), bool), right)
        if cells.dtype.kind in "iuf":
            numbers = cells.to_numpy("f8")
            absent = np.isnan(numbers)
        else:
            absent = cells.isna().to_numpy()
            numbers = _parsed(cells)
            self.check(column, np.isnan(numbers) & ~absent, right)
        if empty is None:
            self.check(column, absent, right)
            return numbers
        return np.where(absent, empty, numbers)

    def times(self, column: str, unit: str, hint: str = "") -> np.ndarray:
        """Read times of 0 or more in `unit`, as float64 of shape (rows,). hint: ends the message for others."""
        right = f"a finite number of {unit}, 0 or more, since the start of the trace{hint}"
        numbers = self.numbers(column, right)
        self.check(column, ~np.isfinite(numbers) | (numbers < 0), right)
        return numbers

    def ids(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """As `lists`, for numbers up to 2^64 - 1 that are only compared: those from 2^63 on become negative."""
        return self.lists(column, 2**64 - 1)

    def lists(self, column: str, most: int = 2**63 - 1) -> tuple[np.ndarray, np.ndarray]:
        """Read lists of whole numbers (in CSV separated by spaces) as int64: the length of each list, and all numbers.

        Shapes (rows,) and (sum of the lengths,). An empty cell is a list of none.
        """
        if self.frame[column].dtype.kind in "iuf":  # CSV in which no cell has several
            return self._lone_numbers(column, most)
        lists = []
        for at, cell in enumerate(self.frame[column]):
            try:
                lists.append(_whole_numbers(cell, most))
            except (TypeError, ValueError, OverflowError):
                right = f"whole numbers, 0 to {most} (JSON and Parquet: a list; CSV: 3 7 9)"
                self.check(column, np.arange(len(self)) == at, right)
        return np.array([len(numbers) for numbers in lists], "i8"), np.concatenate(lists)

    def _lone_numbers(self, column: str, most: int) -> tuple[np.ndarray, np.ndarray]:
        """As `lists`, for a column of numbers, each a list of one, or empty."""
        cells = self.frame[column].to_numpy()
        there = ~np.isnan(cells)
        if cells.dtype.kind == "f":
            most = 2**53  # beyond it, a float may differ from the number in the file
        wrong = there & ~((cells >= 0) & (cells <= most) & (cells == np.floor(cells)))
        self.check(column, wrong, f"whole numbers, 0 to {most}")
        return there.astype("i8"), cells[there].astype("i8")

    def dates_ns(self, column: str) -> np.ndarray:
        """Read dates with a time as int64 nanoseconds since 1970 (UTC), of shape (rows,)."""
        import pandas as pd

        cells = self.frame[column]
        right = "a date and time such as 2023-11-16 18:17:03.97"
        if cells.dtype.kind in "biufc":
            self.check(column, np.ones(len(cells), bool), right)
        dates = pd.to_datetime(cells, utc=True, errors="coerce", format="ISO8601")
        self.check(column, dates.isna().to_numpy(), right)
        years = dates.dt.year.to_numpy()
        self.check(column, (years < YEARS[0]) | (years > YEARS[1]), f"a date of the years {YEARS[0]} to {YEARS[1]}")
        return dates.dt.as_unit("ns").astype("int64").to_numpy()

    def zones(self, column: str) -> np.ndarray:
        """Read the zone of each date that is text, UTC or like +02:00: an object array of shape (rows,). "": none."""
        cells = self.frame[column]
        if cells.dtype.kind == "M" or getattr(cells.dtype, "tz", None) is not None:
            return np.full(len(cells), "", object)
        found = cells.astype(str).str.extract(ZONE, expand=False)
        return found.fillna("").replace(list(UTC), "UTC").to_numpy(object)

    def instants(self, column: str, hint: str) -> tuple[np.ndarray, bool]:
        """Read times of shape (rows,), and whether they are dates: dates as int64 nanoseconds since 1970
        (UTC), numbers as int64 where all are whole, else as float64."""
        cells = self.frame[column]
        if cells.dtype.kind == "M" or getattr(cells.dtype, "tz", None) is not None or not self.is_numeric(column):
            return self.dates_ns(column), True
        right = f"a finite number or a date{hint}"
        numbers = self.numbers(column, right)
        self.check(column, ~np.isfinite(numbers), right)
        if cells.dtype.kind == "i":
            return cells.to_numpy("i8"), False
        try:  # exact beyond 2^53, as nanoseconds since 1970 are
            return np.array([operator.index(cell) for cell in cells.tolist()], "i8"), False
        except (TypeError, OverflowError):
            return numbers, False

    def text(self, column: str, empty: str | None = None) -> np.ndarray:
        """Read cells as text, an object array of shape (rows,). An empty cell is `empty`; None: an error."""
        cells = self.frame[column]
        if empty is not None:
            cells = cells.astype(object).where(cells.notna(), empty)
        self.check(column, cells.isna().to_numpy(), "a name or a whole number of 0 or more")
        return cells.map(str).to_numpy(object)

    def is_numeric(self, column: str) -> bool:
        """Whether every cell that is not empty is a number."""
        cells = self.frame[column]
        return cells.dtype.kind in "iuf" or bool((~np.isnan(_parsed(cells)) | cells.isna()).all())

    def check(self, column: str, bad: np.ndarray, right: str) -> None:
        """Raise WorkloadError if `bad`, bool[rows], has a true: with its row, its cell, and what it should be."""
        if bad.any():
            at = int(np.argmax(bad))
            raise WorkloadError(
                f"{self.file}, row {self.first_row + at}: {self.names.get(column, column)} is "
                f"{_quote(self.frame[column].iloc[at])};"
                f" it should be {right}"
            )


class Labels:
    """Maps names in a column (clients, applications) to codes 0, 1, ... in order of appearance, chunk by chunk."""

    def __init__(self) -> None:
        self._codes: dict[str, dict[str, int]] = {}

    def codes(self, chunk: Chunk, column: str, field: str | None = None, none: str | None = None) -> np.ndarray:
        """Return the codes of a column, int32 of shape (rows,); the first chunk decides if cells are names or numbers.

        field: the column of `WORKLOAD`, if its name differs. none: the name of an empty cell, which has code 0; None:
        an empty cell is an error. Raises WorkloadError.
        """
        field = field or column
        if chunk.first_row == 1 and not chunk.is_numeric(column):
            self._codes[field] = {} if none is None else {none: 0}
        if field not in self._codes:
            return chunk.codes(column, None if none is None else 0.0)
        return self.names(field, chunk.text(column, none))

    def names(self, field: str, names: np.ndarray) -> np.ndarray:
        """Return the codes of names for a column of `WORKLOAD`, int32 of shape (rows,)."""
        import pandas as pd

        places, distinct = pd.factorize(names)
        codes = self._codes.setdefault(field, {})
        return np.array([codes.setdefault(name, len(codes)) for name in distinct], "i4")[places]

    def by_column(self) -> dict[str, tuple[str, ...]]:
        """Return the names of code 0, 1, ... by column."""
        return {field: tuple(codes) for field, codes in self._codes.items()}


def _parsed(cells: pd.Series[Any]) -> np.ndarray:
    """Convert cells to float64; NaN for a cell that is not a number."""
    return np.array([number_of(cell) for cell in cells], "f8")


def number_of(cell: Any) -> float:
    """Read a number, of a text too; NaN for anything else."""
    is_number = isinstance(cell, (str, int, float, np.number)) and not isinstance(cell, bool)
    if not is_number or (isinstance(cell, str) and "_" in cell):  # Python reads 1_0 as 10
        return np.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return np.nan


def _whole_numbers(cell: Any, most: int) -> np.ndarray:
    """Return the numbers of a list, or of a text with numbers separated by spaces."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return np.empty(0, "i8")
    items = [int(item) for item in cell.split()] if isinstance(cell, str) else [operator.index(item) for item in cell]
    if (isinstance(cell, str) and "_" in cell) or (items and not 0 <= min(items) <= max(items) <= most):
        raise ValueError("out of range")
    return np.array(items, "u8").view("i8")


def _quote(cell: Any) -> str:
    """Quote a cell for an error message: short and in one line."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return "empty or NaN"
    if isinstance(cell, (float, np.floating)):
        return f"{cell:g}"
    text = repr(cell) if isinstance(cell, str) else " ".join(str(cell).split())
    return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."
