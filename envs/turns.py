"""Turns that threads take: each gets one that nobody else has."""

from typing import Any

from numba import types
from numba.extending import intrinsic

from servegym.simulator.compilation import JIT_DISABLED


def take_turn_plainly(turns):
    """turns[0], which grows by 1."""
    turn = turns[0]
    turns[0] += 1
    return turn


@intrinsic
def take_turn_at_once(typing_context, turns):
    """The same in one operation of the processor, so that no two threads get the same turn. turns: int64[...]."""

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", pointer, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(turns), generate


take_turn: Any = take_turn_plainly if JIT_DISABLED else take_turn_at_once
