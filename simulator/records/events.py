"""The queue of future events: a binary heap ordered by time, then kind, then index. The timeline: what has happened."""

from servegym.simulator.compilation.kernels import inlined_kernel, kernel


@kernel
def drop_of_engine(items, first, end, e):
    """Of items[first:end] keep those that are of other engines than e, in order, from 0 on. Returns how many."""
    kept = 0
    for k in range(first, end):
        if items[k].engine != e:
            items[kept] = items[k]
            kept += 1
    return kept


@kernel
def before(a, b):
    """Whether event a comes before event b: the documented order of ties."""
    return is_before(a, b.time_s, b.kind, b.index)


@kernel
def is_before(event, time_s, kind, index):
    """Whether an event comes before another one."""
    if event.time_s != time_s:
        return event.time_s < time_s
    if event.kind != kind:
        return event.kind < kind
    return event.index < index


@kernel
def place(event, time_s, kind, index):
    """Write an event."""
    event.time_s, event.kind, event.index = time_s, kind, index


@kernel
def push(events, status, time_s, kind, index):
    """Add an event; `events` has room for two an engine."""
    i = status.events
    status.events += 1
    place(events[i], time_s, kind, index)
    rise(events, i)


@kernel
def pop(events, status):
    """Remove the first event, events[0]; read it before."""
    remove_at(events, status, 0)


@kernel
def remove(events, status, kind, index):
    """Remove the event of this kind and index, if there is one."""
    for i in range(status.events):
        if events[i].kind == kind and events[i].index == index:
            remove_at(events, status, i)
            return


@kernel
def remove_at(events, status, i):
    """Remove the event at position i of the heap; the last one takes its position, and goes down or up from there."""
    status.events -= 1
    n = status.events
    if i == n:
        return
    place(events[i], events[n].time_s, events[n].kind, events[n].index)
    rise(events, sink(events, n, i))


@inlined_kernel
def sink(events, n, i):
    """Bring the event at position i of the first n down to where it belongs; returns where that is.

    Those that it passes move up by one; it is written once, at last.
    """
    time_s, kind, index = events[i].time_s, events[i].kind, events[i].index
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and before(events[child + 1], events[child]):
            child += 1
        above = events[child]
        if not is_before(above, time_s, kind, index):
            break
        place(events[i], above.time_s, above.kind, above.index)
        i = child
    place(events[i], time_s, kind, index)
    return i


@inlined_kernel
def rise(events, i):
    """Bring the event at position i up to where it belongs."""
    time_s, kind, index = events[i].time_s, events[i].kind, events[i].index
    while i > 0:
        above = events[(i - 1) // 2]
        if is_before(above, time_s, kind, index):
            break
        place(events[i], above.time_s, above.kind, above.index)
        i = (i - 1) // 2
    place(events[i], time_s, kind, index)


@kernel
def make_due(run, e):
    """Engine e, idle, has requests: it may start an iteration once the events of this instant are done with."""
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
    """Write an event at the present time. Call it only when status.recording is set: it is free when off."""
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
    """How many events more the timeline can take."""
    return run.timeline.shape[0] - run.status[0].timeline_used
