"""The queue of future events: a binary heap ordered by time, then kind, then index. The timeline: what has happened."""

from servegym.simulator.compilation.kernels import kernel


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
    if a.time_s != b.time_s:
        return a.time_s < b.time_s
    if a.kind != b.kind:
        return a.kind < b.kind
    return a.index < b.index


@kernel
def swap(events, i, j):
    time_s, kind, index = events[i].time_s, events[i].kind, events[i].index
    events[i].time_s, events[i].kind, events[i].index = events[j].time_s, events[j].kind, events[j].index
    events[j].time_s, events[j].kind, events[j].index = time_s, kind, index


@kernel
def push(events, status, time_s, kind, index):
    """Add an event; `events` has room for two an engine."""
    i = status.events
    status.events += 1
    events[i].time_s, events[i].kind, events[i].index = time_s, kind, index
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
    swap(events, i, n)
    rise(events, sink(events, n, i))


@kernel
def sink(events, n, i):
    """Bring the event at position i of the first n down to where it belongs; returns where that is."""
    while True:
        child = 2 * i + 1
        if child >= n:
            return i
        if child + 1 < n and before(events[child + 1], events[child]):
            child += 1
        if not before(events[child], events[i]):
            return i
        swap(events, i, child)
        i = child


@kernel
def rise(events, i):
    """Bring the event at position i up to where it belongs."""
    while i > 0:
        parent = (i - 1) // 2
        if not before(events[i], events[parent]):
            break
        swap(events, i, parent)
        i = parent


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
