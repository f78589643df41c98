"""Latency forms: a function of a batch's sums, its coefficients with their units, and its fit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from servegym.errors import ProfileError
from servegym.simulator.compilation.kernels import Compiled, kernel, specialised
from servegym.simulator.records.requests import cached_of, is_decoding, left_of
from servegym.simulator.records.signatures import queue_latency, request_latency


@kernel
def core_s(tokens, cached, decoding, coefficients):
    """Placeholder for the form's own kernel (LatencyForm.core_s)."""
    return 0.0


@request_latency
def request_s(tokens, cached, decoding, coefficients):
    return core_s(tokens, cached, decoding, coefficients)


@queue_latency
def exec_s(requests, queue, coefficients, ranks):
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        ranks[position].exec_s = core_s(left_of(request), cached_of(request), is_decoding(request), coefficients)


Values = Mapping[str, float | Sequence[float]]  # coefficients by name


@dataclass(frozen=True)
class Coefficient:
    """A named coefficient: a number, or a list of numbers if `vector`; all are 0 or more."""

    name: str
    unit: str
    meaning: str
    vector: bool = False


@dataclass(frozen=True)
class LatencyForm:
    """A latency form. A module of the package `forms` registers one by binding it to the name FORM.

    name: in profiles. equation: for documents and help texts.
    batch_s: compiled (BATCH record, packed coefficients) -> seconds.
    core_s: kernel (tokens, cached tokens, decoding, packed coefficients) -> seconds of one request alone, without the
        constant part of a batch; None: the form cannot be an estimator.
    coefficients: in packed order, numbers before vectors. constant: the coefficient of the constant part of a batch.
    scaled: names of the coefficients to which times are proportional: with all of them c times as large, every batch
        and every request takes c times as long. Online correction multiplies these; the others (knots, rates) and the
        lengths of vectors stay as they are.
    cannot: limits of the form, for documents and help texts.
    fit: (BATCH array[n], duration_s float64[n]) -> values by name, minimising relative error. Raises ProfileError
        for batches that do not determine them. None: the form is made from specifications.
    check: raises ProfileError(where: ...) for inconsistent values.
    """

    name: str
    equation: str
    batch_s: Compiled
    coefficients: tuple[Coefficient, ...]
    constant: str
    scaled: tuple[str, ...]
    cannot: str
    fit: Callable[[np.ndarray, np.ndarray], Values] | None = None
    core_s: Any = None
    check: Callable[[Values, str], None] | None = None

    def __post_init__(self) -> None:
        unknown = set(self.scaled) - {coefficient.name for coefficient in self.coefficients}
        if unknown or self.constant not in self.scaled:
            wrong = f"it has no {min(unknown)}" if unknown else f"its constant {self.constant} is not among them"
            raise ProfileError(f"form '{self.name}': scaled is {', '.join(self.scaled)}; {wrong}")

    @functools.cached_property
    def request_s(self) -> Compiled | None:
        """`core_s` as a compiled function for routers."""
        return specialised(request_s, core_s=self.core_s) if self.core_s else None

    @functools.cached_property
    def exec_s(self) -> Compiled | None:
        """A compiled function that applies `core_s` to what each request of a queue has left (`signatures`)."""
        return specialised(exec_s, core_s=self.core_s) if self.core_s else None

    @property
    def constant_index(self) -> int:
        """Index of the constant in the packed coefficients."""
        return [coefficient.name for coefficient in self.coefficients].index(self.constant)

    def pack(self, values: Values, where: str = "") -> np.ndarray:
        """Pack values for kernels, float64[k]: numbers in order, each vector preceded by its length.

        Raises ProfileError, with `where` in front, for a coefficient that is missing, unknown, negative or not finite.
        """
        where = where or f"form '{self.name}'"
        known = [coefficient.name for coefficient in self.coefficients]
        missing = [name for name in known if name not in values]
        unknown = sorted(set(values) - set(known))
        if missing or unknown:
            problem = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            raise ProfileError(f"{where}: coefficient {problem}; form '{self.name}' has {', '.join(known)}")
        packed: list[float] = []
        for coefficient in self.coefficients:
            value = values[coefficient.name]
            if coefficient.vector:
                numbers = _numbers(value, f"{where}: {coefficient.name}")
                packed += [len(numbers), *numbers]
            else:
                packed.append(_number(value, f"{where}: {coefficient.name}"))
        if self.check is not None:
            self.check(values, where)
        return np.array(packed, dtype=np.float64)

    def scaled_places(self, packed: np.ndarray) -> np.ndarray:
        """bool[k]: which of the packed numbers are `scaled`. Raises ProfileError as `unpack`."""
        values, places = self.unpack(packed), np.zeros(len(packed), dtype=np.bool_)
        at = 0
        for coefficient in self.coefficients:
            at += coefficient.vector  # a vector is preceded by its length
            length = len(values[coefficient.name]) if coefficient.vector else 1  # type: ignore[arg-type]
            places[at : at + length] = coefficient.name in self.scaled
            at += length
        return places

    def unpack(self, packed: np.ndarray) -> dict[str, float | list[float]]:
        """Unpack values by name, the inverse of `pack`. Raises ProfileError for an array of another length."""
        values: dict[str, float | list[float]] = {}
        at = 0
        for coefficient in self.coefficients:
            if at >= len(packed):
                break
            if coefficient.vector:
                length = int(packed[at]) if 1 <= packed[at] < len(packed) - at else 0
                values[coefficient.name] = packed[at + 1 : at + 1 + length].tolist()
                at += 1 + length
            else:
                values[coefficient.name] = float(packed[at])
                at += 1
        if len(values) < len(self.coefficients) or at != len(packed):
            names = ", ".join(c.name + "[]" * c.vector for c in self.coefficients)
            raise ProfileError(f"form '{self.name}': {len(packed)} packed numbers do not hold {names}")
        return values


def _number(value: object, where: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ProfileError(f"{where} is {value!r}; it must be a finite number, 0 or above")
    return float(value)


def _numbers(value: object, where: str) -> list[float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) == 0:
        raise ProfileError(f"{where} is {value!r}; it must be a list of numbers")
    return [_number(item, f"{where}[{index}]") for index, item in enumerate(value)]
