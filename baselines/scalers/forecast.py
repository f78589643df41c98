"""A scaler for forecast arrivals: yesterday's rate at this time of day, times today's arrivals / yesterday's.

The steps are those of "Rule, exactly" in docs/systems/forecast.md.
"""

import numpy as np

from servegym.baselines.resizing import held_requests, resize, return_to_pool
from servegym.policy import Parameter, Parameters, Policy, StateFields, kernel, register, scaler

MOST_BINS = 96
STATE = (
    "counted", "bin", "arrived", "lately", "expected", "span_s", "wanted", "phase",
    *(f"bin_{k}" for k in range(MOST_BINS)),
)  # fmt: skip
COUNTED, BIN, ARRIVED, LATELY, EXPECTED, SPAN_S, WANTED, PHASE, FIRST_BIN = range(9)  # in row 0 of the state
P = Parameters(
    Parameter("interval_s", 15.0, "time between two checks", 1e-3, 3600, "s", log=True),
    Parameter("engine_rate", 1.0, "rate that one engine is expected to serve", 1e-3, 1e4, "requests/s", log=True),
    Parameter("ahead_s", 60.0, "how far it looks ahead: set it to the start-up time of an engine", 0, 86400, "s"),
    Parameter("day_s", 86400.0, "period after which arrival rates repeat: a day, or a week", 1e-2, 6.1e5, "s",
              log=True),
    Parameter("bins", 48, "parts of a period in which arrivals are counted separately", 2, MOST_BINS, integer=True),
    Parameter("window_s", 1800.0, "time over which today's arrivals are compared with yesterday's", 1e-2, 6.1e5, "s",
              log=True),
    Parameter("trust", 10.0, "requests added to both counts of that comparison, so that few arrivals do not change it "
              "much", 1e-3, 1e6, log=True),
    Parameter("drain_s", 60.0, "time in which waiting requests should be served", 1e-2, 86400, "s", log=True),
    Parameter("slack", 0.2, "an engine is closed only if the others exceed the need by this many", 0, 8),
    Parameter("least_engines", 1, "fewest engines in use, of each role", 0, 4096, integer=True),
    Parameter("most_engines", 4096, "most engines in use, of each role", 1, 4096, integer=True),
)  # fmt: skip


@kernel
def bin_at(time_s, p):
    """Return the part of the day, 0 to bins - 1."""
    return min(int((time_s % p.day_s) / (p.day_s / p.bins)), p.bins - 1)


@kernel
def yesterdays_rate(context, p, time_s):
    """Return the requests per second at this time of the last day with a complete count."""
    return context.state[0, FIRST_BIN + bin_at(time_s, p)] / (p.day_s / p.bins)


@kernel
def new_arrivals(context):
    """Return the number of requests that have arrived at the router since the last check."""
    snapshots, total = context.known.snapshots, held_requests(context)
    for e in range(snapshots.shape[0]):
        total += snapshots[e].requests + snapshots[e].finished
    new = max(total - context.state[0, ARRIVED], 0.0)
    context.state[0, ARRIVED] += new
    return new


@kernel
def count_arrivals(context, p, middle_s):
    """Count the arrivals between two checks by time of day, and beside yesterday's. middle_s: middle of that time."""
    new, now_bin = new_arrivals(context), bin_at(middle_s, p)
    if now_bin != context.state[0, BIN]:
        context.state[0, FIRST_BIN + int(context.state[0, BIN])] = context.state[0, COUNTED]
        context.state[0, COUNTED], context.state[0, BIN] = 0.0, now_bin
    context.state[0, COUNTED] += new
    expected = new if middle_s < p.day_s else yesterdays_rate(context, p, middle_s) * p.interval_s
    kept = max(1.0 - p.interval_s / p.window_s, 0.0)
    context.state[0, LATELY] = context.state[0, LATELY] * kept + new
    context.state[0, EXPECTED] = context.state[0, EXPECTED] * kept + expected
    context.state[0, SPAN_S] = context.state[0, SPAN_S] * kept + p.interval_s


@kernel
def coming_rate(context, p, middle_s):
    """Return the highest forecast of requests per second, now and when an engine started next would be ready."""
    if middle_s < p.day_s:
        return context.state[0, LATELY] / context.state[0, SPAN_S]
    ratio = (context.state[0, LATELY] + p.trust) / (context.state[0, EXPECTED] + p.trust)
    now, then = context.now_s, context.now_s + p.ahead_s + p.interval_s
    return max(yesterdays_rate(context, p, now), yesterdays_rate(context, p, then)) * ratio


@kernel
def waiting_requests(context):
    """Return the number of requests that are held by the router, or have no token since they were sent."""
    snapshots, total = context.known.snapshots, held_requests(context)
    for e in range(snapshots.shape[0]):
        total += snapshots[e].prefills
    return total


@scaler
def forecast(context, moves):
    p = P.read(context)
    middle_s = context.now_s - p.interval_s / 2
    count_arrivals(context, p, middle_s)
    engines = (coming_rate(context, p, middle_s) + waiting_requests(context) / p.drain_s) / p.engine_rate
    least = min(max(int(np.ceil(engines)), p.least_engines), p.most_engines)
    most = min(max(int(np.ceil(engines + p.slack)), p.least_engines), p.most_engines)
    context.state[0, WANTED], context.state[0, PHASE] = engines, (context.now_s % p.day_s) / p.day_s
    for role in range(3):
        resize(context, moves, role, least, most)
    return_to_pool(context, moves)


register(
    Policy(
        "forecast",
        "scaler",
        "As many engines as yesterday's rate at this time, corrected by today's so far, will need when they are ready.",
        "ours",
        forecast,
        parameters=P,
        state=StateFields(engine=STATE),
    )
)
