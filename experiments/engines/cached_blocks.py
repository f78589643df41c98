"""What vLLM's block pool keeps of requests that are gone, and what it overwrites, to compare with the simulator's.

Contents of blocks have the names of docs/feature_rules.md: (number of a chunk, i) or (-1 - request, i), of block i.
With KV cache groups i counts blocks of the greatest common divisor of their sizes, and the group is the third.
"""

from collections.abc import Sequence
from typing import Any

from servegym.errors import VllmError
from servegym.simulator.inputs.workload import Workload

Name = tuple[int, ...]
Key = tuple[bytes, int]  # vLLM's hash of a block, and its group


def name_of(workload: Workload, request: int, i: int, block_tokens: int) -> Name:
    """The name of block i of a request: by the chunk in which it ends, if that is listed, or its own."""
    if workload.prefixes is not None:
        prompts = workload.prefixes
        listed = prompts.chunks[prompts.offsets[request] : prompts.offsets[request + 1]]
        chunk = ((i + 1) * block_tokens - 1) // prompts.chunk_tokens
        if chunk < len(listed):
            return int(listed[chunk]), i
    return -1 - request, i


def names_by_key(requests: Sequence[Any], workload: Workload, block_tokens: int) -> dict[bytes, Name]:
    """The names behind vLLM's hashes of blocks: those of the full blocks of these requests, in the workload's order.

    Raises VllmError where equal hashes do not mean equal names, and equal names equal hashes.
    """
    names: dict[bytes, Name] = {}
    for number, request in enumerate(requests):
        for i, key in enumerate(request.block_hashes):
            name = name_of(workload, number, i, block_tokens)
            if names.setdefault(bytes(key), name) != name:
                raise VllmError(f"block {i} of request {number} is {name}, and vLLM takes it for {names[bytes(key)]}")
    if len(set(names.values())) < len(names):
        raise VllmError("vLLM has two hashes for blocks that the workload says are equal")
    return names


class PoolWatch:
    """Follows a block pool of vLLM's from now on, by its hashes of blocks."""

    def __init__(self, pool: Any):
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        self.pool, self.hash_of, self.group_of = pool, get_block_hash, get_group_id
        self.lost: list[Key] = []
        self.evict = pool._maybe_evict_cached_block
        pool._maybe_evict_cached_block = self._evict

    def _evict(self, block: Any) -> bool:
        key = block.block_hash
        evicted = bool(self.evict(block))
        if evicted:
            self.lost.append(self._key(key))
        return evicted

    def _key(self, key: Any) -> Key:
        return bytes(self.hash_of(key)), int(self.group_of(key))

    def overwritten(self) -> list[Key]:
        """Contents overwritten since the last call, in order."""
        lost, self.lost = self.lost, []
        return lost

    def free(self) -> list[Key | None]:
        """Contents of the free blocks, in the order in which they will be taken; None: empty."""
        keys = (block.block_hash for block in self.pool.free_block_queue.get_all_free_blocks())
        return [None if key is None else self._key(key) for key in keys]
