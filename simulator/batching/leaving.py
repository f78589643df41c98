"""Removing requests from the queue of their engine; the others keep their order."""

from servegym.simulator.compilation.kernels import inlined_kernel, kernel


@kernel
def place_of(numbers, number):
    """Return the index of a number, which must be among `numbers`."""
    place = 0
    while numbers[place] != number:
        place += 1
    return place


@kernel
def drop_first(numbers):
    """Remove numbers[0] by moving the others up. It takes a slice, as the compiler vectorises the loop then."""
    for i in range(numbers.shape[0] - 1):
        numbers[i] = numbers[i + 1]


@kernel
def drop(numbers, length, number):
    """Remove a number from numbers[:length]."""
    drop_first(numbers[place_of(numbers, number) : length])


@kernel
def leave(engine, queue, previous_order, requests, outcomes):
    """Remove requests that have finished or were sent elsewhere from the queue, in one pass."""
    kept = 0
    for position in range(engine.queue_length):
        r = queue[position]
        out = requests[r].num_output_tokens - outcomes[r].under_way
        if out < outcomes[r].output_tokens and requests[r].engine == engine.index:
            queue[kept], previous_order[kept] = r, previous_order[position]
            kept += 1
    engine.queue_length = kept


@inlined_kernel
def drop_finished(engine, queue, previous_order, entries, length, requests, outcomes):
    """Remove the finished requests of a batch of `length` entries from the queue, one by one."""
    for k in range(length):
        r = entries[k].request
        if requests[r].num_output_tokens - outcomes[r].under_way < outcomes[r].output_tokens:
            continue
        position = place_of(queue, r)
        drop_first(queue[position : engine.queue_length])
        if engine.visits.previous_length > 0:
            drop_first(previous_order[position : engine.queue_length])
        engine.queue_length -= 1
