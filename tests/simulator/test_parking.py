"""What is parked comes back as it was: of arrays all that follows from address and shape."""

from typing import NamedTuple

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.compilation.parked import loaded, parking
from servegym.simulator.records.signatures import array
from servegym.simulator.runs.parking import Room


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


class Pair(NamedTuple):
    first: Kept
    last: int


class Wrapped(NamedTuple):
    pair: Pair
    numbers: np.ndarray


PAIR = types.NamedTuple((KEPT, types.int64), Pair)
WRAPPED = types.NamedTuple((PAIR, array(types.float64)), Wrapped)
store_wrapped, restore_wrapped, size_of_wrapped = parking(WRAPPED)


@compiled(types.int64())
def wrapped_bytes():
    return size_of_wrapped()


@compiled(types.void(types.int64, WRAPPED))
def park_wrapped(address, wrapped):
    store_wrapped(address, wrapped)


@compiled(types.float64(KEPT))
def of_the_tuple(kept):
    return kept.table[1, 1] + kept.number


@kernel
def of_either(pair):
    return pair.first.number + 10 * pair.last + pair.first.row[1]


@compiled(types.float64(types.int64, PAIR))
def read_within(address, given):
    """A tuple within a tuple by its address, handed to a kernel as one in the arguments is, and loaded whole."""
    wrapped = restore_wrapped(address)
    pair = wrapped.pair
    pair.first.row[1] += 1
    whole = loaded(pair)
    total = of_either(pair) + 1000 * of_either(whole) + 1e6 * of_either(given)
    return total + wrapped.numbers[0] + 1e9 * of_the_tuple(loaded(pair.first))


def test_a_tuple_within_a_tuple_is_read_where_it_is_named():
    row, table = np.arange(7, dtype="i4"), np.arange(12.0).reshape(3, 4)
    kept = Kept(row, table, np.zeros((2, 3, 4), "i1"), 0.5)
    room, numbers = Room(wrapped_bytes.entry()), np.array([0.25])
    park_wrapped.entry(room.address, Wrapped(Pair(kept, 3), numbers))
    other = Pair(Kept(np.arange(0, 10, 5, dtype="i4"), table, kept.cube, 0.0), 1)
    assert read_within(room.address, other) == 32.5 + 32500 + 15e6 + 0.25 + 5.5e9
    assert row[1] == 2
