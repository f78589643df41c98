"""Kernels that only kernels call are linked into the one that is entered."""

import pickle

import numba
import numba.types
import numpy as np
import pytest
from numba.core.registry import cpu_target

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import Compiled, InnerKernel, allocating_kernel, inlined_kernel, kernel
from servegym.simulator.compilation.linking import InnerLibrary, callers_first

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="there is no compiled code")


@kernel
def half(x):
    if x < 0.0:
        raise ValueError("below zero")
    return x / 2.0


@kernel
def half_and_one(x):
    return half(x) + 1.0


@kernel
def both(x):
    return half_and_one(x) + half(x)


@numba.njit
def of_a_user(x):
    return both(x)


ENTERED = Compiled(lambda x: both(x) + of_a_user(x) + half(x), types.float64(types.float64))


def library(name: str) -> InnerLibrary:
    (result,) = globals()[name].overloads.values()
    return result.library


def test_an_outer_kernel_has_all_that_it_reaches() -> None:
    assert ENTERED(4.0) == 5.0 + 5.0 + 2.0
    entry = ENTERED.entry
    assert entry(2.0) == 3.0 + 3.0 + 1.0


def test_an_error_of_an_inner_kernel_is_raised() -> None:
    with pytest.raises(ValueError, match="below zero"):
        ENTERED(-1.0)


def test_a_function_that_numba_compiles_alone_can_call_kernels() -> None:
    assert of_a_user(4.0) == 5.0


def test_python_can_call_an_inner_kernel() -> None:
    assert isinstance(both, InnerKernel) and both(4.0) == 5.0
    with pytest.raises(ValueError, match="below zero"):
        half_and_one(-1.0)


def test_an_inner_kernel_has_its_own_code_and_no_entries() -> None:
    ENTERED(1.0)
    defined = [one.name for one in library("both").module.functions if not one.is_declaration]
    assert len(defined) == 1 and "both" in defined[0]


def test_callers_come_before_callees_however_they_are_given() -> None:
    ENTERED(1.0)
    all_three = [library("half"), library("both"), library("half_and_one")]
    expected = [library("both"), library("half_and_one"), library("half")]
    for given in (all_three, all_three[::-1], all_three[1:]):
        assert [one for one in callers_first(given) if isinstance(one, InnerLibrary)] == expected


def test_a_kernel_is_pickled_by_reference() -> None:
    assert pickle.loads(pickle.dumps(both)) is both


def test_options_hold_within() -> None:
    """A kernel that makes arrays has Numba's reference counting, whoever calls it."""

    @allocating_kernel
    def made(n):
        return [float(i) for i in range(n)][-1]

    assert made(3) == 2.0
    assert Compiled(lambda n: made(n) + 1.0, types.float64(types.int64))(3) == 3.0


@kernel
def triple(x):
    return 3.0 * x


@inlined_kernel
def step(x):
    return triple(x) + 1.0


def test_what_an_inlined_kernel_calls_is_not_inlined_by_force() -> None:
    """Numba hands such options on to callees that say nothing of them."""
    step._numba_type_.dispatcher.compile((numba.types.float64,))  # an outer kernel may be in the cache already
    assert "alwaysinline" in str(library("step").module)
    assert "alwaysinline" not in str(library("triple").module)


@kernel
def halved(count):
    return count if count < 2 else halved(count // 2)


@kernel
def less_one(count):
    return count - 1


def all_kinds(column, small, unsigned):
    return halved(column[0]) + 10 * halved(count=small) + 100 * halved(5) + 1000 * less_one(unsigned) + less_one(7)


def test_signed_integers_of_all_widths_and_literals_share_the_code_of_a_kernel() -> None:
    """The unsigned are not widened: beside an int64, Numba makes floats of uint64."""
    entered = Compiled(all_kinds, types.float64(types.Array(types.int32, 1, "C"), types.int8, types.uint32))
    assert entered(np.array([-7], "i4"), np.int8(-2), np.uint32(2**31)) == -7 - 20 + 100 + 1000 * (2**31 - 1) + 6
    own = numba.types
    for kind in (own.int8, own.int32, own.int64, own.literal(5), own.uint32):
        less_one._numba_type_.get_call_type(cpu_target.typing_context, (kind,), {})
    assert set(less_one.overloads) == {(own.int64,), (own.uint32,)}
