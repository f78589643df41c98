"""Tuples of arrays that are declared once: their Numba types, what they are at the start, and longer ones."""

from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
import pytest

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.records.fields import Field, Value, declared, fresh, longer, numba_type, zeros
from servegym.simulator.records.state import RouterState, SimulationState
from servegym.simulator.records.types import REQUEST, SIGNAL
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene


class Inner(NamedTuple):
    counts: Annotated[np.ndarray, Field("i8", ("rows",), "a count a row")]
    sizes: Annotated[np.ndarray, Field("i4", (2,), "two in all")]


class Outer(NamedTuple):
    numbers: Annotated[np.ndarray, Field("f8", ("rows", 3), "three numbers a row")]
    signals: Annotated[np.ndarray, Field(SIGNAL, ("signals",), "records")]
    factor: Annotated[float, Value(types.float64, "a number")]
    inner: Annotated[Inner, Value(numba_type(Inner), "a tuple within")]


SIZES = {"rows": 2, "signals": 4}


def outer(**given: Any) -> Outer:
    return fresh(Outer, SIZES, **({"factor": 1.0, "inner": fresh(Inner, SIZES)} | given))


def test_the_type_that_is_derived_is_that_of_what_is_made() -> None:
    made = outer()
    assert numba_type(Outer).numba == numba.types.NamedTuple(tuple(map(numba.typeof, made)), Outer)
    assert made.numbers.shape == (2, 3) and made.signals.shape == (4,) and not made.numbers.any()
    assert isinstance(made.signals[0], np.record)


def test_rows_of_whole_cache_lines_start_at_one() -> None:
    for shape in (1, (3, 5)):
        made = zeros(shape, REQUEST)
        assert made.ctypes.data % 64 == 0 and made.shape == ((shape,) if isinstance(shape, int) else shape)


def test_longer_axes_keep_what_there_was_in_tuples_within_too() -> None:
    before = outer(numbers=np.arange(6.0).reshape(2, 3))
    before.inner.counts[:] = (5, 7)
    made = longer(before, {"rows": 4})
    assert made.numbers.tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0], [0, 0, 0]]
    assert made.inner.counts.tolist() == [5, 7, 0, 0]
    assert made.signals is before.signals and before.inner.counts.shape == (2,)


@pytest.mark.parametrize(("given", "words"), [
    ({"numbers": np.zeros((2, 3), "f4")}, r"Outer\.numbers is float32\[2, 3\]; it should be float64\[2, 3\]"),
    ({"numbers": np.zeros((3, 3))}, r"it should be float64\[2, 3\]"),
    ({"numbers": np.zeros(2)}, r"Outer\.numbers is float64\[2\]"),
    ({"numbers": np.zeros((3, 2)).T}, r"Outer\.numbers"),
    ({"more": 1}, "Outer has no more"),
])  # fmt: skip
def test_arrays_that_kernels_would_misread_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        outer(**given)


def test_a_field_that_says_nothing_of_itself_is_refused() -> None:
    class Bare(NamedTuple):
        numbers: np.ndarray

    with pytest.raises(TypeError, match=r"Bare\.numbers is annotated by no Field and no Value"):
        declared(Bare)


def test_all_arrays_of_a_run_are_as_declared() -> None:
    simulation = Simulation(scene(requests(prompt_tokens=[5, 6, 7]), total_blocks=9), record_timeline=True)
    for kind, made in ((SimulationState, simulation.arrays), (RouterState, simulation.router_state)):
        for name, one in declared(kind).items():
            if isinstance(one, Field):
                own = numba_type(kind).types[list(made._fields).index(name)]
                assert numba.typeof(getattr(made, name)) == own.numba, name
