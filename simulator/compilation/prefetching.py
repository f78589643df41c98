"""Asking for a record before it is needed.

With many engines the requests of one are no longer in the processor's caches when its iteration ends, and the tokens of
a batch wait for memory one after the other: each record is found by way of the batch, which the processor does not look
ahead in.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from servegym.simulator.compilation.kernels import JIT_DISABLED, inlined_kernel

AHEAD = 6  # so many entries of a batch: some 100 ns, as long as memory takes


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(array)(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], index, types.intp)
        record = cgutils.get_item_pointer(context, builder, array, table, [place], wraparound=False)
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        write, keep, data = (ir.Constant(number, value) for value in (1, 3, 1))
        builder.call(ask, [builder.bitcast(record, pointer), write, keep, data])
        return context.get_dummy_value()

    return types.void(array, index), generate


# prefetch(array, index) asks for the first 64 bytes of array[index], to be written to. It changes nothing but the time
# that it takes later.
prefetch: Any = (lambda array, index: None) if JIT_DISABLED else intrinsic(_prefetch)


@inlined_kernel
def prefetch_entry(requests, outcomes, entries, k, length):
    """Ask for the records of the request that is AHEAD entries after entry k of so many."""
    if k + AHEAD < length:
        prefetch(requests, entries[k + AHEAD].request)
        prefetch(outcomes, entries[k + AHEAD].request)
