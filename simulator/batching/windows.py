"""Visiting an engine's queue in rank order without sorting what is never visited.

Positions of the queue are handed out in windows: the first ranked ones, sorted, then the next. A queue that the ranks
leave almost as it is, the common case, is one window, and so is one that is not much longer than the last batch. Of
others one pass collects what ranks up to a bound, and only this is sorted (ordering.py). Where the packer came to in
the last batch tells the bound of the first window; else a sample of the queue does, and the next window is twice as
long, so that visiting all of n stays below n log n. The bound is a hint: with any other the order is the same.
"""

import numpy as np

from servegym.simulator.batching.ordering import SAMPLE, insert, ranks_before, sort, sort_by_previous_order
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.memory_hooks import is_barred
from servegym.simulator.records.requests import is_decoding
from servegym.simulator.records.types import LEAVE_OUT

FIRST_WINDOW = 64
FEW_MOVED = 16  # and one for each position so far: more make a queue out of order
FEWER = 4  # one for so many positions, where the previous order can put the whole queue in order instead
MARGIN = 8  # of the first window, in requests, besides a share
OUT_OF_ORDER, NOT_NUMBERS = -1, -2  # instead of a number of positions


@kernel
def in_order(order, ranks, length):
    """Write the positions not left out, up to the first that ranks before the one ahead of it, or by no number. Returns
    how many, and the position of that one (length: there is none)."""
    n, tier, key = 0, np.int64(0), 0.0
    for position in range(length):
        rank = ranks[position]
        if rank.tier >= LEAVE_OUT:
            continue
        if n > 0 and rank.tier == tier:
            follows = rank.key >= key  # not so where it is no number
        else:
            follows = (n == 0 or rank.tier > tier) and rank.key == rank.key
        if not follows:
            return n, position
        tier, key = rank.tier, rank.key
        order[n] = position
        n += 1
    return n, length


@kernel
def whole_queue(orders, ranks, previous_order, engine, packing):
    """The positions not left out, sorted, if they rank almost in the order of the queue, or are not many more than the
    last batch had.

    orders, previous_order: as for `next_window`. Returns their number; OUT_OF_ORDER, if they do not; NOT_NUMBERS, if a
    key is none.
    """
    order, length = orders[0], engine.queue_length
    n, begin = in_order(order, ranks, length)
    if begin == length:
        return n
    by_previous_order = length <= max(FIRST_WINDOW, 2 * engine.last_batch_length)
    if not by_previous_order or engine.visits.previous_length == 0:
        n = almost_in_order(order, ranks, n, begin, length, FEWER if by_previous_order else 1)
        if n != OUT_OF_ORDER or not by_previous_order:
            return n
    n = 0
    for position in range(length):
        rank = ranks[position]
        if rank.tier >= LEAVE_OUT:
            continue
        if rank.key != rank.key:
            return NOT_NUMBERS
        order[n] = position
        n += 1
    sort_by_previous_order(orders, n, ranks, previous_order, engine.visits.previous_length, packing)
    return n


@kernel
def almost_in_order(order, ranks, n, begin, length, share):
    """Put the positions from `begin` on where they rank among order[:n], which are sorted. Returns how many there are
    then; NOT_NUMBERS as `whole_queue`; OUT_OF_ORDER, if that moves more than FEW_MOVED, and one for `share`."""
    moved = 0
    for position in range(begin, length):
        rank = ranks[position]
        if rank.tier >= LEAVE_OUT:
            continue
        if rank.key != rank.key:
            return NOT_NUMBERS
        moved += n - insert(order, ranks, n, position, rank.tier, rank.key)
        if moved > FEW_MOVED + position // share:
            return OUT_OF_ORDER
        n += 1
    return n


@kernel
def listed_ones(orders, ranks, listed, previous_order, most, packing):
    """The positions that are listed and not left out, sorted. Returns their number; NOT_NUMBERS as `whole_queue`.

    orders, previous_order: as for `next_window`. most: as for `sort_by_previous_order`.
    """
    order, n, in_order = orders[0], 0, True
    for k in range(listed):
        position = ranks[k].listed
        if ranks[position].key != ranks[position].key:
            return NOT_NUMBERS
        if ranks[position].tier < LEAVE_OUT:
            order[n] = position
            in_order = in_order and (n == 0 or ranks_before(ranks, order[n - 1], position))
            n += 1
    if n > FIRST_WINDOW and not in_order:
        sort_by_previous_order(orders, n, ranks, previous_order, most, packing)
    elif not in_order:
        sort(order, ranks, n)
    return n


@kernel
def can_get_something(request, packing):
    """False where the batch has closed: to requests without memory, or to a phase for which no time is left."""
    if packing.admitting == 0 and request.blocks == 0:
        return False
    if request.blocks == 0 and is_barred(request, packing):
        return False
    if packing.decodes_fit and packing.prefills_fit:
        return True
    if request.blocks == 0 and request.num_output_tokens > 0:  # it may find so much that it decodes
        return packing.decodes_fit == 1 or packing.prefills_fit == 1
    return packing.decodes_fit == 1 if is_decoding(request) else packing.prefills_fit == 1


@kernel
def is_ahead(ranks, last, position, requests, queue, packing):
    """Whether a position ranks after `last` (-1: from the start), is not left out, and can still get something."""
    if ranks[position].tier >= LEAVE_OUT or (last >= 0 and not ranks_before(ranks, last, position)):
        return False
    return can_get_something(requests[queue[position]], packing)


@kernel
def sampled_bound(order, ranks, length, last, size, requests, queue, packing):
    """A position up to which a window of about `size` after `last` goes; -1: to the end."""
    sampled = 0
    for position in range(0, length, max(1, length // SAMPLE)):
        if is_ahead(ranks, last, position, requests, queue, packing):
            order[sampled] = position
            sampled += 1
    within = size * SAMPLE // length + 1
    if length <= SAMPLE or within >= sampled:
        return -1
    sort(order, ranks, sampled)
    return order[within]


@kernel
def next_window(orders, ranks, previous_order, engine, last, requests, queue, packing):
    """Write the positions that rank first after `last`, sorted; returns their number and if there may be more.

    orders: int32[3, length or longer]; the first row is written, the others are to work with. previous_order:
    int32[as long], of each position, from the last batch. NOT_NUMBERS instead of
    their number, where a key among them is none: it does not rank after the bound, so it is among them.
    """
    order = orders[0]
    length, visits = engine.queue_length, engine.visits
    more, tier, key = True, visits.bound_tier, visits.bound_key
    if last >= 0 or packing.windows > 0 or visits.previous_length == 0:
        bound = -1
        if packing.admitting == 1:
            # As many as the last batch had requests, and some more, are most often enough; then twice as many.
            size = max(FIRST_WINDOW, engine.last_batch_length * 5 // 4) << min(packing.windows, 30)
            bound = sampled_bound(order, ranks, length, last, size, requests, queue, packing)
        more = bound >= 0
        if more:
            tier, key = ranks[bound].tier, ranks[bound].key
        else:
            tier, key = LEAVE_OUT, np.inf
    packing.windows += 1
    n, admitting = 0, packing.admitting == 1
    for position in range(length):
        if not admitting and requests[queue[position]].blocks == 0:  # of those with memory there are few
            continue
        rank = ranks[position]
        if rank.tier > tier or (rank.tier == tier and rank.key > key):
            continue
        if is_ahead(ranks, last, position, requests, queue, packing):
            if rank.key != rank.key:
                return NOT_NUMBERS, False
            order[n] = position
            n += 1
    sort_by_previous_order(orders, n, ranks, previous_order, visits.previous_length, packing)
    return n, more


@kernel
def remember_bound(visits, packing, order, ranks):
    """The first window of the next batch goes as far as the packer has come in this one, and a quarter further."""
    visited = packing.visited
    last = ranks[order[min(packing.window_length - 1, visited + visited // 4 + MARGIN)]]
    visits.bound_tier, visits.bound_key = last.tier, last.key


@kernel
def stop_admitting(visits, packing, order, ranks):
    """Close the batch to requests without memory. Those that hold some are few, and make a window by themselves."""
    if packing.admitting == 1 and packing.window_length > 0:
        remember_bound(visits, packing, order, ranks)
    packing.admitting = 0


@kernel
def keep_visits(visits, packing, order, ranks):
    """What the next batch of the engine is to know of this one."""
    if packing.places_given > 0:  # batches of two kinds may take turns, and each is to find its own
        visits.previous_length = max(packing.places_given + 1, visits.previous_length - visits.previous_length // 8)
    if packing.admitting == 1 and packing.window_length > 0:
        remember_bound(visits, packing, order, ranks)
