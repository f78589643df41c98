"""Batching in slots: each iteration the b best requests of an order, prefills and decodes apart (semantic scheduling,
Algorithm 2), which it and the baselines it is compared with have in common.

A scheduler writes (tier, key) of each request and calls `fill_slots`. It has the parameters `PARAMETERS`, the scratch
memory `SCRATCH`, and its state per request begins with `STATE`. Choosing b of n takes O(n log b).
"""

from servegym.baselines.remaining_time import remaining_s
from servegym.policy import (
    EVICT_FOR_ALL,
    LEAVE_OUT,
    PHASE_FIRST_DECIDES,
    Parameter,
    Scratch,
    is_decoding,
    kernel,
    ranks_before,
)

BATCHINGS = ("stage-aware", "prefill-first")
PREFILL_FIRST = 1
AFTER_PREFILLS = 2**32  # added to a level: more than any
CANDIDATES = ("best", "decodes")
ALL_DECODES = 1
PARAMETERS = (
    Parameter("slots", 16, "most requests that run at a time", 1, 2**20, "requests", integer=True, log=True,
              source="semantic scheduling's code"),
    Parameter("batching", "stage-aware", "stage-aware: prefills wait while the first request in order decodes; "
              "prefill-first: prefills never wait", choices=BATCHINGS, source="semantic scheduling, Alg. 2"),
    Parameter("candidates", "best", "which decodes may join the ongoing ones: those among the first b requests in "
              "order that are not ongoing, b being the slots (best); or the first b decodes that are not (decodes: the "
              "code)",
              choices=CANDIDATES, source="semantic scheduling, Alg. 2 line 1"),
)  # fmt: skip
SCRATCH = Scratch(indices=("marked", "heap"))  # by position: 1 or 0; positions of the best marked so far

REMAINING_S, SEEN, ONGOING, EMITTED = range(4)
# seen: number of its last eviction + 1 when last ranked, 0: never ranked. emitted: tokens when remaining_s was noted.
STATE = ("remaining_s", "seen", "ongoing", "emitted")

LEVELS = ("urgency", "priority")


@kernel
def level_of(request, choice):
    """The request's urgency or its priority, as an index into LEVELS says; lower goes first."""
    return request.urgency if choice == 0 else request.priority


@kernel
def note_eviction(request, mine):
    """Whether the request is ranked for the first time, or was evicted since it was last; then it is not ongoing.

    mine: the request's row of state. To be called for each request before `fill_slots`.
    """
    seen = float(request.evicted + 1)
    if mine[SEEN] == seen:
        return False
    mine[SEEN] = seen
    mine[ONGOING] = 0.0
    return True


@kernel
def note_remaining_time(request, mine, engine, estimator, current):
    """`note_eviction`; if it is True (`current`: or the request has emitted since), also note the remaining time."""
    if note_eviction(request, mine) or (current and mine[EMITTED] != float(request.num_output_tokens)):
        mine[REMAINING_S] = remaining_s(request, engine, estimator)
        mine[EMITTED] = float(request.num_output_tokens)


@kernel
def fill_slots(context, p, ranks, limits):
    """Leave out all but the requests that run in this batch; ranks hold their order.

    Stage-aware: while the best request p* is decoding, decodes run that were chosen before or are among the b best of
    the others. Else the b best of all are chosen, and of those the prefilling ones run first. Prefill-first, decodes
    run where these find no memory: else they would stand while two prompts take it from each other in turn.
    """
    requests, queue, state, s = context.requests, context.queue, context.state, SCRATCH.read(context)
    n, slots, prefill_first = queue.shape[0], p.slots, p.batching == PREFILL_FIRST
    limits.sequence_budget = slots
    limits.whole_prompts = 1
    limits.evict_for = EVICT_FOR_ALL  # Algorithm 4: newcomers too
    if prefill_first:
        limits.phase = PHASE_FIRST_DECIDES
    if n == 0:
        return
    best = 0
    for position in range(n):
        s.marked[position] = 1
        if ranks_before(ranks, position, best):
            best = position
    if not prefill_first and is_decoding(requests[queue[best]]):
        mark_decodes(context, ranks, s, slots, p.candidates == ALL_DECODES)
    chosen = keep_best(ranks, s, n, slots)
    for position in range(n):
        if s.marked[position] == 1:
            state.requests[queue[position], ONGOING] = 1.0
        else:
            state.requests[queue[position], ONGOING] = 0.0
            ranks[position].tier = LEAVE_OUT
    prefilling = False
    for i in range(chosen):
        if not is_decoding(requests[queue[s.heap[i]]]):
            prefilling = True
    if prefilling:
        for i in range(chosen):
            rank = ranks[s.heap[i]]
            if is_decoding(requests[queue[s.heap[i]]]):
                rank.tier = rank.tier + AFTER_PREFILLS if prefill_first else LEAVE_OUT


@kernel
def mark_decodes(context, ranks, s, slots, all_decodes):
    """Mark the decodes that are ongoing, or among the b best of the requests that are not (all_decodes: decodes)."""
    requests, queue, ongoing = context.requests, context.queue, context.state.requests
    n = queue.shape[0]
    for position in range(n):
        r = queue[position]
        if ongoing[r, ONGOING] == 1.0 or (all_decodes and not is_decoding(requests[r])):
            s.marked[position] = 0
    keep_best(ranks, s, n, slots)
    for position in range(n):
        r = queue[position]
        if not is_decoding(requests[r]):
            s.marked[position] = 0
        elif ongoing[r, ONGOING] == 1.0:
            s.marked[position] = 1


@kernel
def keep_best(ranks, s, n, slots):
    """Of the marked positions keep the mark of the `slots` best. Returns their number; they are s.heap[i].

    These are a heap of the best seen so far, the worst of them at its root.
    """
    size = 0
    for position in range(n):
        if s.marked[position] != 1:
            continue
        if size < slots:
            s.heap[size] = position
            size += 1
            rise(s.heap, ranks, size - 1)
        elif ranks_before(ranks, position, s.heap[0]):
            s.marked[s.heap[0]] = 0
            s.heap[0] = position
            sink(s.heap, ranks, size)
        else:
            s.marked[position] = 0
    return size


@kernel
def rise(heap, ranks, child):
    """Move an entry of the heap up while it ranks after its parent."""
    while child > 0:
        parent = (child - 1) // 2
        if not ranks_before(ranks, heap[parent], heap[child]):
            return
        heap[parent], heap[child] = heap[child], heap[parent]
        child = parent


@kernel
def sink(heap, ranks, size):
    """Move the root of the heap down while a child ranks after it."""
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and ranks_before(ranks, heap[child], heap[child + 1]):
            child += 1
        if not ranks_before(ranks, heap[parent], heap[child]):
            return
        heap[parent], heap[child] = heap[child], heap[parent]
        parent = child
