"""A heap of the best-ranked positions of a queue, with the worst at its root: the best k of n take O(n log k)."""

from servegym.policy import kernel, ranks_before


@kernel
def offer(heap, filled, slots, position, ranks):
    """Put a position into the heap if there is room or it ranks before the worst, and return the new size."""
    if filled < slots:
        heap[filled] = position
        filled += 1
        if filled == slots:
            for parent in range(slots // 2 - 1, -1, -1):
                sink(heap, slots, parent, ranks)
    elif ranks_before(ranks, position, heap[0]):
        heap[0] = position
        sink(heap, slots, 0, ranks)
    return filled


@kernel
def sink(heap, size, parent, ranks):
    """Move an entry of the heap down while a child ranks after it."""
    position = heap[parent]
    while True:
        child = 2 * parent + 1
        if child + 1 < size and ranks_before(ranks, heap[child], heap[child + 1]):
            child += 1
        if child >= size or not ranks_before(ranks, position, heap[child]):
            heap[parent] = position
            return
        heap[parent] = heap[child]
        parent = child
