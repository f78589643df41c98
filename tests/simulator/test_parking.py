"""What is parked comes back as it was: of arrays all that follows from address and shape."""

from typing import NamedTuple

import numpy as np
from numba import types

from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.records.signatures import array
from servegym.simulator.runs.parking import Room, parking


class Kept(NamedTuple):
    row: np.ndarray
    table: np.ndarray
    cube: np.ndarray
    number: float


KEPT = types.NamedTuple((array(types.int32), array(types.float64, 2), array(types.int8, 3), types.float64), Kept)
store_kept, restore_kept, size_of_kept = parking(types.Tuple((KEPT, types.int64)))


@compiled(types.int64())
def kept_bytes():
    return size_of_kept()


@compiled(types.void(types.int64, KEPT, types.int64))
def park_kept(address, kept, last):
    store_kept(address, (kept, last))


@compiled(types.float64(types.int64, array(types.float64)))
def look_at(address, seen):
    """Sizes, lengths and places along each axis, a part and another shape of what is kept."""
    kept, last = restore_kept(address)
    row, table, cube = kept.row, kept.table, kept.cube
    seen[0], seen[1], seen[2] = row.size, table.size, cube.size
    seen[3], seen[4] = table.shape[0], table.shape[1]
    seen[5], seen[6] = cube.shape[0], cube.strides[0]
    seen[7], seen[8], seen[9] = row[3], table[1, 2], cube[1, 2, 3]
    seen[10] = table[:, 1].sum()
    seen[11] = table[1].reshape((2, 2))[1, 0]
    table[0, 0] = -1.0
    return kept.number + last


def test_a_tuple_of_arrays_comes_back_and_is_the_same_memory():
    row, table = np.arange(7, dtype="i4"), np.arange(12.0).reshape(3, 4)
    cube, seen = np.arange(24, dtype="i1").reshape(2, 3, 4), np.zeros(12)
    room = Room(kept_bytes.entry())
    park_kept.entry(room.address, Kept(row, table, cube, 0.5), 2)
    assert look_at.entry(room.address, seen) == 2.5
    assert seen.tolist() == [7, 12, 24, 3, 4, 2, 12, 3, table[1, 2], cube[1, 2, 3], table[:, 1].sum(), table[1, 2]]
    assert table[0, 0] == -1.0
