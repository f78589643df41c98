"""Records of a run: its status, events and timeline, and limits beyond which its inputs must be a mistake."""

from servegym.simulator.records import record

# One event of the timeline.
TIMELINE = record(
    [
        ("time_s", "f8"),
        # TOKEN: its gain; FINISH: gain of a session that ends; BATCH_START: estimated s; BATCH_END: real s
        ("value", "f8"),
        ("kind", "i4"),
        ("engine", "i4"),
        ("request", "i4"),  # -1: the engine as a whole
        # SCHEDULED: chunk; BATCH_START: queue length; BATCH_END: blocks used; EVICTED: offloaded; ROLE: new role
        ("tokens", "i4"),
    ]
)
TIMELINE_KINDS = (
    "arrival", "batch_start", "scheduled", "evicted", "batch_end", "token", "finish", "loaded", "departed", "received",
    "suspended", "resumed", "recalled", "held", "failed", "returned", "drained", "moved", "sent", "stopped", "found",
    "off", "started", "refused", "role",
)  # fmt: skip
ARRIVAL, BATCH_START, SCHEDULED, EVICTED, BATCH_END, TOKEN, FINISH, LOADED, DEPARTED, RECEIVED = range(10)
SUSPENDED, RESUMED, RECALLED, HELD, FAILED, RETURNED, DRAINED, MOVED, SENT, STOPPED, FOUND = range(10, 21)
OFF, STARTED, REFUSED, ROLE = range(21, 25)

# Token intervals are counted in a log-linear histogram: 32 bins an octave, from 2^-20 s to 2^12 s.
# The middle of a bin is within 1/64 (1.6 %) of every value in it.
TBT_OCTAVES, TBT_BINS_PER_OCTAVE, TBT_SMALLEST_EXPONENT = 32, 32, -20
TBT_BINS = TBT_OCTAVES * TBT_BINS_PER_OCTAVE

# The latest time of a run, and the longest duration and estimate: some 30,000 years. Below it float64 has a resolution
# of 0.2 ms, and sums of times stay finite. A greater time is a mistake in units, and ends the run with an error.
LATEST_S = 1e12
# How often an engine may compute as much as its memory holds without emitting a token. More means that requests evict
# each other, which would go on for ever.
MOST_FILLINGS = 100
# How often a scaler may be asked in a row with no other event. More means that its interval is a mistake: such a run
# would take hours.
MOST_CHECKS = 1_000_000
# How often a scaler may move engines out of the common pool without a token emitted by any engine. More means that
# these engines never serve, which would go on for ever.
MOST_STARTS = 100_000
# Visits to queued requests and engines, some 50 ms, after which the event loop returns to Python, which handles Ctrl-C.
# An instant counts as VISITS_AN_INSTANT visits.
VISITS_A_CALL = 1 << 22
VISITS_AN_INSTANT = 100

# How real times differ from the device model; see disturbances.py.
DISTURBANCE = record([("noise", "f8"), ("drift_per_s", "f8"), ("shift_s", "f8"), ("shift_ratio", "f8"), ("seed", "i8")])
# A fitted coefficient of an estimator: fixed + estimate_scale x scaled, where one of the two is 0.
FITTED = record([("fixed", "f8"), ("scaled", "f8")])
# Settings of online correction; window_iterations 0: off.
CORRECTION = record([("theta", "f8"), ("window_iterations", "i8"), ("compounding", "i8")])

# A future event. Order: time, then kind, then index (an engine or a request).
EVENT = record([("time_s", "f8"), ("kind", "i8"), ("index", "i8")])
EVENT_BATCH_END, EVENT_SUSPENSION, EVENT_KV_ARRIVAL, EVENT_DELIVERY = range(4)  # indices: engine twice, request twice

# State of routing at this instant, and the requests that the router holds.
ROUTER_TURN = record(
    [
        ("decided", "i8"),  # request whose route is in router_state.route; -1: none
        ("held_dirty", "i8"),  # 1: the router must be asked again about held requests
        ("held_cursor", "i8"),  # held queue that it is being asked about
        ("moving", "i8"),  # 1: the router may move engines; contexts with answers fit prefill engines
        ("held", "i8"),  # held requests
        ("final_retry", "i8"),  # 1: no other event can come, so held requests are asked about a last time
        ("routing", "i8"),  # 1: routing has begun at this instant, after its events
    ]
)

# Signals on their way to the router.
SIGNAL_COUNTS = record(
    [
        ("sent", "i8"),  # sent, since the start or since heard signals were dropped
        ("heard", "i8"),  # those that the router has heard
        ("kv_sent", "i8"),  # the same two of KV events
        ("kv_heard", "i8"),
        ("delay_s", "f8"),  # from an engine to the router
    ]
)

# Times and counts of the scaler.
SCALER_CHECKS = record(
    [
        ("next_check_s", "f8"),  # time of its next decision; inf: never
        ("interval_s", "f8"),  # between two decisions
        ("next_ready_s", "f8"),  # end of the next start-up or role change of an engine; inf: none
        ("starts", "i8"),  # engines moved out of the common pool, and role changes, since the last token
        ("draining", "i8"),  # engines that change roles once they have no requests
    ]
)

# The front: requests that have arrived wait there until they may be sent (features/front.py).
FRONT = record(
    [
        ("known", "i8"),  # requests with given arrivals, which follow none: the first rows
        ("events", "i8"),  # following requests with a known arrival
        ("requests", "i8"),  # requests sent and unfinished
        ("sessions", "i8"),  # sessions with a request sent and one unfinished
        ("most_requests", "i8"),  # limit of `requests`
        ("most_sessions", "i8"),  # limit of `sessions`
        ("depends", "i8"),  # 1: arrivals depend on completions
    ]
)
# Times between clients and engines: tokenising, streaming, HTTP (features/front_end.py).
FRONT_END = record(
    [
        ("delays", "i8"),  # 1: a request may be ready later than it was sent
        ("events", "i8"),  # requests sent and not ready
        ("sent", "i8"),  # requests sent so far
        ("request_s", "f8"),
        ("prompt_s_per_token", "f8"),
        ("streamed_s_per_token", "f8"),
        ("way_back_s", "f8"),  # response latency of a token: streaming and the constant part
        ("one_process", "i8"),
        ("free_s", "f8"),  # when the one process has done all its work so far
    ]
)

# Status of a run.
RUN_STATUS = record(
    [
        ("now_s", "f8"),
        ("next_arrival", "i8"),  # first request with a given arrival that has not arrived
        ("events", "i8"),  # events waiting in the heap
        ("admissions", "i8"),
        ("evictions", "i8"),
        ("finished", "i8"),
        ("refused", "i8"),
        ("gain", "f8"),  # gain of all tokens so far
        ("buffered_first_token", "i8"),  # 0: an early first token makes later deadlines earlier
        ("next_incident", "i8"),
        ("due", "i8"),  # engines that may start an iteration at this instant
        ("starting", "i8"),  # those of them that have been asked
        ("deciding_engine", "i8"),  # the caller decides the batch of this engine; -1: none
        ("deciding_request", "i8"),  # the caller decides the route of this request; -1: none
        ("deciding_check", "i8"),  # 1: the caller decides the moves of the scaler
        ("failed", "i8"),  # 1: a policy or model has raised an exception, which ends the run (failures.py)
        ("recording", "i8"),  # 1: a timeline is kept
        ("timeline_used", "i8"),
        ("router", ROUTER_TURN),
        ("signals", SIGNAL_COUNTS),
        ("scaler", SCALER_CHECKS),
        ("front", FRONT),
        ("front_end", FRONT_END),
    ]
)
