"""KV cache groups, as in vLLM: layers that keep the same part of a request ("KV cache groups", docs/feature_rules.md).

Blocks of all groups come from one pool and have the same size in bytes. Groups of a kind need equally many blocks, so
an engine only has the number of groups of each kind.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.requests import cached_of, processed_of
from servegym.simulator.records.types import ENGINE_KV_GROUPS

MOST_GROUPS, MOST_TOKENS = 4096, 2**31 - 1
# Values of ENGINE_KV_GROUPS.local. LOCAL: windows begin at multiples of their length. STATES: the "windows" are states
# of an engine that caches prefixes, and `window` is 1 for prefill checkpoints, else 0.
LOCAL, STATES = 1, 2


@dataclasses.dataclass(frozen=True)
class KvCacheGroup:
    """Layers of one kind, which have a table of blocks for each request.

    block_tokens: tokens of a block; a state has blocks of its own only where no group keeps all tokens. window: number
    of latest tokens that it keeps; 0: all. local: windows begin at multiples of their length, and do not slide. state:
    it keeps a state of fixed size in one block, and no tokens. checkpoints: where states are cached, the last chunk of
    a prompt also writes the state at the last block boundary in it (vLLM's prefill checkpoints).
    """

    block_tokens: int = 16
    window: int = 0
    local: bool = False
    state: bool = False
    checkpoints: bool = False

    def __post_init__(self) -> None:
        for field, least in (("block_tokens", 1), ("window", 0)):
            value = getattr(self, field)
            if not least <= value <= MOST_TOKENS or value != int(value):
                raise DeploymentError(
                    f"KV cache group: {field} is {value}; it should be a whole number from {least} to {MOST_TOKENS}"
                )
        if self.state and (self.window or self.local):
            raise DeploymentError("KV cache group: a state has no window; leave out `window` and `local`")
        if self.checkpoints and not self.state:
            raise DeploymentError("KV cache group: `checkpoints` are of states; it should come with `state`")
        if self.local and not self.window:
            raise DeploymentError("KV cache group: `local` says how windows begin; it should come with a `window`")


def kinds_of(groups: Sequence[KvCacheGroup], where: str, caching: bool = False) -> np.record:
    """Return the ENGINE_KV_GROUPS of an engine. caching: it caches prefixes, and so states too.

    Raises DeploymentError for two different groups of full attention, or two of windows.
    """
    if len(groups) > MOST_GROUPS:
        raise DeploymentError(f"{where}: there are {len(groups)} KV cache groups; at most {MOST_GROUPS} are simulated")
    counts, kinds = Counter(groups), np.zeros(1, ENGINE_KV_GROUPS)[0]
    full = [group for group in counts if not group.window and not group.state]
    windows = [group for group in counts if group.window]
    states = [group for group in counts if group.state]
    for kind, what in ((full, "full attention"), (windows, "windows")):
        if len(kind) > 1:
            raise DeploymentError(f"{where}: KV cache groups of {what} differ, {kind[0]} and {kind[1]}; give one kind")
    kinds.on, kinds.states = len(groups), sum(counts[group] for group in counts if group.state)
    kinds.full_block_tokens = kinds.window_block_tokens = 1
    for group in full:
        kinds.full, kinds.full_block_tokens = counts[group], group.block_tokens
    for group in windows:
        kinds.windows, kinds.window_block_tokens = counts[group], group.block_tokens
        kinds.window, kinds.local = group.window, group.local
    if caching and kinds.states:
        kinds.windows, kinds.states, kinds.local = kinds.states, 0, STATES
        kinds.window_block_tokens = kinds.full_block_tokens if full else states[0].block_tokens
        kinds.window = int(all(group.checkpoints for group in states))
    return kinds


def _held_blocks(kinds, processed, computed, tokens):
    """Return the blocks of a request with `tokens` tokens, of which those after the first `computed` ones are a chunk.

    Blocks that the windows of tokens after the first `processed` ones have left are freed. In Python also for arrays.
    """
    blocks = kinds.states + kinds.full * -(-tokens // kinds.full_block_tokens)
    if kinds.windows > 0:
        size = kinds.window_block_tokens
        if kinds.local == STATES:  # a state is in the block of its last token
            before, begin, end = -(-processed // size), -(-computed // size), -(-tokens // size)
            held = 1 * (end > 0) + (begin > 0) * (begin < end) + (before > 0) * (before < begin)
            return blocks + kinds.windows * held
        if kinds.local:
            first = processed // kinds.window * kinds.window
        else:  # the window of the next token
            first = (processed - kinds.window + 1) * (processed >= kinds.window)
        blocks = blocks + kinds.windows * (-(-tokens // size) - first // size)
    return blocks


held_blocks = kernel(_held_blocks)


@kernel
def first_seen(kinds, tokens):
    """Return the first window block that the token after `tokens` tokens sees; of states, the one it continues from."""
    if kinds.local == STATES:
        return max(0, tokens - 1) // kinds.window_block_tokens
    if kinds.local:
        return tokens // kinds.window * kinds.window // kinds.window_block_tokens
    return max(0, tokens - kinds.window + 1) // kinds.window_block_tokens


@kernel
def most_held_blocks(kinds, tokens, in_flight, found):
    """Return the most blocks that a request of `tokens` tokens may have, if at most `in_flight` are computed at once.

    found: tokens in the prefix cache, which vLLM subtracts from the blocks of a window.
    """
    blocks = kinds.states + kinds.full * blocks_for(tokens, kinds.full_block_tokens)
    if kinds.local == STATES:
        inside = kinds.window == 1 and found + kinds.window_block_tokens <= last_end(kinds, tokens)
        return blocks + kinds.windows * (1 + (found > 0) + inside)
    if kinds.windows > 0:
        size = kinds.window_block_tokens
        most = blocks_for(kinds.window + in_flight, size)
        if kinds.local == 0:  # a sliding window may begin inside a block
            most = blocks_for(kinds.window - 1 + in_flight, size) + 1
        new = max(0, min(blocks_for(tokens, size), most) - found // size)
        blocks += kinds.windows * (found // size - first_seen(kinds, found) + new)
    return blocks


@kernel
def last_end(kinds, tokens):
    """Return the last block boundary of states that is before the last of `tokens` tokens."""
    return (tokens - 1) // kinds.window_block_tokens * kinds.window_block_tokens


@kernel
def writes_inside(kinds, request, start, end):
    """Return whether the request's chunk from `start` to `end` also writes a checkpoint at its last block boundary."""
    if kinds.local != STATES or kinds.window == 0 or start % kinds.window_block_tokens != 0:
        return False
    prefill = max(request.prompt_tokens, request.prompt_tokens + request.num_output_tokens - 1)
    return end >= prefill and start + kinds.window_block_tokens <= last_end(kinds, end)


@kernel
def blocks_with(kinds, request, chunk):
    """Return the blocks of the request while it computes a chunk, including the checkpoint of a running chunk."""
    before, start = processed_of(request), cached_of(request)
    checkpoints = writes_inside(kinds, request, start, start + chunk) + writes_inside(kinds, request, before, start)
    return held_blocks(kinds, before, start, start + chunk) + kinds.windows * checkpoints


@kernel
def largest_chunk_within(kinds, request, most, room):
    """Return the largest chunk, at most `most`, with which the request has at most `room` blocks; 0: none."""
    if blocks_with(kinds, request, most) <= room:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if blocks_with(kinds, request, middle) <= room:
            low = middle
        else:
            high = middle
    return low


def blocks_held(
    groups: Sequence[KvCacheGroup], computed: np.ndarray, chunk: np.ndarray, caching: bool = False
) -> np.ndarray:
    """Return int64[n]: blocks of requests while they compute a chunk after `computed` tokens, without checkpoints.

    computed, chunk: int64[n]. caching: the engine caches prefixes.
    """
    held: np.ndarray = _held_blocks(kinds_of(groups, "KV cache", caching), computed, computed, computed + chunk)
    return held


def blocks_needed(groups: Sequence[KvCacheGroup], tokens: int, caching: bool = False) -> int:
    """Return the blocks of a request whose `tokens` tokens are computed at once.

    Cached states need those at the begin and the end of a chunk, and its checkpoint.
    """
    kinds = kinds_of(groups, "KV cache", caching)
    if kinds.local == STATES:
        full, blocks = -(-tokens // kinds.full_block_tokens), -(-tokens // kinds.window_block_tokens)
        return int(kinds.full * full + kinds.windows * min(2 + kinds.window, blocks))
    return int(_held_blocks(kinds, 0, 0, tokens))


def tokens_held(groups: Sequence[KvCacheGroup], blocks: int, caching: bool = False) -> int:
    """Return the most tokens of a request that fit `blocks` blocks (`blocks_needed`)."""
    return bisect.bisect_right(range(MOST_TOKENS), blocks, key=lambda n: blocks_needed(groups, n, caching)) - 1
