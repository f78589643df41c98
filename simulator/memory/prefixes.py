"""Shared prefixes of prompts, and prefix stores, which keep their KV in host memory.

A router's index of an engine that does not publish KV events (kv_events.py) is such a store too: it has what the router
sent there.

A store is a set-associative cache: the least recently used of the 16 chunks of a set is replaced. A look-up is a scan
of 16 numbers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError, WorkloadError
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.compilation.prefetching import prefetch, prefetch_two
from servegym.simulator.memory.kv_events import published_block_tokens, published_name, published_tokens
from servegym.simulator.records.fields import zeros
from servegym.simulator.records.named_blocks import ask_for_name, find_block
from servegym.simulator.records.types import STORED_SET, WAYS

ENGINES_AHEAD = 8  # engines: visiting so many takes some 100 ns, the latency of memory
CHUNKS_AHEAD = 16  # chunks of a prompt: the same


@dataclasses.dataclass(frozen=True)
class PrefixStore:
    """Host memory of each engine for the KV of prefixes.

    tokens: its size. load_s_per_token: time to load a token, in which the engine computes nothing.
    """

    tokens: int
    load_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.tokens < 2**40 or self.tokens != int(self.tokens):
            raise DeploymentError(f"prefix store: tokens is {self.tokens}; it should be a whole number of 1 or more")
        if not 0 <= self.load_s_per_token < np.inf:
            raise DeploymentError(f"prefix store: load_s_per_token is {self.load_s_per_token}; it should be 0 or more")

    def sets(self, chunk_tokens: int) -> int:
        """Return its number of sets of 16 chunks."""
        return sets_of(int(self.tokens), chunk_tokens)


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The chunks of prompts: two chunks with one number have the same tokens from the start of the prompt to their end.

    chunk_tokens: tokens of a chunk. offsets: int64[requests + 1]; request r has the full chunks
    chunks[offsets[r]:offsets[r + 1]], int[...]. They may include the answer: the next turn of a session, whose prompt
    begins with both, has the same numbers then (docs/feature_rules.md). Raises WorkloadError if offsets and chunks do
    not match.
    """

    chunk_tokens: int
    offsets: np.ndarray
    chunks: np.ndarray

    def __post_init__(self) -> None:
        offsets, chunks = np.ascontiguousarray(self.offsets, "i8"), np.asarray(self.chunks)
        if self.chunk_tokens < 1:
            raise WorkloadError(f"prompts: chunk_tokens is {self.chunk_tokens}; it should be 1 or more")
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(chunks):
            raise WorkloadError(f"prompts: offsets should go from 0 to the number of chunks, {len(chunks)}")
        if (np.diff(offsets) < 0).any():
            raise WorkloadError("prompts: offsets should not decrease")
        # Renumbered from 0 without gaps, so that chunks spread evenly over the sets of a store.
        object.__setattr__(self, "chunks", ranks(chunks).astype("i4"))
        object.__setattr__(self, "offsets", offsets)

    def of_prompts(self, prompt_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and chunks of the prompts without answers. prompt_tokens: int[requests]."""
        counts, full = np.diff(self.offsets), prompt_tokens // self.chunk_tokens
        if (counts <= full).all():
            return self.offsets, self.chunks
        kept = np.minimum(counts, full)
        runs = np.column_stack([kept, counts - kept]).ravel()  # chunks of a prompt, of its answer, of the next prompt
        in_prompts = np.repeat(np.arange(len(runs)) % 2 == 0, runs)
        return np.concatenate([[0], np.cumsum(kept)]).astype("i8"), self.chunks[in_prompts]

    def take(self, keep: np.ndarray) -> Prompts:
        """Return the chunks of requests `keep`, in that order."""
        rows = [self.chunks[self.offsets[r] : self.offsets[r + 1]] for r in keep]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        return Prompts(self.chunk_tokens, offsets, np.concatenate([*rows, np.zeros(0, "i4")]))


def ranks(numbers: np.ndarray) -> np.ndarray:
    """Return int64[n]: the rank of each integer among the distinct ones.

    Dense numbers, such as those of blocks, are counted instead of sorted, as a trace has a hundred times as many
    blocks as requests.
    """
    if not len(numbers) or numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1].astype("i8").reshape(-1)
    there = np.zeros(int(numbers.max()) + 1, bool)
    there[numbers] = True
    return (np.cumsum(there) - 1)[numbers]


def sets_of(tokens: int, chunk_tokens: int) -> int:
    """Return the number of sets of 16 chunks in a store of `tokens` tokens, at least 1; 0 for 0 tokens."""
    return max(1, tokens // (WAYS * chunk_tokens)) if tokens > 0 else 0


def empty_stores(sets: np.ndarray) -> np.ndarray:
    """Return STORED_SET[engines, max(sets)]: an empty store for each engine. sets: int[engines]; 0: none."""
    return zeros((len(sets), int(sets.max())), STORED_SET)


@kernel
def set_of(chunk, sets):
    """Return the set of a chunk, as a division of 32 bits takes less time than one of 64."""
    return np.uint32(chunk) % np.uint32(sets)


@inlined_kernel
def place_in(one, chunk):
    """Return the place of a chunk in a set; -1: it is not there.

    All places are compared, since a wrong prediction of the branch takes longer.
    """
    number, place = np.int32(-1 - chunk), -1
    for way in range(WAYS):
        if one.chunk[way] == number:
            place = way
    return place


@kernel
def use(one, chunk, used):
    """Mark a chunk as used; if it is not in its set, it replaces the least recently used one."""
    way = place_in(one, chunk)
    if way < 0:
        way = 0
        for other in range(1, WAYS):
            if one.used[other] < one.used[way]:
                way = other
        one.chunk[way] = -1 - chunk
    one.used[way] = used


@kernel
def use_chunks(prefixes, store, sets, r, uses):
    """Mark all chunks of request r as used in a store. uses: the store's count of uses; the new count is returned."""
    end = prefixes.offsets[r + 1]
    for at in range(prefixes.offsets[r], end):
        if at + CHUNKS_AHEAD < end:
            prefetch_two(store, set_of(prefixes.chunks[at + CHUNKS_AHEAD], sets))
        uses += 1
        use(store[set_of(prefixes.chunks[at], sets)], prefixes.chunks[at], uses)
    return uses


@kernel
def leading_chunks(prefixes, store, sets, r):
    """Return how many leading chunks of request r a store has."""
    count, end = 0, prefixes.offsets[r + 1]
    for at in range(prefixes.offsets[r], end):
        if at + CHUNKS_AHEAD < end:
            prefetch(store, set_of(prefixes.chunks[at + CHUNKS_AHEAD], sets))
        if place_in(store[set_of(prefixes.chunks[at], sets)], prefixes.chunks[at]) < 0:
            break
        count += 1
    return count


@kernel
def forget(store, sets):
    """Empty a store of `sets` sets."""
    for s in range(sets):
        for way in range(WAYS):
            store[s].chunk[way], store[s].used[way] = 0, 0


@kernel
def ask_for_known(known, r, e, tokens):
    """Prefetch what shows whether engine e has the chunk of request r that ends at `tokens`; 0: its first chunk.

    Does nothing if there is no engine e. A router that visits all engines calls it ENGINES_AHEAD of its look-up, since
    the index of an engine is rarely in the processor's cache.
    """
    if e >= known.snapshots.shape[0]:
        return
    snapshot, prefixes, last = known.snapshots[e], known.prefixes, max(0, tokens - 1)
    if snapshot.publishes == 1:
        name = published_name(snapshot, prefixes, r, e, last // published_block_tokens(snapshot, prefixes, e))
        ask_for_name(prefixes.places[e], name)
    elif snapshot.index_sets > 0:
        at = prefixes.offsets[r] + last // prefixes.chunk_tokens
        if at < prefixes.offsets[r + 1]:
            prefetch(prefixes.sent[e], set_of(prefixes.chunks[at], snapshot.index_sets))


@kernel
def known_tokens(known, request, r, e):
    """Return the cached tokens of request r at engine e as far as the router knows; at least one is left to compute."""
    snapshot, prefixes, tokens = known.snapshots[e], known.prefixes, 0
    most = request.prompt_tokens + request.num_output_tokens - 1
    if snapshot.publishes == 1:
        return published_tokens(snapshot, prefixes, r, e, most)
    if snapshot.index_sets > 0:
        tokens = prefixes.chunk_tokens * leading_chunks(prefixes, prefixes.sent[e], snapshot.index_sets, r)
    return min(tokens, most)


@kernel
def may_have(known, r, e, tokens):
    """Return whether engine e may have the first `tokens` of request r cached, as the router knows it.

    It does not if it lacks the last of their chunks. That is found sooner than the number of tokens it has.
    """
    snapshot, prefixes = known.snapshots[e], known.prefixes
    if tokens <= 0:
        return True
    if snapshot.publishes == 1:
        size = published_block_tokens(snapshot, prefixes, e)
        chunks, last = prefixes.offsets[r + 1] - prefixes.offsets[r], (tokens - 1) // size
        if last >= chunks * prefixes.chunk_tokens // size:
            return False
        if prefixes.kinds[e].on > 0 and prefixes.kinds[e].full == 0:
            return True  # windows need the blocks before the end of a find, and not that one
        name = published_name(snapshot, prefixes, r, e, last)
        return find_block(prefixes.places[e], prefixes.published[e], name) >= 0
    if snapshot.index_sets == 0:
        return False
    at = prefixes.offsets[r] + (tokens - 1) // prefixes.chunk_tokens
    if at >= prefixes.offsets[r + 1]:
        return False
    return place_in(prefixes.sent[e, set_of(prefixes.chunks[at], snapshot.index_sets)], prefixes.chunks[at]) >= 0


@kernel
def borrow(request, outcome, engine, prefixes, store, r):
    """Set the offloaded tokens of request r, which joins the engine's queue, to what the prefix store has of it."""
    count = leading_chunks(prefixes, store, engine.store_sets, r)
    for at in range(prefixes.offsets[r], prefixes.offsets[r] + count):
        engine.store_uses += 1
        use(store[set_of(prefixes.chunks[at], engine.store_sets)], prefixes.chunks[at], engine.store_uses)
    context = request.prompt_tokens + request.num_output_tokens
    request.offloaded_tokens = min(count * prefixes.chunk_tokens, context - 1)
    outcome.borrowed = request.offloaded_tokens > 0
    outcome.cached_tokens += request.offloaded_tokens
