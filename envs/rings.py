"""Rings of episodes that two threads share: one goes round upwards, the other downwards, until they meet.

A ring is int64[RING]: TAKEN, episodes taken so far; its episodes, FIRST to END - 1; SEAM, the first that is taken
upwards, before which the first is that is taken downwards; ACTING, 1 if actions are put into effect; and the episodes
at which the two threads are.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from servegym.simulator.compilation.kernels import JIT_DISABLED, kernel

TAKEN, FIRST, END, SEAM, ACTING, UPWARDS, DOWNWARDS = range(7)
RING = 16  # numbers: two cache lines, of which others have no part
NO_MORE = -1


def ring_of(first: int, end: int, acting: bool = False) -> np.ndarray:
    """int64[RING]: of episodes `first` to `end` - 1, of which none has been taken."""
    ring = np.zeros(RING, "i8")
    ring[FIRST], ring[END], ring[ACTING] = first, end, acting
    ring[SEAM], ring[UPWARDS] = first, first - 1
    return ring


def reverse_ring(ring: np.ndarray) -> None:
    """Swap the ends of a ring of which nothing is taken, so that the taker of one side begins where the two met."""
    ring[TAKEN], ring[SEAM] = 0, ring[UPWARDS] + 1


@kernel
def before_first(ring, downwards):
    """What comes before the first episode of a thread."""
    return ring[SEAM] if downwards else ring[SEAM] - 1


@kernel
def next_episode(ring, last, downwards):
    """The episode that comes for a thread after `last`; NO_MORE: all are taken."""
    first, end = ring[FIRST], ring[END]
    if count_one(ring) >= end - first:
        return NO_MORE
    row = last - 1 if downwards else last + 1
    if row < first:
        row = end - 1
    elif row == end:
        row = first
    ring[UPWARDS + downwards] = row
    return row


def count_plainly(ring):
    """ring[TAKEN], which grows by 1."""
    number = ring[TAKEN]
    ring[TAKEN] += 1
    return number


@intrinsic
def count_at_once(typing_context, ring):
    """The same in one operation of the processor, so that no two threads get the same number. ring: int64[...]."""

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", pointer, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(ring), generate


count_one: Any = count_plainly if JIT_DISABLED else count_at_once
