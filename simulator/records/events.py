"""The queue of future events, a heap ordered by (time, kind, index); and the timeline of past events.

Each event of the heap has four below it: half as many levels as with two, and comparing the four needs no branch, which
the processor would predict wrong half of the time.
"""

from servegym.simulator.compilation.kernels import inlined_kernel, kernel

WIDTH = 4  # events below one in the heap


@kernel
def drop_of_engine(items, first, end, e):
    """Move the items of items[first:end] that are not of engine e to items[0:], in order, and return their number."""
    kept = 0
    for k in range(first, end):
        if items[k].engine != e:
            items[kept] = items[k]
            kept += 1
    return kept


@kernel
def before(a, b):
    """Return whether event a comes before event b, by (time, kind, index)."""
    if a.time_s == b.time_s:
        return is_before(a, b.time_s, b.kind, b.index)
    return a.time_s < b.time_s


@kernel
def is_before(event, time_s, kind, index):
    """Return whether an event comes before one of this time, kind and index."""
    if event.time_s != time_s:
        return event.time_s < time_s
    if event.kind != kind:
        return event.kind < kind
    return event.index < index


@kernel
def place(event, time_s, kind, index):
    """Write an event."""
    event.time_s, event.kind, event.index = time_s, kind, index


@inlined_kernel
def push(events, status, time_s, kind, index):
    """Add an event. `events` always has room: an engine has at most two at a time."""
    i = status.events
    status.events += 1
    place(events[i], time_s, kind, index)
    rise(events, i)


@kernel
def pop(events, status):
    """Remove the first event, events[0]; the caller has read it."""
    remove_at(events, status, 0)


@kernel
def remove(events, status, kind, index):
    """Remove the event with this kind and index, if there is one."""
    for i in range(status.events):
        if events[i].kind == kind and events[i].index == index:
            remove_at(events, status, i)
            return


@kernel
def remove_at(events, status, i):
    """Remove the event at position i of the heap: move the last event there, and then down or up to its place."""
    status.events -= 1
    n = status.events
    if i == n:
        return
    place(events[i], events[n].time_s, events[n].kind, events[n].index)
    rise(events, sink(events, n, i))


@inlined_kernel
def sink(events, n, i):
    """Move the event at position i of a heap of n down to its place, and return its new position.

    The events that it passes move up by one. It is written once, at the end.
    """
    time_s, kind, index = events[i].time_s, events[i].kind, events[i].index
    while True:
        child = first_below(events, n, i)
        if child >= n:
            break
        above = events[child]
        if not is_before(above, time_s, kind, index):
            break
        place(events[i], above.time_s, above.kind, above.index)
        i = child
    place(events[i], time_s, kind, index)
    return i


@inlined_kernel
def first_below(events, n, i):
    """Return the position of the first of the events below position i in a heap of n; n or more: there is none."""
    child = WIDTH * i + 1
    if child + WIDTH <= n:
        other = child + 2
        child += before(events[child + 1], events[child])
        other += before(events[other + 1], events[other])
        return child + (other - child) * before(events[other], events[child])
    for other in range(child + 1, n):
        if before(events[other], events[child]):
            child = other
    return child


@inlined_kernel
def rise(events, i):
    """Move the event at position i of the heap up to its place."""
    time_s, kind, index = events[i].time_s, events[i].kind, events[i].index
    while i > 0:
        above = events[(i - 1) // WIDTH]
        if is_before(above, time_s, kind, index):
            break
        place(events[i], above.time_s, above.kind, above.index)
        i = (i - 1) // WIDTH
    place(events[i], time_s, kind, index)


@kernel
def make_due(run, e):
    """Insert idle engine e into run.due, sorted by index: it may start an iteration after this instant's events."""
    status, due = run.status[0], run.due
    i = status.due
    while i > 0 and due[i - 1] > e:
        i -= 1
    if i > 0 and due[i - 1] == e:
        return
    for k in range(status.due, i, -1):
        due[k] = due[k - 1]
    due[i] = e
    status.due += 1


@kernel
def note(run, kind, engine, request, tokens, value):
    """Write an event with the present time to the timeline. Call it only if status.recording is set."""
    status = run.status[0]
    event = run.timeline[status.timeline_used]
    status.timeline_used += 1
    event.time_s = status.now_s
    event.kind = kind
    event.engine = engine
    event.request = request
    event.tokens = tokens
    event.value = value


@kernel
def events_left(run):
    """Return how many more events the timeline has room for."""
    return run.timeline.shape[0] - run.status[0].timeline_used
