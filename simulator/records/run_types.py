"""Records of a run: where it stands, its events and timeline, and the limits beyond which it is a mistake."""

from servegym.simulator.records import record

# One event of the timeline.
TIMELINE = record(
    [
        ("time_s", "f8"),
        # TOKEN: its gain; FINISH: that of a session which ends; BATCH_START: estimated seconds; BATCH_END: real seconds
        ("value", "f8"),
        ("kind", "i4"),
        ("engine", "i4"),
        ("request", "i4"),  # -1: the engine as a whole
        # SCHEDULED: chunk; BATCH_START: queue length; BATCH_END: blocks used; EVICTED: kept; ROLE: the new one
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
# A bin's middle is within 1/64 of every value in it: 1.6 %.
TBT_OCTAVES, TBT_BINS_PER_OCTAVE, TBT_SMALLEST_EXPONENT = 32, 32, -20
TBT_BINS = TBT_OCTAVES * TBT_BINS_PER_OCTAVE

# The latest time of a run, and the longest duration and estimate: some 30,000 years. Up to there float64 tells 0.2 ms
# apart, and sums of times stay finite; beyond is a mistake in units, and ends the run with an error.
LATEST_S = 1e12
# How often an engine may fill its memory anew without a token coming out. What is computed stays in memory unless it is
# taken away: requests take it from each other, and would for ever.
MOST_FILLINGS = 100
# Most times that a scaler is asked with nothing else in between: an interval that is so much shorter than what it waits
# for is a mistake, and would keep a run busy for hours.
MOST_CHECKS = 1_000_000
# How often a scaler may move engines out of the common pool without a token coming out anywhere. Whatever such engines
# are sent is taken back from them, or they are sent nothing: that would go on for ever.
MOST_STARTS = 100_000
# How much the event loop does before it returns to Python, which can answer Ctrl-C only then: some 50 ms of visits to
# queued requests and engines. An instant counts as so many visits by itself.
VISITS_A_CALL = 1 << 22
VISITS_AN_INSTANT = 100

# What a device does besides its model; see disturbances.py.
DISTURBANCE = record([("noise", "f8"), ("drift_per_s", "f8"), ("shift_s", "f8"), ("shift_ratio", "f8"), ("seed", "i8")])
# A coefficient of an estimator as it was fitted: corrected it is fixed + estimate_scale x scaled (one of them is 0).
FITTED = record([("fixed", "f8"), ("scaled", "f8")])
# How an estimator is corrected; window_iterations 0: not at all.
CORRECTION = record([("theta", "f8"), ("window_iterations", "i8"), ("compounding", "i8")])

# An event of the future. Order: time, then kind, then index (an engine, or a request).
EVENT = record([("time_s", "f8"), ("kind", "i8"), ("index", "i8")])
EVENT_BATCH_END, EVENT_SUSPENSION, EVENT_KV_ARRIVAL, EVENT_DELIVERY = range(4)  # of an engine, twice; of a request

# Where the router stands, and what it holds.
ROUTER_TURN = record(
    [
        ("decided", "i8"),  # the request for which the router has decided, in router_state.route; -1: none
        ("held_dirty", "i8"),  # 1: the router is to be asked again about the requests it holds
        ("held_cursor", "i8"),  # the held queue it is being asked about
        ("moving", "i8"),  # 1: the router may move engines; there is memory to prefill their requests with answers
        ("held", "i8"),  # requests it holds
        ("final_retry", "i8"),  # 1: nothing else can happen, and it is asked about them for the last time
        ("routing", "i8"),  # 1: the events of this instant are done with, and the router is having its turn
    ]
)

# Signals on their way to the router.
SIGNAL_COUNTS = record(
    [
        ("sent", "i8"),  # from the start, or since those that were heard were dropped
        ("heard", "i8"),  # of these
        ("kv_sent", "i8"),  # the same of KV events
        ("kv_heard", "i8"),
        ("delay_s", "f8"),  # from an engine to the router
    ]
)

# When the scaler is asked, and what it has started is ready.
SCALER_CHECKS = record(
    [
        ("next_check_s", "f8"),  # when the scaler is asked next; inf: never
        ("interval_s", "f8"),  # between its being asked
        ("next_ready_s", "f8"),  # when the next engine that is loading, or changes its role, is ready; inf: none is
        ("starts", "i8"),  # engines it has moved out of the common pool, or that have changed roles, since a token came
        ("draining", "i8"),  # engines that are to change their roles when they have nothing left
    ]
)

# The front: what has come waits there until it may be sent (sessions.py).
FRONT = record(
    [
        ("known", "i8"),  # requests that follow none, whose times are given: the first of the workload
        ("events", "i8"),  # of those that follow another, how many have a time at which they come
        ("requests", "i8"),  # sent and unfinished
        ("sessions", "i8"),  # whose first request has been sent, and of which some request is unfinished
        ("most_requests", "i8"),  # at a time
        ("most_sessions", "i8"),
        ("depends", "i8"),  # 1: arrivals depend on completions
    ]
)
# What lies between clients and engines, beside their waiting (front_end.py).
FRONT_END = record(
    [
        ("delays", "i8"),  # 1: a request may be ready later than it is sent
        ("events", "i8"),  # requests that have been sent and are not ready
        ("sent", "i8"),  # so far
        ("request_s", "f8"),
        ("prompt_s_per_token", "f8"),
        ("streamed_s_per_token", "f8"),
        ("way_back_s", "f8"),  # of a token: streaming, and what is the same for all
        ("one_process", "i8"),
        ("free_s", "f8"),  # when it has done all that has come to it so far
    ]
)

# Where a run stands.
RUN_STATUS = record(
    [
        ("now_s", "f8"),
        ("next_arrival", "i8"),  # the first request that has not arrived, of those that follow none
        ("events", "i8"),  # events waiting in the heap
        ("admissions", "i8"),
        ("evictions", "i8"),
        ("finished", "i8"),
        ("refused", "i8"),
        ("gain", "f8"),  # of all tokens so far
        ("buffered_first_token", "i8"),  # 0: later deadlines count from an early first token
        ("next_incident", "i8"),
        ("due", "i8"),  # engines that may start an iteration at this instant
        ("starting", "i8"),  # those that have been looked at
        ("deciding_engine", "i8"),  # engine whose batch is the next decision; -1: none
        ("deciding_request", "i8"),  # request whose route is; -1: none
        ("deciding_check", "i8"),  # 1: the moves of the scaler are
        ("failed", "i8"),  # 1: a function has raised an exception, and the run is to end (failures.py)
        ("recording", "i8"),  # 1: a timeline is kept
        ("timeline_used", "i8"),
        ("router", ROUTER_TURN),
        ("signals", SIGNAL_COUNTS),
        ("scaler", SCALER_CHECKS),
        ("front", FRONT),
        ("front_end", FRONT_END),
    ]
)
