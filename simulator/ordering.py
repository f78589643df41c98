"""Visiting an engine's queue in rank order without sorting what is never visited.

Places of the queue are handed out in windows: the first ranked ones, sorted, then the next. A queue that the ranks
leave as it is, the common case, is one window as it is. Otherwise a sample of the queue tells up to which rank a
window of the wanted size goes; one pass collects what ranks before that, and only this is sorted. The next window is
twice as long, so that visiting all of n stays below n log n. (A heap of the best seen took twice as long.)
"""

from servegym.simulator.compilation import kernel
from servegym.simulator.refusals import are_numbers
from servegym.simulator.requests import is_decoding
from servegym.simulator.types import LEAVE_OUT

FIRST_WINDOW = 64
SAMPLE = 64
OUT_OF_ORDER, NOT_NUMBERS = -1, -2  # instead of a number of places
GAPS = (1, 4, 10, 23, 57, 132, 301, 701, 1577, 3548, 7983, 17961, 40412, 90927, 204585)  # Ciura, then 2.25 times


@kernel
def ranks_before(plan, a, b):
    """Whether queue place a runs before queue place b: lower (tier, key), then the earlier place."""
    if plan[a].tier != plan[b].tier:
        return plan[a].tier < plan[b].tier
    if plan[a].key != plan[b].key:
        return plan[a].key < plan[b].key
    return a < b


@kernel
def gives_up_before(plan, a, b):
    """Whether queue place a gives up its memory before queue place b: higher victim rank, then the later place."""
    if plan[a].victim_tier != plan[b].victim_tier:
        return plan[a].victim_tier > plan[b].victim_tier
    if plan[a].victim_key != plan[b].victim_key:
        return plan[a].victim_key > plan[b].victim_key
    return a > b


@kernel
def whole_queue(order, plan, length):
    """The places not left out, if they rank in the order of the queue or fit the first window, sorted.

    Returns their number; OUT_OF_ORDER, if they do not; NOT_NUMBERS, if a key is none. (What ranks before another of its
    tier has a key that is a number, and so has the other: only where tiers begin there is something to look at.)
    """
    n = 0
    in_order = True
    for place in range(length):
        if plan[place].tier < LEAVE_OUT:
            if in_order and n > 0:
                if not ranks_before(plan, order[n - 1], place):
                    in_order = False
                    if length > FIRST_WINDOW:
                        return OUT_OF_ORDER
                elif plan[order[n - 1]].tier != plan[place].tier and plan[place].key != plan[place].key:
                    return NOT_NUMBERS
            order[n] = place
            n += 1
    if not in_order:
        if not are_numbers(plan, length):
            return NOT_NUMBERS
        sort(order, plan, n)
    elif n > 0 and plan[order[0]].key != plan[order[0]].key:
        return NOT_NUMBERS
    return n


@kernel
def sort(order, plan, n):
    """Sort order[:n] by rank: Shell's method, an insertion sort where ranks are nearly in order already.

    (No recursion: Numba cannot cache a kernel that calls itself.)
    """
    first = len(GAPS) - 1
    while first > 0 and GAPS[first] >= n:
        first -= 1
    for g in range(first, -1, -1):
        gap = GAPS[g]
        for i in range(gap, n):
            place = order[i]
            j = i
            while j >= gap and ranks_before(plan, place, order[j - gap]):
                order[j] = order[j - gap]
                j -= gap
            order[j] = place


@kernel
def can_get_something(request, packing):
    """False where the batch has closed: to requests without memory, or to a phase for which no time is left."""
    if packing.admitting == 0 and request.blocks == 0:
        return False
    if packing.decodes_fit and packing.prefills_fit:
        return True
    return packing.decodes_fit == 1 if is_decoding(request) else packing.prefills_fit == 1


@kernel
def is_ahead(plan, last, place, requests, queue, packing):
    """Whether a place ranks after `last` (-1: from the start), is not left out, and can still get something."""
    if plan[place].tier >= LEAVE_OUT or (last >= 0 and not ranks_before(plan, last, place)):
        return False
    return can_get_something(requests[queue[place]], packing)


@kernel
def next_window(order, plan, length, last, size, requests, queue, packing):
    """Write about `size` places that rank first after `last`, sorted; returns their number and if there are more.

    NOT_NUMBERS instead, where a key among them is none: it does not rank after `bound`, so it is among them.
    """
    sampled = 0
    for place in range(0, length, max(1, length // SAMPLE)):
        if is_ahead(plan, last, place, requests, queue, packing):
            order[sampled] = place
            sampled += 1
    bound = -1  # the place up to which the window goes
    if sampled > 0 and length > SAMPLE:
        sort(order, plan, sampled)
        within = size * SAMPLE // length + 1
        if within < sampled:
            bound = order[within]
    n = 0
    for place in range(length):
        if bound >= 0 and ranks_before(plan, bound, place):
            continue
        if is_ahead(plan, last, place, requests, queue, packing):
            if plan[place].key != plan[place].key:
                return NOT_NUMBERS, False
            order[n] = place
            n += 1
    sort(order, plan, n)
    return n, bound >= 0


@kernel
def first_ranked(plan, length):
    """The first place in rank order, of those left out if all are."""
    first = 0
    for place in range(1, length):
        if ranks_before(plan, place, first):
            first = place
    return first
