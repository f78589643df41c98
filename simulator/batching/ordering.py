"""The order of ranks: comparing two requests, finding the first, sorting a queue.

Ranks change slowly. So each position keeps its place in the order of the last batch, and positions in that order are
nearly sorted: those that break it are taken out, sorted, and merged in again. Sorting from scratch takes ten times as
long, as the processor predicts half of the comparisons wrong. The previous order is a hint: the result does not depend
on it.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.types import LEAVE_OUT, NO_LIMIT

SAMPLE = 64  # positions in a sample of a long queue
GAPS = (1, 4, 10, 23, 57, 132, 301, 701, 1577, 3548, 7983, 17961, 40412, 90927, 204585)  # Ciura, then 2.25 times


@kernel
def ranks_before(ranks, a, b):
    """Return whether queue position a runs before position b: lower (tier, key), then the earlier position."""
    if ranks[a].tier != ranks[b].tier:
        return ranks[a].tier < ranks[b].tier
    if ranks[a].key != ranks[b].key:
        return ranks[a].key < ranks[b].key
    return a < b


@kernel
def is_evicted_before(ranks, a, b):
    """Return whether queue position a is evicted before position b: higher victim rank, then the later position."""
    if ranks[a].victim_tier != ranks[b].victim_tier:
        return ranks[a].victim_tier > ranks[b].victim_tier
    if ranks[a].victim_key != ranks[b].victim_key:
        return ranks[a].victim_key > ranks[b].victim_key
    return a > b


@kernel
def leave_out_unlisted(ranks, limits, length):
    """Give unlisted requests the rank LEAVE_OUT, for kernels that visit the whole queue, and clear the list."""
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
def first_ranked(ranks, length):
    """Return the first position in rank order; if all are left out, the first of these."""
    first, tier, key = 0, ranks[0].tier, ranks[0].key
    for position in range(1, length):
        rank = ranks[position]
        if rank.tier < tier or (rank.tier == tier and rank.key < key):
            first, tier, key = position, rank.tier, rank.key
    return first


@kernel
def first_to_run(ranks, limits, length):
    """Return the first position in rank order among the listed ones, one of which can run; without a list, of all."""
    if limits.listed >= NO_LIMIT:
        return first_ranked(ranks, length)
    first = ranks[0].listed
    for k in range(1, limits.listed):
        if ranks_before(ranks, ranks[k].listed, first):
            first = ranks[k].listed
    return first


@kernel
def sort(order, ranks, n):
    """Sort order[:n] by rank with Shell's method, which is an insertion sort where ranks are nearly in order.

    It has no recursion, as Numba cannot cache a kernel that calls itself.
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
    """Move about `size` of the first-ranked positions to the start of order[:n], sorted, and return their number."""
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
def insert(order, ranks, n, position, tier, key):
    """Insert a position, greater than all so far, into the sorted order[:n]; return the index that it gets."""
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
def sort_by_previous_order(orders, n, ranks, previous_order, most, packing):
    """Sort orders[0][:n] by rank, starting from the order of the last batch, and write the places for the next one.

    most: greater than any place in previous_order.
    """
    order, by_place, loose, apart = orders[0], orders[1], orders[2], 0
    most = min(most, by_place.shape[0])
    for place in range(most):
        by_place[place] = -1
    for i in range(n):
        place = previous_order[order[i]]
        if 0 < place < most and by_place[place] < 0:
            by_place[place] = order[i]
        else:
            loose[apart] = order[i]
            apart += 1
    in_previous_order(order, by_place, most, loose, apart, ranks)
    given = packing.places_given
    for i in range(n):
        previous_order[order[i]] = given + 1 + i
    packing.places_given = given + n


@kernel
def in_previous_order(order, by_place, places, loose, apart, ranks):
    """Sort the positions in by_place[:places] (-1: none) and loose[:apart] into `order`.

    The positions taken out are often in order themselves, such as a priority level that others moved behind.
    """
    kept, apart = take_out(by_place, places, order, loose, apart, ranks)
    again, few = take_out(loose, apart, by_place, loose, 0, ranks)
    sort(loose, ranks, few)
    merge(by_place, again, loose, few, ranks)
    merge(order, kept, by_place, apart, ranks)


@kernel
def take_out(positions, length, in_place, loose, apart, ranks):
    """Split positions[:length] (-1: none) into in_place, which are in rank order, and the others, behind loose[:apart].

    Of two neighbours in the wrong order, the one that does not fit its other neighbour is taken out. Returns both
    lengths. `loose` may be `positions`, as no more is written than has been read.
    """
    kept = 0
    for i in range(length):
        position = positions[i]
        if position < 0:
            continue
        if kept > 0 and ranks_before(ranks, position, in_place[kept - 1]):
            if kept == 1 or ranks_before(ranks, in_place[kept - 2], position):
                position, in_place[kept - 1] = in_place[kept - 1], position
            loose[apart] = position
            apart += 1
        else:
            in_place[kept] = position
            kept += 1
    return kept, apart


@kernel
def merge(order, n, others, count, ranks):
    """Merge the sorted others[:count] into the sorted order[:n]."""
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
