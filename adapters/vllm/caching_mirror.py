"""A mirror of an engine with prefix caching: it knows the contents of blocks, so plans find the hits that vLLM will.

The simulator's packer looks a waiting request up in the prefix cache when it comes to it (docs/feature_rules.md). Here
it looks in a copy of vLLM's block pool, on which every operation of vLLM is replayed (`replay`), so vLLM is not asked
about requests that are not planned. Plans work on a second copy (planned_blocks.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.adapters.vllm import block_kernels, planned_blocks
from servegym.adapters.vllm.mirror import Mirror, Plan
from servegym.adapters.vllm.terms import Terms
from servegym.simulator.records.fields import longer
from servegym.simulator.records.named_blocks import NAMES_OF_A_CHUNK, empty_named_blocks, no_names

NO_OPERATIONS = np.zeros((0, 3), "i8")


def names(chunks: np.ndarray, begin: int = 0) -> np.ndarray:
    """int64[n]: the names of a request's blocks begin, begin + 1, ..., from their chunk numbers."""
    return (chunks.astype("i8") + 1) * NAMES_OF_A_CHUNK + np.arange(begin, begin + len(chunks))


class CachingMirror(Mirror):
    """The mirror of an engine with prefix caching, in which the contents of each block have a number.

    context_blocks: the most blocks that a request can hold. Other arguments are those of `Mirror`.
    """

    spare_blocks = 1

    def __init__(self, *arguments: Any, context_blocks: int, **keywords: Any):
        self.context_blocks = context_blocks
        super().__init__(*arguments, **keywords)
        self.replay(NO_OPERATIONS)

    @property
    def free_blocks(self) -> int:
        """Number of blocks that no request holds."""
        return int(self._engine_free[0])

    def add(self, arrival_s: float, prompt_tokens: int, most_output_tokens: int, priority: int, terms: Terms) -> int:
        row = super().add(arrival_s, prompt_tokens, most_output_tokens, priority, terms)
        self.run.outcomes["table"][row] = row * self.context_blocks
        # Names below 0 are never shared; blocks have them until their contents are known.
        self.run.cache.chunks[self._cells(row)] = -2 - row
        return row

    def know(self, row: int, begin: int, chunks: np.ndarray) -> None:
        """Set the contents of a request's blocks from `begin` on, full or not yet: chunk numbers >= 0, int32[n]."""
        cells = self.run.cache.chunks[self._cells(row)][begin:]
        cells[: len(chunks)] = chunks[: len(cells)]

    def replay(self, operations: np.ndarray) -> None:
        """Replay operations of vLLM on its blocks, int64[n, 3] (block_kernels.py)."""
        block_kernels.replay.entry(self.run, self.scratch.cache.tables, self.moved, operations)

    def plan(
        self,
        now_s: float,
        free_blocks: int,
        most_tokens: int,
        most_chunk_tokens: int,
        max_num_seqs: int,
        under_way: bool = False,
    ) -> Plan | None:
        planned_blocks.bring_up_to_date.entry(self.scratch, self.run, self.moved)
        try:
            return super().plan(now_s, free_blocks, most_tokens, most_chunk_tokens, max_num_seqs, under_way)
        finally:
            planned_blocks.note_plan.entry(self.scratch, self.run, self.moved)

    def blocks_found(self, row: int, count: int) -> np.ndarray:
        """int32[at most count]: the blocks that the last plan found for this request and that are filled already; the
        others are filled in the planned step itself."""
        cells = self._cells(row)
        found = self.scratch.cache.tables[cells][:count]
        there = self.run.cache.blocks[0]["name"][found] == names(self.run.cache.chunks[cells][:count])
        return found[there].copy()

    def _cells(self, row: int) -> slice:
        return slice(row * self.context_blocks, (row + 1) * self.context_blocks)

    def _make_ids(self, more: int) -> None:
        """Do nothing: the blocks are vLLM's, whose number is fixed."""

    def _make_rows(self, count: int) -> None:
        cache, cells = self.run.cache, count * self.context_blocks
        if cache.blocks.size == 0:
            engine = self.run.engines[0]
            engine.cache.on, engine.cache.considered, engine.cache.last_free = 1, -1, self.total_blocks - 1
            blocks = empty_named_blocks([self.total_blocks])
            cache = cache._replace(blocks=blocks, places=no_names(blocks), chunk_tokens=int(engine.block_tokens))
        cache = longer(cache, {"cells": cells, "chunks": cells})
        self.run = self.run._replace(cache=cache._replace(offsets=np.arange(count + 1) * self.context_blocks))
        super()._make_rows(count)

    def _see(self) -> None:
        super()._see()
        cache = self.run.cache
        own = cache._replace(blocks=cache.blocks.copy(), places=cache.places.copy(), tables=cache.tables.copy())
        self.scratch = self.scratch._replace(cache=own)
        self.moved = planned_blocks.nothing_moved(self.total_blocks)
        self._park()
