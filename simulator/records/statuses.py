"""Why the event loop returned to its caller, and at which decisions it stops."""

# DONE: all requests have finished or can never finish, and none will arrive. DECISION: a decision that the caller asked
# to stop at: the batch of engine status.deciding_engine, the route of request status.deciding_request, or the scaler's
# moves (status.deciding_check). PAUSED: no more events up to until_s.
# QUEUE_FULL, SIGNALS_FULL, TIMELINE_FULL: an array is too short; make it longer and call again. YIELDED: the loop has
# worked for a while; let Python handle signals (Ctrl-C) and call again. The others are errors that end the run:
# BAD_DURATION, BAD_ESTIMATE: the device model, or the estimator or its correction, gave no valid time; BAD_TIME: the
# next event is after LATEST_S; TOO_OFTEN: the scaler was asked MOST_CHECKS times with no other event; THRASHING:
# requests evict each other without end; BAD_ROUTE: the router named an engine that does not take the request; BAD_MOVE:
# the scaler named no tier; BAD_RANKS: a scheduler wrote invalid limits or ranks; STUCK: requests are held and no event
# can come; FAILED: a policy or model raised an exception; IN_VAIN: the scaler starts engines again and again, and none
# serves.
(
    DONE,
    DECISION,
    PAUSED,
    QUEUE_FULL,
    SIGNALS_FULL,
    TIMELINE_FULL,
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_TIME,
    TOO_OFTEN,
    THRASHING,
    BAD_ROUTE,
    BAD_MOVE,
    STUCK,
    BAD_RANKS,
    FAILED,
    IN_VAIN,
    YIELDED,
) = range(18)
STARTED, NOT_STARTED, GOING_ON = -1, -2, -3  # results within the loop, never returned to a caller
AT_BATCHES, AT_ROUTES, AT_CHECKS = 1, 2, 4  # where to stop for decisions; sums combine them
