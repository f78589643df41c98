"""A latency model: a form with its coefficients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import LatencyForm, Values
from servegym.latency_models.forms import estimator_forms, get_form
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.records.signatures import Estimator
from servegym.simulator.records.types import BATCH, BATCH_SUMS

if TYPE_CHECKING:
    import pandas as pd

BATCH_COLUMNS: tuple[str, ...] = BATCH_SUMS


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """A form and its packed coefficients (float64[k], copied).

    Raises ProfileError for an unknown form, and for coefficients that do not fit it or are out of range.
    """

    form: str
    coefficients: np.ndarray

    def __post_init__(self) -> None:
        form = get_form(self.form)
        packed = form.pack(form.unpack(np.asarray(self.coefficients, dtype=np.float64)))
        object.__setattr__(self, "coefficients", packed)

    @classmethod
    def from_values(cls, form: str, values: Values, where: str = "") -> LatencyModel:
        """Make a model from coefficients by name. Raises ProfileError as `LatencyForm.pack`, with `where` in front."""
        try:
            definition = get_form(form)
        except ProfileError as error:
            raise ProfileError(f"{where}: {error}" if where else str(error)) from None
        return cls(form, definition.pack(values, where))

    @property
    def definition(self) -> LatencyForm:
        return get_form(self.form)

    @property
    def batch_s(self) -> Compiled:
        """(BATCH record, coefficients) -> seconds."""
        return self.definition.batch_s

    @property
    def request_s(self) -> Compiled:
        """(tokens, cached tokens, decoding, coefficients) -> seconds, without the constant part of a batch.

        Raises ProfileError for a form without it.
        """
        return self._of_an_estimator(self.definition.request_s)

    @property
    def exec_s(self) -> Compiled:
        """(requests, queue, coefficients, plan): writes the time of what each queued request has left to its plan.

        Raises ProfileError for a form without it.
        """
        return self._of_an_estimator(self.definition.exec_s)

    def _of_an_estimator(self, function: Compiled | None) -> Compiled:
        if function is None:
            raise ProfileError(
                f"form '{self.form}' has no time of a request alone and cannot be an estimator; "
                f"these can: {', '.join(estimator_forms())}"
            )
        return function

    @functools.cached_property
    def scaled(self) -> np.ndarray:
        """bool[k]: the coefficients that online correction multiplies; see `LatencyForm`."""
        return self.definition.scaled_places(self.coefficients)

    @property
    def coefficients_by_name(self) -> dict[str, float | list[float]]:
        """The inverse of `from_values`."""
        return self.definition.unpack(self.coefficients)

    def as_estimator(self) -> Estimator:
        """Convert to the estimator that the event loop gives to policies."""
        return Estimator(self.batch_s.value, self.exec_s.value, self.coefficients, np.zeros(2, BATCH))

    def plus_constant(self, seconds: float) -> LatencyModel:
        """Add `seconds` to every batch."""
        coefficients = self.coefficients.copy()
        coefficients[self.definition.constant_index] += seconds
        return LatencyModel(self.form, coefficients)

    def plus_per_request(self, seconds: float) -> LatencyModel:
        """Add `seconds` to a batch for each of its requests; the result has the form `piecewise-requests`.

        Raises ProfileError for a form that it does not extend.
        """
        values, wider = self.coefficients_by_name, get_form("piecewise-requests")
        if set(values) - {coefficient.name for coefficient in wider.coefficients}:
            raise ProfileError(f"form '{self.form}' has no time a request; {wider.name} does not extend it")
        wide: dict[str, float | list[float]] = {"a_m": 0.0, "b_m": 0.0, "t_r": 0.0, **values}
        more = LatencyModel.from_values(wider.name, wide)
        more.coefficients[[coefficient.name for coefficient in wider.coefficients].index("t_r")] += seconds
        return more

    def times(self, factor: float) -> LatencyModel:
        """Multiply the time of every batch by `factor`."""
        return LatencyModel(self.form, np.where(self.scaled, factor, 1.0) * self.coefficients)

    def evaluate(self, batches: np.ndarray | pd.DataFrame) -> np.ndarray:
        """Seconds, float64[n], of n batches: a BATCH array or a DataFrame with its columns."""
        batch_s, coefficients = self.batch_s.entry, self.coefficients
        return np.array([batch_s(batch, coefficients) for batch in as_batches(batches)], dtype=np.float64)


def as_batches(batches: np.ndarray | pd.DataFrame) -> np.ndarray:
    """Convert a DataFrame's columns to a BATCH array[n] (others are ignored); a BATCH array is returned as it is.

    Raises ProfileError for a column that is missing, negative or not finite.
    """
    if isinstance(batches, np.ndarray) and batches.dtype == BATCH:
        return batches
    array = np.zeros(len(batches), dtype=BATCH)
    for name in BATCH_COLUMNS:
        if name not in batches:
            raise ProfileError(f"table of batches: column '{name}' is missing; it needs {', '.join(BATCH_COLUMNS)}")
        column = np.asarray(batches[name], dtype=np.float64)
        bad = np.flatnonzero(~(np.isfinite(column) & (column >= 0)))
        if len(bad):
            raise ProfileError(
                f"table of batches: {name} is {column[bad[0]]} in row {bad[0]}; it must be finite, 0 or above"
            )
        array[name] = column
    return array
