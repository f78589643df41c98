"""Batching in slots (semantic scheduling, Algorithm 2): the b best requests of an order run, prefills and decodes
apart.

Semantic scheduling and its baselines share it.

A scheduler writes (tier, key) of each request and calls `fill_slots`. It has the parameters `PARAMETERS`, the scratch
memory `SCRATCH`, and its state per request begins with `STATE`. Choosing b of n takes O(n log b).
"""

from servegym.baselines.heaps import offer
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
AFTER_PREFILLS = 2**32  # added to a level, greater than any level
CANDIDATES = ("best", "decodes")
ALL_DECODES = 1
PARAMETERS = (
    Parameter("slots", 16, "most requests that run at a time", 1, 2**20, "requests", integer=True, log=True,
              source="semantic scheduling's code"),
    Parameter("batching", "stage-aware", "stage-aware: prefills wait while the first request in order decodes; "
              "prefill-first: prefills never wait", choices=BATCHINGS, source="semantic scheduling, Alg. 2"),
    Parameter("candidates", "best", "which decodes may join the ongoing ones, b being the slots: those among the first "
              "b requests that are not ongoing (best), or the first b decodes that are not (decodes: the code)",
              choices=CANDIDATES, source="semantic scheduling, Alg. 2 line 1"),
)  # fmt: skip
SCRATCH = Scratch(indices=("marked", "heap"))  # marked: 1 or 0 by position; heap: the best marked positions so far

REMAINING_S, SEEN, ONGOING, EMITTED = range(4)
# seen: number of its last eviction + 1 when last ranked; 0: never. emitted: output tokens when remaining_s was written.
STATE = ("remaining_s", "seen", "ongoing", "emitted")

LEVELS = ("urgency", "priority")


@kernel
def level_of(request, choice):
    """Return the request's urgency or priority. choice: an index into LEVELS. Lower goes first."""
    return request.urgency if choice == 0 else request.priority


@kernel
def note_eviction(request, mine):
    """Return whether the request is ranked for the first time since its arrival or last eviction; then it is not
    ongoing.

    mine: the request's row of state. Call it for each request before `fill_slots`.
    """
    seen = float(request.evicted + 1)
    if mine[SEEN] == seen:
        return False
    mine[SEEN] = seen
    mine[ONGOING] = 0.0
    return True


@kernel
def note_remaining_time(request, mine, engine, estimator, current):
    """Call `note_eviction`; if it is True (with `current` also after new tokens), write the remaining time."""
    if note_eviction(request, mine) or (current and mine[EMITTED] != float(request.num_output_tokens)):
        mine[REMAINING_S] = remaining_s(request, engine, estimator)
        mine[EMITTED] = float(request.num_output_tokens)


@kernel
def fill_slots(context, p, ranks, limits):
    """Leave out all requests that do not run in this batch; ranks have their order.

    Stage-aware: while the best request p* decodes, decodes run that are ongoing or among the b best of the others. Else
    the b best of all are chosen, and of those the prefills run. Prefill-first: the b best are chosen, prefills go
    first, and decodes run if these find no memory: otherwise they would wait while two prompts evict each other in
    turn.
    """
    requests, queue, state, s = context.requests, context.queue, context.state, SCRATCH.read(context)
    n, slots, prefill_first = queue.shape[0], p.slots, p.batching == PREFILL_FIRST
    limits.sequence_budget = slots
    limits.whole_prompts = 1
    limits.evict_for = EVICT_FOR_ALL  # Algorithm 4: waiting requests too
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
    """Mark decodes that are ongoing or among the `slots` best of other requests (all_decodes: of other decodes)."""
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
    """Unmark all but the `slots` best of the marked positions. Returns their number; they are in s.heap."""
    size = 0
    for position in range(n):
        if s.marked[position] == 1:
            size = offer(s.heap, size, slots, position, ranks)
            s.marked[position] = 0
    for i in range(size):
        s.marked[s.heap[i]] = 1
    return size
