"""Converts the prefix blocks of a trace to the prompt chunks of a workload, whose KV prefix stores keep."""

from __future__ import annotations

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.memory.prefixes import Prompts, ranks
from servegym.traces.trace import PrefixBlocks, Trace


def prompts_of(trace: Trace) -> Prompts | None:
    """Return the full chunks of each prompt; equal numbers mean equal tokens to the chunk's end. None: no blocks.

    A chunk stands for a block and all blocks before it, so a trace may number blocks by their own content or by
    everything up to their end. A last block that the prompt does not fill is not a chunk.

    Raises WorkloadError for a request with more blocks than its prompt has.
    """
    blocks = trace.prefix_blocks
    if blocks is None or blocks.block_tokens is None:
        return None
    size = blocks.block_tokens
    counts = np.diff(blocks.offsets)
    too_many = counts > -(-trace.prompt_tokens // size)
    if too_many.any():
        at = int(np.argmax(too_many))
        raise WorkloadError(
            f"trace '{trace.name}', request {at}: {counts[at]} prefix blocks of {size} tokens, and a prompt of "
            f"{trace.prompt_tokens[at]}; the column prefix_block_tokens of your own file sets the size of blocks"
        )
    full = np.minimum(counts, trace.prompt_tokens // size)
    return Prompts(size, np.r_[0, np.cumsum(full)], chained(blocks, full))


def chained(blocks: PrefixBlocks, lengths: np.ndarray) -> np.ndarray:
    """int64[sum of lengths]: numbers of the first `lengths` blocks of each request, each number for a block together
    with all before it."""
    offsets = np.r_[0, np.cumsum(lengths)]
    ids = ranks(blocks.ids)
    kinds = int(ids.max(initial=-1)) + 1
    seen = np.empty(kinds, "i8")
    numbers = np.empty(offsets[-1], "i8")
    before = np.zeros(len(lengths), "i8")  # 1 + number of the block before, for each request; 0: there is none
    used = 0
    rows = np.arange(len(lengths))
    for place in range(int(lengths.max(initial=0))):
        rows = rows[lengths[rows] > place]
        here = ids[blocks.offsets[rows] + place]
        found = used + _ranks_of_pairs(before[rows], here, kinds, seen)
        numbers[offsets[rows] + place] = found
        before[rows] = found + 1
        used = int(found.max()) + 1
    return numbers


def _ranks_of_pairs(before: np.ndarray, ids: np.ndarray, kinds: int, seen: np.ndarray) -> np.ndarray:
    """int64[n]: the rank of each pair (block before, id) among all distinct pairs.

    If every id follows only one block, as in traces that number blocks by everything up to their end, only one row for
    each id is sorted. seen: int64[kinds], scratch.
    """
    pairs, rows = before * kinds + ids, np.arange(len(ids))
    seen[ids] = rows
    last = seen[ids]  # the last row with the same id
    if (before[last] != before).any():
        return np.unique(pairs, return_inverse=True)[1]
    one_each = np.flatnonzero(last == rows)
    found = np.empty(len(ids), "i8")
    found[one_each[np.argsort(pairs[one_each])]] = np.arange(len(one_each))
    return found[last]
