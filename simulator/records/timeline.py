"""The timeline: one event for everything that happens, when it is asked for."""

from servegym.simulator.compilation.kernels import kernel


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
