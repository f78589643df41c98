"""Prefetching records into the processor's cache.

With many engines, the requests of an engine are no longer cached when its iteration ends. Their records are found
through the batch, which the processor cannot predict, so that each would wait for memory in turn.
"""

from typing import Any

from servegym.simulator.compilation.intrinsics import intrinsic
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.records.events import first_below
from servegym.simulator.records.fields import CACHE_LINE
from servegym.simulator.records.types import EVENT_BATCH_END

AHEAD = 6  # entries of a batch: some 100 ns, the latency of memory


def _asking(lines: int) -> Any:
    """Return a function that prefetches the first cache lines of array[index], to be written to. lines: at most."""

    def ask(typing_context: Any, array: Any, index: Any) -> Any:
        from llvmlite import ir
        from numba.core import cgutils, types

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


# prefetch(array, index) prefetches the first 64 bytes of array[index], to be written to.
prefetch: Any = _asking(1)
prefetch_two: Any = _asking(2)  # the first 128 bytes
prefetch_all: Any = _asking(64)  # the whole record


@inlined_kernel
def prefetch_entry(requests, outcomes, entries, k, length):
    """Prefetch the records of the request AHEAD entries after entry k of `length`."""
    if k + AHEAD < length:
        prefetch_two(requests, entries[k + AHEAD].request)
        prefetch(outcomes, entries[k + AHEAD].request)


@kernel
def prefetch_next(run):
    """Prefetch the records that the ends of the next iterations read.

    Of the first event: its requests. Of the one after it: engine, batch and queue.
    """
    events, count = run.events, run.status[0].events
    if count > 0 and events[0].kind == EVENT_BATCH_END:
        e = events[0].index
        for k in range(min(AHEAD, run.engines[e].batch_length)):
            r = run.entries[e, k].request
            prefetch_two(run.requests, r)
            prefetch(run.outcomes, r)
    following = first_below(events, count, 0)
    if following < count and events[following].kind == EVENT_BATCH_END:
        e = events[following].index
        prefetch_all(run.engines, e)
        prefetch(run.entries[e], 0)
        prefetch(run.entries[e], AHEAD)
        prefetch(run.queues[e], 0)
