"""Visiting an engine's queue in rank order without sorting what is never visited.

The packer gets positions of the queue in windows: the first-ranked ones, sorted, then the next. The whole queue is one
window if it is almost in rank order already, the common case, or not much longer than the last batch. Otherwise one
pass collects the positions ranked up to a bound, and only these are sorted (ordering.py). The first window's bound is
where the packer stopped in the last batch, else it comes from a sample of the queue; each further window is twice as
long, so that visiting all n positions takes O(n log n). The bound is a hint: the order does not depend on it.
"""

import numpy as np

from servegym.simulator.batching.ordering import SAMPLE, insert, ranks_before, sort, sort_by_previous_order
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.memory_hooks import is_barred
from servegym.simulator.records.requests import is_decoding
from servegym.simulator.records.types import LEAVE_OUT

FIRST_WINDOW = 64
FEW_MOVED = 16  # moves of an insertion sort, plus one for each position: with more, a queue is out of order
FEWER = 4  # plus one for so many positions only, where sorting by the previous order is possible instead
MARGIN = 8  # requests by which the first window goes beyond a quarter more than was visited
OUT_OF_ORDER, NOT_NUMBERS = -1, -2  # results in place of a number of positions; NOT_NUMBERS: a key is nan


@kernel
def in_order(order, ranks, length):
    """Write to `order` the positions that are not left out, up to the first that is out of rank order or has a nan key.

    Returns their number, and that first position (`length` if there is none).
    """
    n, tier, key = 0, np.int64(0), 0.0
    for position in range(length):
        rank = ranks[position]
        if rank.tier >= LEAVE_OUT:
            continue
        if n > 0 and rank.tier == tier:
            follows = rank.key >= key  # false for nan
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
    """Sort the positions that are not left out, if the queue is almost in rank order or not much longer than the last
    batch.

    orders, previous_order: as for `next_window`. Returns their number, OUT_OF_ORDER if it is neither, or NOT_NUMBERS.
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
    """Insert the positions from `begin` on into the sorted order[:n].

    Returns the new length, NOT_NUMBERS, or OUT_OF_ORDER after more moves than FEW_MOVED + one for `share` positions.
    """
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
def listed_positions(orders, ranks, listed, previous_order, most, packing):
    """Sort the positions that are listed and not left out. Returns their number, or NOT_NUMBERS.

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
def may_get_chunk(request, packing):
    """Return whether the request may still get a chunk: admission is open, and so is its phase."""
    if packing.admitting == 0 and request.blocks == 0:
        return False
    if request.blocks == 0 and is_barred(request, packing):
        return False
    if packing.decodes_fit and packing.prefills_fit:
        return True
    if request.blocks == 0 and request.num_output_tokens > 0:  # with cached tokens it may be a decode
        return packing.decodes_fit == 1 or packing.prefills_fit == 1
    return packing.decodes_fit == 1 if is_decoding(request) else packing.prefills_fit == 1


@kernel
def may_be_visited(ranks, last, position, requests, queue, packing):
    """Return whether a position ranks after `last` (-1: any), is not left out, and may still get a chunk."""
    if ranks[position].tier >= LEAVE_OUT or (last >= 0 and not ranks_before(ranks, last, position)):
        return False
    return may_get_chunk(requests[queue[position]], packing)


@kernel
def sampled_bound(order, ranks, length, last, size, requests, queue, packing):
    """Return the position that bounds a window of about `size` positions after `last`, from a sample; -1: the end."""
    sampled = 0
    for position in range(0, length, max(1, length // SAMPLE)):
        if may_be_visited(ranks, last, position, requests, queue, packing):
            order[sampled] = position
            sampled += 1
    within = size * SAMPLE // length + 1
    if length <= SAMPLE or within >= sampled:
        return -1
    sort(order, ranks, sampled)
    return order[within]


@kernel
def next_window(orders, ranks, previous_order, engine, last, requests, queue, packing):
    """Write the positions that rank next after `last`, sorted; return their number, and whether there may be more.

    orders: int32[3, >= length]; row 0 is written, the others are scratch. previous_order: int32[>= length], the place
    of each position in the last batch. The number is NOT_NUMBERS if a key is nan.
    """
    order = orders[0]
    length, visits = engine.queue_length, engine.visits
    more, tier, key = True, visits.bound_tier, visits.bound_key
    if last >= 0 or packing.windows > 0 or visits.previous_length == 0:
        bound = -1
        if packing.admitting == 1:
            # A window a quarter longer than the last batch is mostly enough; each further one is twice as long.
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
        if not admitting and requests[queue[position]].blocks == 0:  # running requests are few
            continue
        rank = ranks[position]
        if rank.tier > tier or (rank.tier == tier and rank.key > key):
            continue
        if may_be_visited(ranks, last, position, requests, queue, packing):
            if rank.key != rank.key:
                return NOT_NUMBERS, False
            order[n] = position
            n += 1
    sort_by_previous_order(orders, n, ranks, previous_order, visits.previous_length, packing)
    return n, more


@kernel
def remember_bound(visits, packing, order, ranks):
    """Set the bound of the next batch's first window: what the packer has visited for this one, and a quarter more."""
    visited = packing.visited
    last = ranks[order[min(packing.window_length - 1, visited + visited // 4 + MARGIN)]]
    visits.bound_tier, visits.bound_key = last.tier, last.key


@kernel
def stop_admitting(visits, packing, order, ranks):
    """Admit no more waiting requests to this batch; later windows have running requests only, which are few."""
    if packing.admitting == 1 and packing.window_length > 0:
        remember_bound(visits, packing, order, ranks)
    packing.admitting = 0


@kernel
def keep_visits(visits, packing, order, ranks):
    """Keep the places and the bound of this batch for the engine's next one."""
    if packing.places_given > 0:  # slow decay, as prefill and decode batches may alternate
        visits.previous_length = max(packing.places_given + 1, visits.previous_length - visits.previous_length // 8)
    if packing.admitting == 1 and packing.window_length > 0:
        remember_bound(visits, packing, order, ranks)
