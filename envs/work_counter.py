"""A counter of the work that threads share: each takes a number that no other gets."""

from typing import Any

from numba import types
from numba.extending import intrinsic

from servegym.simulator.compilation import JIT_DISABLED


def take_next_plainly(counter):
    """counter[0], which grows by 1."""
    number = counter[0]
    counter[0] += 1
    return number


@intrinsic
def take_next_at_once(typing_context, counter):
    """The same in one operation of the processor, so that no two threads get the same number. counter: int64[...]."""

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", pointer, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(counter), generate


take_next: Any = take_next_plainly if JIT_DISABLED else take_next_at_once
