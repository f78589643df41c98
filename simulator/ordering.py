"""Visiting an engine's queue in rank order without sorting what is never visited.

Positions of the queue are handed out in windows: the first ranked ones, sorted, then the next. A queue that the ranks
leave as it is, the common case, is one window as it is. Otherwise a sample of the queue tells up to which rank a
window of the wanted size goes; one pass collects what ranks before that, and only this is sorted. The next window is
twice as long, so that visiting all of n stays below n log n. (A heap of the best seen took twice as long.)
"""

from servegym.simulator.compilation import kernel
from servegym.simulator.features import HAS_AHEAD
from servegym.simulator.refusals import are_numbers
from servegym.simulator.requests import is_decoding
from servegym.simulator.types import LEAVE_OUT

FIRST_WINDOW = 64
SAMPLE = 64
OUT_OF_ORDER, NOT_NUMBERS = -1, -2  # instead of a number of positions
GAPS = (1, 4, 10, 23, 57, 132, 301, 701, 1577, 3548, 7983, 17961, 40412, 90927, 204585)  # Ciura, then 2.25 times


@kernel
def ranks_before(ranks, a, b):
    """Whether queue position a runs before position b: lower (tier, key), then the earlier position."""
    if ranks[a].tier != ranks[b].tier:
        return ranks[a].tier < ranks[b].tier
    if ranks[a].key != ranks[b].key:
        return ranks[a].key < ranks[b].key
    return a < b


@kernel
def gives_up_before(ranks, a, b):
    """Whether queue position a gives up its memory before position b: higher victim rank, then the later position."""
    if ranks[a].victim_tier != ranks[b].victim_tier:
        return ranks[a].victim_tier > ranks[b].victim_tier
    if ranks[a].victim_key != ranks[b].victim_key:
        return ranks[a].victim_key > ranks[b].victim_key
    return a > b


@kernel
def whole_queue(order, ranks, length):
    """The positions not left out, if they rank in the order of the queue or fit the first window, sorted.

    Returns their number; OUT_OF_ORDER, if they do not; NOT_NUMBERS, if a key is none. (What ranks before another of its
    tier has a key that is a number, and so has the other: only where tiers begin there is something to look at.)
    """
    n = 0
    in_order = True
    for position in range(length):
        if ranks[position].tier < LEAVE_OUT:
            if in_order and n > 0:
                if not ranks_before(ranks, order[n - 1], position):
                    in_order = False
                    if length > FIRST_WINDOW:
                        return OUT_OF_ORDER
                elif ranks[order[n - 1]].tier != ranks[position].tier and ranks[position].key != ranks[position].key:
                    return NOT_NUMBERS
            order[n] = position
            n += 1
    if not in_order:
        if not are_numbers(ranks, length):
            return NOT_NUMBERS
        sort(order, ranks, n)
    elif n > 0 and ranks[order[0]].key != ranks[order[0]].key:
        return NOT_NUMBERS
    return n


@kernel
def sort(order, ranks, n):
    """Sort order[:n] by rank: Shell's method, an insertion sort where ranks are nearly in order already.

    (No recursion: Numba cannot cache a kernel that calls itself.)
    """
    first = len(GAPS) - 1
    while first > 0 and GAPS[first] >= n:
        first -= 1
    for g in range(first, -1, -1):
        gap = GAPS[g]
        for i in range(gap, n):
            position = order[i]
            j = i
            while j >= gap and ranks_before(ranks, position, order[j - gap]):
                order[j] = order[j - gap]
                j -= gap
            order[j] = position


@kernel
def can_get_something(request, packing):
    """False where the batch has closed: to requests without memory, or to a phase for which no time is left."""
    if packing.admitting == 0 and request.blocks == 0:
        return False
    if HAS_AHEAD and request.evicted > packing.evictions and request.blocks == 0:
        return False
    if packing.decodes_fit and packing.prefills_fit:
        return True
    if request.blocks == 0 and request.emitted_tokens > 0:  # it may find so much that it decodes
        return packing.decodes_fit == 1 or packing.prefills_fit == 1
    return packing.decodes_fit == 1 if is_decoding(request) else packing.prefills_fit == 1


@kernel
def is_ahead(ranks, last, position, requests, queue, packing):
    """Whether a position ranks after `last` (-1: from the start), is not left out, and can still get something."""
    if ranks[position].tier >= LEAVE_OUT or (last >= 0 and not ranks_before(ranks, last, position)):
        return False
    return can_get_something(requests[queue[position]], packing)


@kernel
def next_window(order, ranks, length, last, size, requests, queue, packing):
    """Write about `size` positions that rank first after `last`, sorted; returns their number and if there are more.

    NOT_NUMBERS instead, where a key among them is none: it does not rank after `bound`, so it is among them.
    """
    sampled = 0
    for position in range(0, length, max(1, length // SAMPLE)):
        if is_ahead(ranks, last, position, requests, queue, packing):
            order[sampled] = position
            sampled += 1
    bound = -1  # the position up to which the window goes
    if sampled > 0 and length > SAMPLE:
        sort(order, ranks, sampled)
        within = size * SAMPLE // length + 1
        if within < sampled:
            bound = order[within]
    n = 0
    for position in range(length):
        if bound >= 0 and ranks_before(ranks, bound, position):
            continue
        if is_ahead(ranks, last, position, requests, queue, packing):
            if ranks[position].key != ranks[position].key:
                return NOT_NUMBERS, False
            order[n] = position
            n += 1
    sort(order, ranks, n)
    return n, bound >= 0


@kernel
def first_ranked(ranks, length):
    """The first position in rank order, of those left out if all are."""
    first = 0
    for position in range(1, length):
        if ranks_before(ranks, position, first):
            first = position
    return first
