"""The timeline: one line for everything that happens, when it is asked for."""

from servegym.simulator.compilation import kernel


@kernel
def note(run, kind, engine, request, tokens, value):
    """Write a line at the present time. Call it only when clock.recording is set: it is free when off."""
    clock = run.clock[0]
    line = run.timeline[clock.timeline_used]
    clock.timeline_used += 1
    line.time_s = clock.now_s
    line.kind = kind
    line.engine = engine
    line.request = request
    line.tokens = tokens
    line.value = value


@kernel
def lines_left(run):
    """How many lines more the timeline can take."""
    return run.timeline.shape[0] - run.clock[0].timeline_used
