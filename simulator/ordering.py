"""Visiting an engine's queue in rank order without sorting what is never visited.

Positions of the queue are handed out in windows: the first ranked ones, sorted, then the next. A queue that the ranks
leave almost as it is, the common case, is one window, and so is one that is not much longer than the last batch. Of
others one pass collects what ranks up to a bound, and only this is sorted. Where the packer came to in the last batch
tells the bound of the first window; else a sample of the queue does, and the next window is twice as long, so that
visiting all of n stays below n log n.

Ranks change slowly. So each position keeps its turn, its place in the order of the last batch, and a window put in that
order first is nearly sorted: what breaks it is taken out, sorted, and merged in again. (Sorting from scratch takes ten
times as long: each comparison is a coin toss, and the processor guesses wrong half of the time.) Turns and the bound
are hints: with any others the order is the same.
"""

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.features import HAS_AHEAD
from servegym.simulator.requests import is_decoding
from servegym.simulator.types import LEAVE_OUT, NO_LIMIT

FIRST_WINDOW = 64
SAMPLE = 64
FEW_MOVED = 16  # and one for each position so far: more make a queue out of order
FEWER = 4  # one for so many positions, where turns can put the whole queue in order instead
MARGIN = 8  # of the first window, in requests, besides a share
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
def whole_queue(orders, ranks, turns, engine, packing):
    """The positions not left out, sorted, if they rank almost in the order of the queue, or are not many more than the
    last batch had.

    orders, turns: as for `next_window`. Returns their number; OUT_OF_ORDER, if they do not; NOT_NUMBERS, if a key is
    none.
    """
    order, length = orders[0], engine.queue_length
    n, begin = in_order(order, ranks, length)
    if begin == length:
        return n
    by_turns = length <= max(FIRST_WINDOW, 2 * engine.last_batch_length)
    if not by_turns or engine.visits.turns == 0:
        n = almost_in_order(order, ranks, n, begin, length, FEWER if by_turns else 1)
        if n != OUT_OF_ORDER or not by_turns:
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
    sort_by_turns(orders, n, ranks, turns, engine.visits.turns, packing)
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
def insert(order, ranks, n, position, tier, key):
    """Put a position, behind which no other is so far, where it ranks among order[:n], which are sorted; returns where
    that is."""
    i = n
    while i > 0:
        before = ranks[order[i - 1]]
        if before.tier < tier or (before.tier == tier and before.key <= key):
            break
        order[i] = order[i - 1]
        i -= 1
    order[i] = position
    return i


@kernel
def listed_ones(orders, ranks, listed, turns, most, packing):
    """The positions that are listed and not left out, sorted. Returns their number; NOT_NUMBERS as `whole_queue`.

    orders, turns: as for `next_window`. most: as for `sort_by_turns`.
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
        sort_by_turns(orders, n, ranks, turns, most, packing)
    elif not in_order:
        sort(order, ranks, n)
    return n


@kernel
def leave_out_unlisted(ranks, limits, length):
    """Rank who is not listed, for those who look at everybody; then nobody is listed any more."""
    if limits.listed >= NO_LIMIT:
        return
    k = 0
    for position in range(length):
        if k < limits.listed and ranks[k].listed == position:
            k += 1
        else:
            ranks[position].tier, ranks[position].key = LEAVE_OUT, 0.0
    limits.listed = NO_LIMIT


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
def bring_forward(order, ranks, n, size):
    """Bring some `size` of order[:n] that rank first to its start, in rank order; returns how many."""
    kept = n
    if n > 2 * max(size, SAMPLE):
        for i in range(SAMPLE):
            of_sample = i * (n // SAMPLE)
            order[i], order[of_sample] = order[of_sample], order[i]
        sort(order, ranks, SAMPLE)
        bound, kept = order[size * SAMPLE // n + 1], 0
        for i in range(n):
            position = order[i]
            if not ranks_before(ranks, bound, position):
                order[i], order[kept] = order[kept], position
                kept += 1
    sort(order, ranks, kept)
    return kept


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
def next_window(orders, ranks, turns, engine, last, requests, queue, packing):
    """Write the positions that rank first after `last`, sorted; returns their number and if there may be more.

    orders: int32[3, length or longer]; the first row is written, the others are to work with. turns: int32[as long], of
    each position, from the last batch. NOT_NUMBERS instead of
    their number, where a key among them is none: it does not rank after the bound, so it is among them.
    """
    order = orders[0]
    length, visits = engine.queue_length, engine.visits
    more, tier, key = True, visits.bound_tier, visits.bound_key
    if last >= 0 or packing.windows > 0 or visits.turns == 0:
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
    sort_by_turns(orders, n, ranks, turns, visits.turns, packing)
    return n, more


@kernel
def sort_by_turns(orders, n, ranks, turns, most, packing):
    """Sort orders[0][:n], which begins in the order of the last batch, and give each a turn for the next.

    most: greater than any turn that the last batch gave.
    """
    order, slots, loose, apart = orders[0], orders[1], orders[2], 0
    most = min(most, slots.shape[0])
    for turn in range(most):
        slots[turn] = -1
    for i in range(n):
        turn = turns[order[i]]
        if 0 < turn < most and slots[turn] < 0:
            slots[turn] = order[i]
        else:
            loose[apart] = order[i]
            apart += 1
    in_turn(order, slots, most, loose, apart, ranks)
    given = packing.turns
    for i in range(n):
        turns[order[i]] = given + 1 + i
    packing.turns = given + n


@kernel
def in_turn(order, slots, turns, loose, apart, ranks):
    """Sort the positions in slots[:turns] (-1: none) and loose[:apart] into `order`.

    What has been taken out is often in order itself: all of a level that others have sunk behind.
    """
    kept, apart = take_out(slots, turns, order, loose, apart, ranks)
    again, few = take_out(loose, apart, slots, loose, 0, ranks)
    sort(loose, ranks, few)
    merge(slots, again, loose, few, ranks)
    merge(order, kept, slots, apart, ranks)


@kernel
def take_out(positions, length, kept_ones, loose, apart, ranks):
    """Write which of positions[:length] (-1: none) follow each other in order, and behind loose[:apart] the others:
    who ranks before the one ahead of it, or that one, if it is the one that is out of place. Returns how many are in
    each."""
    kept = 0
    for i in range(length):
        position = positions[i]
        if position < 0:
            continue
        if kept > 0 and ranks_before(ranks, position, kept_ones[kept - 1]):
            if kept == 1 or ranks_before(ranks, kept_ones[kept - 2], position):
                position, kept_ones[kept - 1] = kept_ones[kept - 1], position
            loose[apart] = position
            apart += 1
        else:
            kept_ones[kept] = position
            kept += 1
    return kept, apart


@kernel
def merge(order, n, others, count, ranks):
    """Merge others[:count] into order[:n], both in order."""
    i, j = n - 1, count - 1
    for k in range(n + count - 1, -1, -1):
        if j < 0:
            break
        if i >= 0 and ranks_before(ranks, others[j], order[i]):
            order[k] = order[i]
            i -= 1
        else:
            order[k] = others[j]
            j -= 1


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
    if packing.turns > 0:  # batches of two kinds may take turns, and each is to find its own
        visits.turns = max(packing.turns + 1, visits.turns - visits.turns // 8)
    if packing.admitting == 1 and packing.window_length > 0:
        remember_bound(visits, packing, order, ranks)


@kernel
def first_ranked(ranks, length):
    """The first position in rank order, of those left out if all are."""
    first, tier, key = 0, ranks[0].tier, ranks[0].key
    for position in range(1, length):
        rank = ranks[position]
        if rank.tier < tier or (rank.tier == tier and rank.key < key):
            first, tier, key = position, rank.tier, rank.key
    return first


@kernel
def first_to_run(ranks, limits, length):
    """The same where some are listed, and one of them can run."""
    if limits.listed >= NO_LIMIT:
        return first_ranked(ranks, length)
    first = ranks[0].listed
    for k in range(1, limits.listed):
        if ranks_before(ranks, ranks[k].listed, first):
            first = ranks[k].listed
    return first
