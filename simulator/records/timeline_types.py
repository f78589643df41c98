"""Records of a timeline and of its kinds of events, and the histogram of token intervals."""

from servegym.simulator.records.layouts import record

# One event of the timeline.
TIMELINE = record(
    [
        ("time_s", "f8"),
        ("value", "f8"),  # TOKEN: its gain; BATCH_START: estimated seconds; BATCH_END: real seconds
        ("kind", "i4"),
        ("engine", "i4"),
        ("request", "i4"),  # -1: the engine as a whole
        # SCHEDULED: chunk; BATCH_START: queue length; BATCH_END: blocks used; EVICTED: kept
        ("tokens", "i4"),
    ]
)
TIMELINE_KINDS = (
    "arrival", "batch_start", "scheduled", "evicted", "batch_end", "token", "finish", "loaded", "departed", "received",
    "suspended", "resumed", "recalled", "held", "failed", "returned", "drained", "moved", "sent", "stopped", "found",
    "off", "started",
)  # fmt: skip
ARRIVAL, BATCH_START, SCHEDULED, EVICTED, BATCH_END, TOKEN, FINISH, LOADED, DEPARTED, RECEIVED = range(10)
SUSPENDED, RESUMED, RECALLED, HELD, FAILED, RETURNED, DRAINED, MOVED, SENT, STOPPED, FOUND = range(10, 21)
OFF, STARTED = range(21, 23)

# Token intervals are counted in a log-linear histogram: 32 bins an octave, from 2^-20 s to 2^12 s.
# A bin's middle is within 1/64 of every value in it: 1.6 %.
TBT_OCTAVES, TBT_BINS_PER_OCTAVE, TBT_SMALLEST_EXPONENT = 32, 32, -20
TBT_BINS = TBT_OCTAVES * TBT_BINS_PER_OCTAVE
