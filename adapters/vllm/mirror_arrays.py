"""The arrays that a mirror's kernels work on, parked together so that one address finds them all."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.compilation.parked import parking
from servegym.simulator.records.fields import Field, Value, numba_type
from servegym.simulator.records.state import FUNCTIONS, SIMULATION_STATE, Functions, SimulationState
from servegym.simulator.runs.parking import Room


class MirrorArrays(NamedTuple):
    """The two runs of a mirror, its functions, and its arrays by row."""

    run: Annotated[SimulationState, Value(SIMULATION_STATE, "the engine as it is")]
    scratch: Annotated[SimulationState, Value(SIMULATION_STATE, "the copy that plans work on")]
    functions: Annotated[Functions, Value(FUNCTIONS, "the policy's, the estimator's and the gain's")]
    most_output_tokens: Annotated[np.ndarray, Field("i4", ("requests",), "that vLLM lets each have")]
    delivered: Annotated[np.ndarray, Field("i4", ("requests",), "tokens of each that are out")]
    barred: Annotated[np.ndarray, Field("i4", ("requests",), "1: vLLM would not admit it now")]
    sums: Annotated[np.ndarray, Field("f8", (4,), "gain, ideal gain, tokens on time, tokens delivered")]
    total_blocks: Annotated[int, Value(types.int64, "as vLLM counts them")]
    chunks: Annotated[bool, Value(types.boolean, "the engine can compute a prompt in parts")]


MIRROR = numba_type(MirrorArrays)
store_mirror, restore_mirror, size_of_mirror = parking(MIRROR)


@compiled(types.int64())
def mirror_bytes():
    """Return the bytes of a parked mirror."""
    return size_of_mirror()


@compiled(types.void(types.int64, MIRROR))
def park_mirror(address, mirror):
    """Park a mirror, for kernels to read as restore_mirror(address)."""
    store_mirror(address, mirror)


class ParkedMirror(Room):
    """Memory for the arrays of one mirror."""

    def __init__(self) -> None:
        super().__init__(mirror_bytes.entry())

    def park(self, mirror: MirrorArrays) -> None:
        """Park these arrays in place of the present ones."""
        self._parked: Any = mirror  # referenced, as only addresses are parked
        park_mirror.entry(self.address, mirror)
