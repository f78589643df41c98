"""Prompts that begin alike, and the stores in host memory that keep the KV of such beginnings.

What a router has sent to an engine it notes in a store of the same kind, its index of that engine, unless the engine
tells it what it has (kv_events.py).

A store is sets of 16 places; in a set the chunk used least recently goes. (Sets and not one list: a look-up is a scan
of 16 numbers, and nothing is linked.)
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError, WorkloadError
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.compilation.prefetching import prefetch
from servegym.simulator.memory.kv_events import told_tokens
from servegym.simulator.records.named_blocks import find_block, name_of
from servegym.simulator.records.types import STORED_CHUNK, WAYS

ENGINES_AHEAD = 8  # to look at so many takes as long as memory does, some 100 ns


@dataclasses.dataclass(frozen=True)
class PrefixStore:
    """Host memory of each engine for the KV of beginnings of prompts.

    tokens: room. load_s_per_token: the engine computes nothing meanwhile.
    """

    tokens: int
    load_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.tokens < 2**40 or self.tokens != int(self.tokens):
            raise DeploymentError(f"prefix store: tokens is {self.tokens}; it should be a whole number of 1 or more")
        if not 0 <= self.load_s_per_token < np.inf:
            raise DeploymentError(f"prefix store: load_s_per_token is {self.load_s_per_token}; it should be 0 or more")

    def sets(self, chunk_tokens: int) -> int:
        """How many sets of 16 chunks it has."""
        return sets_of(int(self.tokens), chunk_tokens)


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The chunks of prompts: equal numbers, equal tokens from the start up to the end of the chunk.

    chunk_tokens: of a chunk. offsets: int64[requests + 1]; request r has chunks[offsets[r]:offsets[r + 1]], its full
    chunks, int[...]. They may go on beyond the prompt, up to the end of the answer: the next turn of a session, whose
    prompt begins with both, has the same numbers then (docs/feature_rules.md). Raises WorkloadError where they do not
    go together.
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
        # Numbered 0, 1, ...: so chunks spread evenly over the sets of a store whatever numbers a trace has for them.
        object.__setattr__(self, "chunks", ranks(chunks).astype("i4"))
        object.__setattr__(self, "offsets", offsets)

    def of_prompts(self, prompt_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and chunks of the prompts alone, without those of answers. prompt_tokens: int[requests]."""
        counts, full = np.diff(self.offsets), prompt_tokens // self.chunk_tokens
        if (counts <= full).all():
            return self.offsets, self.chunks
        place = np.arange(len(self.chunks)) - np.repeat(self.offsets[:-1], counts)
        ends = np.cumsum(np.minimum(counts, full))
        return np.concatenate([[0], ends]).astype("i8"), self.chunks[place < np.repeat(full, counts)]

    def take(self, keep: np.ndarray) -> Prompts:
        """Those of some requests, by index, in this order."""
        rows = [self.chunks[self.offsets[r] : self.offsets[r + 1]] for r in keep]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        return Prompts(self.chunk_tokens, offsets, np.concatenate([*rows, np.zeros(0, "i4")]))


def ranks(numbers: np.ndarray) -> np.ndarray:
    """int64[n]: the place of each whole number among all different ones, sorted.

    Numbers that lie close together, as those of blocks do, are counted and not sorted: a trace has a hundred times as
    many as requests.
    """
    if not len(numbers) or numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1].astype("i8").reshape(-1)
    there = np.zeros(int(numbers.max()) + 1, bool)
    there[numbers] = True
    return (np.cumsum(there) - 1)[numbers]


def sets_of(tokens: int, chunk_tokens: int) -> int:
    """How many sets of 16 chunks there are in room for so many tokens; 0: there is no room."""
    return max(1, tokens // (WAYS * chunk_tokens)) if tokens > 0 else 0


def empty_stores(sets: np.ndarray) -> np.ndarray:
    """STORED_CHUNK[engines, most sets, WAYS]: a store of so many sets for each engine, int[engines]; 0: none."""
    return np.zeros((len(sets), int(sets.max()), WAYS), STORED_CHUNK)


@kernel
def find(places, chunk):
    """The way in which a set holds the chunk; -1: it does not."""
    for way in range(WAYS):
        if places[way].used > 0 and places[way].chunk == chunk:
            return way
    return -1


@inlined_kernel
def holds(places, chunk):
    """Whether a set holds the chunk. (All places are compared: where it is found cannot be guessed, and a wrong guess
    takes longer.)"""
    found = 0
    for way in range(WAYS):
        found |= (places[way].chunk == chunk) & (places[way].used > 0)
    return found != 0


@kernel
def use(places, chunk, used):
    """Put a chunk into its set, in the place of the one used least recently, unless it is there; note the use."""
    way = find(places, chunk)
    if way < 0:
        way = 0
        for other in range(1, WAYS):
            if places[other].used < places[way].used:
                way = other
        places[way].chunk = chunk
    places[way].used = used


@kernel
def use_chunks(prefixes, store, sets, r, uses):
    """Put all chunks of request r into a store that has been used so many times; returns how many times it is then."""
    for at in range(prefixes.offsets[r], prefixes.offsets[r + 1]):
        uses += 1
        use(store[prefixes.chunks[at] % sets], prefixes.chunks[at], uses)
    return uses


@kernel
def leading_chunks(prefixes, store, sets, r):
    """How many of the first chunks of request r a store has, up to the first that it has not."""
    count = 0
    for at in range(prefixes.offsets[r], prefixes.offsets[r + 1]):
        if not holds(store[prefixes.chunks[at] % sets], prefixes.chunks[at]):
            break
        count += 1
    return count


@kernel
def forget(store, sets):
    """A store of so many sets is empty."""
    for s in range(sets):
        for way in range(WAYS):
            store[s, way].used = 0


@kernel
def ask_for_known(known, r, e, tokens):
    """Ask for the memory that tells whether engine e, if there is one, has the chunk of request r that ends at so many
    tokens; 0: the first one.

    It changes nothing but the time. A router that goes over the engines asks for the one that is ENGINES_AHEAD: each
    engine's index is in memory that nothing has read for long.
    """
    if e >= known.snapshots.shape[0]:
        return
    snapshot, prefixes, last = known.snapshots[e], known.prefixes, max(0, tokens - 1)
    if snapshot.publishes == 1:
        name = name_of(prefixes, r, last // snapshot.block_tokens, snapshot.block_tokens)
        prefetch(prefixes.told[e], name % snapshot.total_blocks)
    elif snapshot.index_sets > 0:
        at = prefixes.offsets[r] + last // prefixes.chunk_tokens
        if at < prefixes.offsets[r + 1]:
            places = prefixes.sent[e, prefixes.chunks[at] % snapshot.index_sets]
            prefetch(places, 0)
            prefetch(places, WAYS // 2)  # a set has more than one cache line


@kernel
def known_tokens(known, request, r, e):
    """The tokens of request r that engine e has, as far as the router knows; at least one is left to compute."""
    snapshot, prefixes, tokens = known.snapshots[e], known.prefixes, 0
    if snapshot.publishes == 1:
        tokens = told_tokens(snapshot, prefixes, r, e)
    elif snapshot.index_sets > 0:
        tokens = prefixes.chunk_tokens * leading_chunks(prefixes, prefixes.sent[e], snapshot.index_sets, r)
    return min(tokens, request.prompt_tokens + request.num_output_tokens - 1)


@kernel
def may_have(known, r, e, tokens):
    """Whether engine e may have so many tokens of request r, as far as the router knows: it does not where it lacks the
    last of their chunks, which is sooner seen than how many it has."""
    snapshot, prefixes = known.snapshots[e], known.prefixes
    if tokens <= 0:
        return True
    if snapshot.publishes == 1:
        chunks, last = prefixes.offsets[r + 1] - prefixes.offsets[r], (tokens - 1) // snapshot.block_tokens
        if last >= chunks * prefixes.chunk_tokens // snapshot.block_tokens:
            return False
        return find_block(snapshot, prefixes.told[e], name_of(prefixes, r, last, snapshot.block_tokens)) >= 0
    if snapshot.index_sets == 0:
        return False
    at = prefixes.offsets[r] + (tokens - 1) // prefixes.chunk_tokens
    if at >= prefixes.offsets[r + 1]:
        return False
    return holds(prefixes.sent[e, prefixes.chunks[at] % snapshot.index_sets], prefixes.chunks[at])


@kernel
def borrow(request, outcome, engine, prefixes, store, r):
    """Request r, with nothing computed, joins the queue of the engine: it keeps what the store has of its prompt."""
    count = leading_chunks(prefixes, store, engine.store_sets, r)
    for at in range(prefixes.offsets[r], prefixes.offsets[r] + count):
        engine.store_uses += 1
        use(store[prefixes.chunks[at] % engine.store_sets], prefixes.chunks[at], engine.store_uses)
    context = request.prompt_tokens + request.num_output_tokens
    request.offloaded_tokens = min(count * prefixes.chunk_tokens, context - 1)
    outcome.borrowed = request.offloaded_tokens > 0
    outcome.cached_tokens += request.offloaded_tokens
