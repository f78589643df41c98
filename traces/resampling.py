"""Resamples a file to other and longer traffic: a circular block bootstrap over its time (Politis and Romano, 1992).

Blocks of the file's time, beginning anywhere, are drawn with replacement and concatenated. Within a block everything
stays as it was: bursts, the order of lengths, shared prefixes. A session belongs as a whole to the block in which it
begins.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.memory.prefixes import ranks
from servegym.traces.trace import PrefixBlocks, Trace

BLOCKS = 20  # blocks in the file's time: enough for variety, and each long compared with the time of a request


def resampled(trace: Trace, requests: int, rng: np.random.Generator) -> Trace:
    """Draw any number of requests from a trace. In a trace without times, a block is a run of consecutive requests (or
    sessions).

    Raises WorkloadError for a trace that is too short to be cut into blocks.
    """
    rows = np.arange(len(trace))
    first = np.maximum.accumulate(np.where(trace.begins, rows, 0))  # row with which the session of each begins
    sessions = int(trace.begins.sum())
    if sessions < BLOCKS:
        what = "requests" if trace.turns is None else "sessions"
        raise WorkloadError(f"{trace.name} has {sessions} {what}; resampling in blocks takes {BLOCKS} or more")
    times = np.cumsum(trace.begins) - 1.0 if trace.arrival_s is None else trace.arrival_s[first]
    times = times - times[0]
    if times[-1] == 0:
        raise WorkloadError(f"{trace.name}: all requests come at once, so there is no time to resample it in blocks of")
    whole = times[-1] * sessions / (sessions - 1)  # includes a mean gap from the last one back to the first
    block = whole / BLOCKS
    around = np.concatenate([times, times + whole])
    drawn: list[np.ndarray] = []
    when: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    count = 0
    while count < requests:
        begin = rng.random() * whole
        low, high = np.searchsorted(around, [begin, begin + block])
        drawn.append(np.arange(low, high) % len(trace))
        when.append(around[low:high] - begin + len(spans) * block)
        spans.append((low, high))
        count += high - low
    order = np.concatenate(drawn)[:requests]
    taken = dataclasses.replace(trace, turns=None, prefix_blocks=None).take(order)
    blocks, turns = trace.prefix_blocks, trace.turns
    if trace.arrival_s is not None:
        arrival_s = np.where(trace.begins[order], np.concatenate(when)[:requests], np.nan)
        taken = dataclasses.replace(taken, arrival_s=arrival_s)
    if turns is not None:  # the distances between a session's rows do not change
        after = np.where(turns.after[order] < 0, -1, np.arange(requests) - (order - turns.after[order]))
        taken = dataclasses.replace(taken, turns=SessionDependencies(after, turns.think_s[order]))
    if blocks is not None:
        taken = dataclasses.replace(taken, prefix_blocks=_renamed(blocks, order, spans))
    return taken.noted(resampled_blocks=len(spans), resampled_blocks_per_file=BLOCKS)


def _renamed(blocks: PrefixBlocks, order: np.ndarray, spans: list[tuple[int, int]]) -> PrefixBlocks:
    """Return the prefix blocks of the drawn rows. Those that occur within one drawn block only get new names each time
    that it is drawn, as a conversation drawn twice would else find its own KV."""
    rows = len(blocks.offsets) - 1
    ids, taken = ranks(blocks.ids), dataclasses.replace(blocks, ids=ranks(blocks.ids)).take(order)
    kinds = int(ids.max(initial=-1)) + 1
    of_row = np.repeat(np.arange(rows), np.diff(blocks.offsets))
    first, last = np.full(kinds, rows), np.zeros(kinds, "i8")
    np.minimum.at(first, ids, of_row)
    np.maximum.at(last, ids, of_row)
    names, at = taken.ids, 0
    for number, (low, high) in enumerate(spans):
        end = min(at + high - low, len(order))
        here = names[taken.offsets[at] : taken.offsets[end]]
        own = (first[here] >= low) & (last[here] < high)
        own |= (first[here] + rows >= low) & (last[here] + rows < high)  # circular: after its end the file begins again
        here[own] += kinds * (number + 1)
        at = end
    return dataclasses.replace(taken, ids=names)
