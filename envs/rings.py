"""Rings of episodes that two threads share: one takes episodes upwards, the other downwards, until they meet.

A ring is int64[RING_NUMBERS]. TAKEN: number of episodes taken so far. FIRST, END: its episodes are FIRST to END - 1.
SEAM: where the upward thread begins; the downward thread begins at the episode before it. ACTING: 1 if actions are
applied. UPWARDS, DOWNWARDS: the episode at which each of the two threads is.
"""

from typing import Any

import numpy as np

from servegym.simulator.compilation.intrinsics import intrinsic
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.settings import JIT_DISABLED

TAKEN, FIRST, END, SEAM, ACTING, UPWARDS, DOWNWARDS = range(7)
RING_NUMBERS = 16  # two cache lines, so that no two rings share one
NO_MORE = -1


def ring_of(first: int, end: int, acting: bool = False) -> np.ndarray:
    """int64[RING_NUMBERS]: a ring of episodes `first` to `end` - 1, none of them taken."""
    ring = np.zeros(RING_NUMBERS, "i8")
    ring[FIRST], ring[END], ring[ACTING] = first, end, acting
    ring[SEAM], ring[UPWARDS] = first, first - 1
    return ring


def reverse_ring(ring: np.ndarray) -> None:
    """Reset a ring so that the two threads begin where they met, each going back over the other's last episodes."""
    ring[TAKEN], ring[SEAM] = 0, ring[UPWARDS] + 1


@kernel
def before_first(ring, downwards):
    """The place from which `next_episode` goes to a thread's first episode."""
    return ring[SEAM] if downwards else ring[SEAM] - 1


@kernel
def next_episode(ring, last, downwards):
    """Take the episode that follows `last` in a thread's direction; NO_MORE: all are taken."""
    first, end = ring[FIRST], ring[END]
    if take_number(ring) >= end - first:
        return NO_MORE
    row = last - 1 if downwards else last + 1
    if row < first:
        row = end - 1
    elif row == end:
        row = first
    ring[UPWARDS + downwards] = row
    return row


def take_number_in_python(ring):
    """Return ring[TAKEN] and increment it."""
    number = ring[TAKEN]
    ring[TAKEN] += 1
    return number


@intrinsic
def take_number_atomically(typing_context, ring):
    """Return ring[TAKEN], the first number of int64[...], and increment it atomically."""
    from numba import types

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", pointer, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(ring), generate


take_number: Any = take_number_in_python if JIT_DISABLED else take_number_atomically
