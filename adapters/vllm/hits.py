"""Makes vLLM find exactly the prefix-cache hits that a plan has found.

vLLM schedules what runs before what waits, whatever the ranks. So without this a block that a waiting one is to find
might be overwritten first by a running one, and what a running one fills might be found though not planned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.adapters.vllm.caching_mirror import CachingMirror
from servegym.adapters.vllm.mirror import Plan


class Hits:
    """Holds what a plan has found for the time of a step of vLLM's.

    manager: vLLM's KVCacheManager. Its `get_computed_blocks` is watched, and `find_longest_cache_hit` of its
    coordinator, which is given the most that may be found.
    """

    def __init__(self, manager: Any, mirror: CachingMirror, block_tokens: int):
        self.pool, self.mirror, self.block_tokens = manager.block_pool, mirror, block_tokens
        self.most_of: dict[str, int] = {}  # tokens that each request may find; others: whatever is there
        self.most: int | None = None
        self.held: list[Any] = []
        self.look_up, self.find = manager.get_computed_blocks, manager.coordinator.find_longest_cache_hit
        manager.get_computed_blocks = self._get_computed_blocks
        manager.coordinator.find_longest_cache_hit = self._find_longest_cache_hit

    def are_given_memory(self, plan: Plan) -> np.ndarray:
        """bool[n]: which of the plan's requests have no memory, or give theirs up before."""
        without = self.mirror.run.requests["blocks"][plan.rows] == 0
        return without | np.isin(plan.rows, plan.evicted) if len(plan.evicted) else without

    def hold(self, row: int, request_id: str, tokens: int) -> None:
        """This request of the plan, without memory, is to find so many tokens."""
        self.most_of[request_id] = tokens
        blocks = self.pool.blocks
        found = [blocks[i + 1] for i in self.mirror.blocks_found(row, tokens // self.block_tokens).tolist()]
        if found:
            self.pool.touch(found)
            self.held += found

    def release(self) -> None:
        """Release the held hits at the end of the step."""
        self.most_of.clear()
        if self.held:
            self.pool.free_blocks(self.held[::-1])
            self.held = []

    def _get_computed_blocks(self, request: Any, *others: Any, **named: Any) -> Any:
        self.most = self.most_of.get(request.request_id)
        try:
            return self.look_up(request, *others, **named)
        finally:
            self.most = None

    def _find_longest_cache_hit(self, block_hashes: Any, most_tokens: int) -> Any:
        return self.find(block_hashes, most_tokens if self.most is None else min(most_tokens, self.most))
