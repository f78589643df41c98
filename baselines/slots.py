"""Batching in slots: each iteration the b best requests of an order, prefills and decodes apart (semantic scheduling,
Algorithm 2), which it and the baselines it is compared with have in common.

A scheduler writes (tier, key) of each request and calls `fill_slots`. Its parameters begin with `PARAMETERS` and its
state per request with `STATE`. Choosing b of n takes O(n log b) and no memory but the plan's: the columns of victim
ranks, which are written after the batch is ranked, hold a heap of places and a mark for each place.
"""

from servegym.baselines.remaining_time import remaining_s
from servegym.simulator.compilation import kernel
from servegym.simulator.ordering import ranks_before
from servegym.simulator.policies import Parameter
from servegym.simulator.requests import is_decoding
from servegym.simulator.types import EVICT_FOR_ALL, LEAVE_OUT, PHASE_FIRST_DECIDES

SLOTS, BATCHING, CANDIDATES = range(3)
PREFILL_FIRST = 1  # of BATCHING
AFTER_PREFILLS = 2**32  # added to a level: more than any
ALL_DECODES = 1  # of CANDIDATES
PARAMETERS = (
    Parameter("slots", 16, "requests that run at a time", 1, 2**20, "requests", integer=True, log=True,
              source="semantic scheduling's code"),
    Parameter("batching", "stage-aware", "prefills wait while the best request is decoding, or never",
              choices=("stage-aware", "prefill-first"), source="semantic scheduling, Alg. 2"),
    Parameter("candidates", "best", "beside ongoing decodes run those among the b best, or (code) the b best decodes",
              choices=("best", "decodes"), source="semantic scheduling, Alg. 2 line 1"),
)  # fmt: skip

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
    """`note_eviction`, and where it is so (`current`: or the request has emitted since) its remaining time is noted."""
    if note_eviction(request, mine) or (current and mine[EMITTED] != float(request.emitted_tokens)):
        mine[REMAINING_S] = remaining_s(request, engine, estimator)
        mine[EMITTED] = float(request.emitted_tokens)


@kernel
def fill_slots(requests, queue, state, parameters, plan, limits):
    """Leave out all but the requests that run in this batch; what the plan holds is their order.

    Stage-aware: while the best request p* is decoding, decodes run that were chosen before or are among the b best of
    the others. Else the b best of all are chosen, and of those the prefilling ones run first. Prefill-first, decodes
    run where these find no memory: else they would stand while two prompts take it from each other in turn.
    """
    n, slots, prefill_first = queue.shape[0], int(parameters[SLOTS]), parameters[BATCHING] == PREFILL_FIRST
    limits.sequence_budget = slots
    limits.whole_prompts = 1
    limits.evict_for = EVICT_FOR_ALL  # Algorithm 4: newcomers too
    if prefill_first:
        limits.phase = PHASE_FIRST_DECIDES
    if n == 0:
        return
    best = 0
    for place in range(n):
        plan[place].victim_key = 1.0
        if ranks_before(plan, place, best):
            best = place
    if not prefill_first and is_decoding(requests[queue[best]]):
        mark_decodes(requests, queue, state, plan, slots, parameters[CANDIDATES] == ALL_DECODES)
    chosen = keep_best(plan, n, slots)
    for place in range(n):
        if plan[place].victim_key == 1.0:
            state.requests[queue[place], ONGOING] = 1.0
        else:
            state.requests[queue[place], ONGOING] = 0.0
            plan[place].tier = LEAVE_OUT
    prefilling = False
    for i in range(chosen):
        if not is_decoding(requests[queue[plan[i].victim_tier]]):
            prefilling = True
    if prefilling:
        for i in range(chosen):
            place = plan[i].victim_tier
            if is_decoding(requests[queue[place]]):
                plan[place].tier = plan[place].tier + AFTER_PREFILLS if prefill_first else LEAVE_OUT


@kernel
def mark_decodes(requests, queue, state, plan, slots, all_decodes):
    """Mark the decodes that are ongoing, or among the b best of the requests that are not (all_decodes: decodes)."""
    n = queue.shape[0]
    for place in range(n):
        ongoing = state.requests[queue[place], ONGOING] == 1.0
        if ongoing or (all_decodes and not is_decoding(requests[queue[place]])):
            plan[place].victim_key = 0.0
    keep_best(plan, n, slots)
    for place in range(n):
        if not is_decoding(requests[queue[place]]):
            plan[place].victim_key = 0.0
        elif state.requests[queue[place], ONGOING] == 1.0:
            plan[place].victim_key = 1.0


@kernel
def keep_best(plan, n, slots):
    """Of the marked places keep the mark of the `slots` best. Returns their number; they are plan[i].victim_tier.

    These are a heap of the best seen so far, the worst of them at its root.
    """
    size = 0
    for place in range(n):
        if plan[place].victim_key != 1.0:
            continue
        if size < slots:
            plan[size].victim_tier = place
            size += 1
            rise(plan, size - 1)
        elif ranks_before(plan, place, plan[0].victim_tier):
            plan[plan[0].victim_tier].victim_key = 0.0
            plan[0].victim_tier = place
            sink(plan, size)
        else:
            plan[place].victim_key = 0.0
    return size


@kernel
def rise(plan, child):
    """Move an entry of the heap up while it ranks after its parent."""
    while child > 0:
        parent = (child - 1) // 2
        if not ranks_before(plan, plan[parent].victim_tier, plan[child].victim_tier):
            return
        plan[parent].victim_tier, plan[child].victim_tier = plan[child].victim_tier, plan[parent].victim_tier
        child = parent


@kernel
def sink(plan, size):
    """Move the root of the heap down while a child ranks after it."""
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and ranks_before(plan, plan[child].victim_tier, plan[child + 1].victim_tier):
            child += 1
        if not ranks_before(plan, plan[parent].victim_tier, plan[child].victim_tier):
            return
        plan[parent].victim_tier, plan[child].victim_tier = plan[child].victim_tier, plan[parent].victim_tier
        parent = child
