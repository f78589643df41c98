"""Records the operations of vLLM on its KV blocks, for the mirror to replay (block_kernels.py).

It wraps the methods of vLLM's `BlockPool` that take, share, free and name blocks (v1/core/block_pool.py; the same in
0.28, 0.32 and 0.33), and `KVCacheManager.free`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from servegym.adapters.vllm import block_kernels as kinds
from servegym.adapters.vllm.caching_mirror import names

CALLS = ("get_new_blocks", "touch", "free_blocks", "cache_full_blocks", "evict_blocks", "reset_prefix_cache")
Own = Callable[..., Any]  # the method of vLLM that is wrapped


def can_be_followed(scheduler: Any) -> bool:
    """Whether a vLLM scheduler caches prefixes in blocks that a mirror can follow: one KV cache group of full
    attention, with a hash for each whole block."""
    manager, groups = scheduler.kv_cache_manager, scheduler.kv_cache_config.kv_cache_groups
    pool = manager.block_pool
    if not manager.enable_caching or len(groups) != 1 or pool.hash_block_size != scheduler.block_size:
        return False
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = groups[0].kv_cache_spec
    whole = isinstance(spec, FullAttentionSpec) and getattr(spec, "sliding_window", None) is None
    return whole and all(hasattr(pool, name) for name in CALLS)


def chunk_numbers(hashes: Sequence[bytes]) -> np.ndarray:
    """int32[n]: 31 bits of each of vLLM's block hashes.

    Two different blocks at the same position are taken for equal with probability 2^-31. A plan that relies on such a
    pair counts as deviating, as vLLM compares whole hashes.
    """
    return (np.frombuffer(b"".join([bytes(key[:4]) for key in hashes]), "<u4") >> 1).astype("i4")


class BlockLog:
    """Records what vLLM's KV cache manager does to its blocks from now on; its prefix cache must be empty.

    row_of: the mirror's row of each request, by request id.
    """

    def __init__(self, manager: Any, row_of: Mapping[str, int]):
        self.operations: list[tuple[int, int, int]] = []
        self.row_of = row_of
        self.owned: list[tuple[Any, str]] = []
        self.get_blocks = manager.get_blocks
        for name in CALLS:
            self._watch(manager.block_pool, name, getattr(self, f"_{name}"))
        self._watch(manager, "free", self._free)

    def take(self) -> np.ndarray:
        """Return the operations recorded since the last call, int64[n, 3]."""
        noted = np.array(self.operations, "i8").reshape(-1, 3)
        self.operations.clear()
        return noted

    def hold(self, row: int, request_id: str, had: int) -> None:
        """Record the blocks that a request, which held `had` blocks, has got since."""
        blocks = self.get_blocks(request_id).blocks[0]
        if len(blocks) > had:
            self.operations += [(kinds.HELD, row, block.block_id - 1) for block in blocks[had:]]

    def stop(self) -> None:
        for owner, name in self.owned:
            vars(owner).pop(name, None)
        self.operations.clear()

    def _watch(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a method of vLLM by one that calls it and records what it does."""
        setattr(owner, name, functools.partial(call, getattr(owner, name)))
        self.owned.append((owner, name))

    def _note(self, what: int, blocks: Iterable[Any]) -> None:
        self.operations += [(what, block.block_id - 1, 0) for block in blocks if not block.is_null]

    def _get_new_blocks(self, own: Own, *arguments: Any, **named: Any) -> Any:
        blocks = own(*arguments, **named)
        self._note(kinds.TAKEN, blocks)
        return blocks

    def _touch(self, own: Own, blocks: Sequence[Any]) -> None:
        own(blocks)
        self._note(kinds.TOUCHED, blocks)

    def _free_blocks(self, own: Own, ordered_blocks: Iterable[Any]) -> None:
        ordered = list(ordered_blocks)
        own(ordered)
        self._note(kinds.FREED, ordered)

    def _cache_full_blocks(
        self, own: Own, request: Any, blocks: Sequence[Any], num_cached_blocks: int, num_full_blocks: int, *others: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        own(request, blocks, num_cached_blocks, num_full_blocks, *others, **named)
        if num_full_blocks <= num_cached_blocks:
            return
        full = names(chunk_numbers(request.block_hashes[num_cached_blocks:num_full_blocks]), num_cached_blocks)
        self.operations += [
            (kinds.NAMED, block.block_id - 1, name)
            for block, name in zip(blocks[num_cached_blocks:num_full_blocks], full.tolist(), strict=True)
        ]

    def _evict_blocks(self, own: Own, block_ids: set[int]) -> None:
        own(block_ids)
        self.operations += [(kinds.UNNAMED, block_id - 1, 0) for block_id in block_ids]

    def _reset_prefix_cache(self, own: Own) -> Any:
        done = own()
        if done:
            self.operations.append((kinds.RESET, 0, 0))
        return done

    def _free(self, own: Own, request: Any) -> None:
        own(request)
        row = self.row_of.get(request.request_id)
        if row is not None:
            self.operations.append((kinds.GIVEN_UP, row, 0))
