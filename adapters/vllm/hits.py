"""Makes vLLM find exactly the prefix-cache hits of a plan.

vLLM schedules running requests before waiting ones, whatever their ranks. Without this, a running request might
overwrite a block that a waiting request is planned to find, or fill one that it is not planned to find.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.adapters.vllm.caching_mirror import CachingMirror
from servegym.adapters.vllm.mirror import Plan


class Hits:
    """Holds the hits of a plan during a vLLM step.

    manager: vLLM's KVCacheManager, whose `get_computed_blocks` is wrapped, as is `find_longest_cache_hit` of its
    coordinator, which gets the planned length as its maximum.
    """

    def __init__(self, manager: Any, mirror: CachingMirror, block_tokens: int):
        self.pool, self.mirror, self.block_tokens = manager.block_pool, mirror, block_tokens
        self.most_of: dict[str, int] = {}  # most tokens that a request may find, by id; others have no limit
        self.most: int | None = None
        self.held: list[Any] = []
        self.look_up, self.find = manager.get_computed_blocks, manager.coordinator.find_longest_cache_hit
        manager.get_computed_blocks = self._get_computed_blocks
        manager.coordinator.find_longest_cache_hit = self._find_longest_cache_hit

    def are_given_memory(self, plan: Plan) -> np.ndarray:
        """bool[n]: which requests of the plan are admitted: they have no blocks, or are evicted first."""
        without = self.mirror.run.requests["blocks"][plan.rows] == 0
        return without | np.isin(plan.rows, plan.evicted) if len(plan.evicted) else without

    def hold(self, row: int, request_id: str, tokens: int) -> None:
        """Make a request that is admitted find `tokens` tokens in the prefix cache."""
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
