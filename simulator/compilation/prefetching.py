"""Asking for a record before it is needed.

With many engines the requests of one are no longer in the processor's caches when its iteration ends, and the tokens of
a batch wait for memory one after the other: each record is found by way of the batch, which the processor does not look
ahead in.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from servegym.simulator.compilation.kernels import JIT_DISABLED, inlined_kernel, kernel
from servegym.simulator.records.fields import CACHE_LINE
from servegym.simulator.records.types import EVENT_BATCH_END

AHEAD = 6  # so many entries of a batch: some 100 ns, as long as memory takes


def _asking(lines: int) -> Any:
    """What asks for so many cache lines of array[index], to be written to, or for all that it has."""

    def ask(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            table = context.make_array(array)(context, builder, arguments[0])
            place = context.cast(builder, arguments[1], index, types.intp)
            record = cgutils.get_item_pointer(context, builder, array, table, [place], wraparound=False)
            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
            prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            write, keep, data = (ir.Constant(number, value) for value in (1, 3, 1))
            size, first = context.get_abi_sizeof(context.get_data_type(array.dtype)), builder.bitcast(record, pointer)
            for offset in range(0, min(size, lines * CACHE_LINE), CACHE_LINE):
                line = builder.gep(first, [ir.Constant(number, offset)])
                builder.call(prefetch, [line, write, keep, data])
            return context.get_dummy_value()

        return types.void(array, index), generate

    return (lambda array, index: None) if JIT_DISABLED else intrinsic(ask)


# prefetch(array, index) asks for the first 64 bytes of array[index]. It changes nothing but the time it takes later.
prefetch: Any = _asking(1)
prefetch_two: Any = _asking(2)  # the same for the first 128
prefetch_all: Any = _asking(64)  # for all of a record


@inlined_kernel
def prefetch_entry(requests, outcomes, entries, k, length):
    """Ask for the records of the request that is AHEAD entries after entry k of so many."""
    if k + AHEAD < length:
        prefetch_two(requests, entries[k + AHEAD].request)
        prefetch(outcomes, entries[k + AHEAD].request)


@kernel
def prefetch_next(run):
    """Ask for what the next iterations to end will need: of the first the records of its requests, of the two of which
    one ends after it the engine and its batch. (The events are a heap.)"""
    events, count = run.events, run.status[0].events
    if count > 0 and events[0].kind == EVENT_BATCH_END:
        e = events[0].index
        for k in range(min(AHEAD, run.engines[e].batch_length)):
            r = run.entries[e, k].request
            prefetch_two(run.requests, r)
            prefetch(run.outcomes, r)
    for i in range(1, min(3, count)):
        if events[i].kind == EVENT_BATCH_END:
            e = events[i].index
            prefetch_all(run.engines, e)
            prefetch(run.entries[e], 0)
            prefetch(run.queues[e], 0)
