"""Runs parked in memory, which kernels restore from an address.

Passing the sixty arrays of a run from Python to a kernel takes tens of microseconds, an iteration about one. So a run
is parked once. The caller keeps the arrays alive.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.compilation.parked import kept, parking
from servegym.simulator.records.fields import CACHE_LINE
from servegym.simulator.records.state import (
    FUNCTIONS,
    ROUTER_STATE,
    SIMULATION_STATE,
    Functions,
    RouterState,
    SimulationState,
)

PARKED = types.Tuple((SIMULATION_STATE, ROUTER_STATE, FUNCTIONS))
store_run, restore_run, size_of_run = parking(PARKED)


store_functions, restore_functions, size_of_functions = parking(FUNCTIONS)


@compiled(types.UniTuple(types.int64, 2)())
def parked_bytes():
    """Return the bytes of a parked run, and of its functions alone."""
    return size_of_run(), size_of_functions()


@compiled(types.void(types.int64, FUNCTIONS))
def park_functions(address, functions):
    """Park the functions of a run."""
    store_functions(address, functions)


@compiled(types.void(types.int64, SIMULATION_STATE, ROUTER_STATE, types.int64))
def park(address, run, router_state, functions_address):
    """Park a run whose functions are parked; kernels restore it with restore_run(address)."""
    store_run(address, (run, router_state, restore_functions(functions_address)))


class Room:
    """Memory of a number of bytes at `address`, which is the start of a cache line."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size + CACHE_LINE, "u1")
        self.address = self._bytes.ctypes.data + -self._bytes.ctypes.data % CACHE_LINE

    def __del__(self) -> None:
        if kept:  # None while Python shuts down
            kept.pop(self.address, None)


class ParkedRun(Room):
    """Memory for one parked run."""

    def __init__(self) -> None:
        super().__init__(parked_bytes.entry()[0])
        self._parked: tuple[Any, Any, Any] = (None, None, None)

    def park(self, arrays: SimulationState, router_state: RouterState, functions: Functions) -> None:
        """Park a run here, unless it is here already. It stays until another is parked here."""
        run = (arrays, router_state, functions)
        if all(one is other for one, other in zip(run, self._parked, strict=True)):
            return
        self._parked = run  # keeps the arrays alive
        park.entry(self.address, arrays, router_state, parked_functions(functions).address)


@functools.lru_cache(maxsize=256)
def parked_functions(functions: Functions) -> Room:
    """Return the parked functions of a run. They take as long to pass as all arrays, and episodes share them."""
    room = Room(parked_bytes.entry()[1])
    park_functions.entry(room.address, functions)
    return room
