"""Why the event loop returned to its caller, and where it is to stop."""

# DONE: all requests that arrived are finished (or can never be) and none will arrive. DECISION: engine
# status.deciding_engine is about to form a batch, the router is about to send request status.deciding_request, or the
# scaler is to be asked (status.deciding_check), as the caller asked for. PAUSED: nothing more happens up to until_s.
# QUEUE_FULL, SIGNALS_FULL, TIMELINE_FULL: an array is too short; make it longer and call again. There is no going on
# after BAD_DURATION: the device model gave a duration that is no time; BAD_ESTIMATE: nor is the estimator's, or what it
# is corrected by; BAD_TIME: nothing happens before the latest time of a run; TOO_OFTEN: the scaler is asked millions of
# times before anything else happens; THRASHING: requests take memory from each other again and again; BAD_ROUTE: the
# router named an engine that does not take the request; BAD_MOVE: the scaler named no tier; BAD_RANKS: a scheduler
# wrote limits or ranks that are refused; STUCK: requests are held though nothing can happen any more; FAILED: a
# function has raised an exception; IN_VAIN: the scaler starts engines again and again, and none serves. YIELDED: the
# loop has worked for a while; call it again, once Python has seen to signals (Ctrl-C).
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
STARTED, NOT_STARTED, GOING_ON = -1, -2, -3  # within the loop
AT_BATCHES, AT_ROUTES, AT_CHECKS = 1, 2, 4  # where to stop for decisions, to be added up
