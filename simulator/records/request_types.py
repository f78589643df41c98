"""Records of a request: as it was given, as a policy sees it, what only the simulator knows, and what follows it."""

from servegym.simulator.records import record

# One row a request of the workload, as it was given.
WORKLOAD = record(
    [
        ("arrival_s", "f8"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),  # hidden from every policy
        ("priority", "i4"),  # lower is more important, as in vLLM: 0 is the highest
        ("weight", "f8"),  # worth of a token, ProServe's w_p(r)
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("ttlt_slo_s", "f8"),  # inf: an interactive request, judged by TTFT and TPOT
        ("predicted_output_tokens", "f8"),  # what a predictor says; nan: nothing is known
        ("client", "i4"),
        ("application", "i4"),
        ("urgency", "i4"),
        ("adapter", "i4"),  # a LoRA adapter; 0: the model itself
    ]
)

# A request as a policy sees it: 192 bytes, and the first 64, one cache line, are what a rank pass reads.
REQUEST = record(
    [
        ("arrival_s", "f8"),  # arrival minus response latency (front_end.py)
        ("first_deadline_s", "f8"),  # absolute: that + TTFT SLO (or TTLT SLO)
        ("token_interval_s", "f8"),  # between the deadlines of later tokens: TPOT SLO (0 for a TTLT class)
        ("first_token_gain", "f8"),  # weight of token 1, w_r(1)
        ("decode_token_gain", "f8"),  # weight of every later token, w_r(i)
        ("prompt_tokens", "i4"),
        ("num_output_tokens", "i4"),  # tokens out so far, g; of an engine that forms batches ahead, or under way
        ("computed_tokens", "i4"),  # tokens whose KV is held, c
        ("blocks", "i4"),  # KV blocks held; > 0: the request is running
        ("offloaded_tokens", "i4"),  # tokens whose KV is in host memory; > 0 only without blocks
        ("engine", "i2"),  # where it was sent; -1: nowhere, or at the router again
        ("task", "i2"),  # index of the preemptible batch it is in, of its engine; -1: none
        ("weight", "f8"),
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("ttlt_slo_s", "f8"),
        ("predicted_output_tokens", "f4"),
        ("admitted", "i4"),  # number of its last admission, counted over the run; 0: not admitted
        ("evicted", "i4"),  # number of its last eviction, counted over the run; 0: never
        ("priority", "i4"),
        ("client", "i4"),
        ("application", "i4"),
        ("urgency", "i4"),
        ("adapter", "i4"),  # a LoRA adapter, numbered without gaps (adapters.py); 0: the model itself
        ("first_token_s", "f8"),  # when its first token came out; nan: it has not
        ("session", "i4"),  # it is a turn of: the session's first request; -1: it is by itself
        ("sent_cached_tokens", "i4"),  # had by its engine when it was last sent there, as far as the router knew
        ("session_engine", "i2"),  # where the router sent its session's last request; -1: nowhere yet
        ("in_flight_tokens", "i4"),  # in `computed_tokens`, of a batch that still runs (ahead.py)
        ("session_tokens", "i8"),  # tokens computed for the requests that it follows: prompts, less cached, and answers
        ("turn", "i4"),  # how many requests it follows, one after the other
        ("session_arrival_s", "f8"),  # of its session's first request
        ("session_deadline_s", "f8"),  # as first_deadline_s, if all its session up to it just meets its SLOs
    ],
    lines_of=64,
)

# What only the simulator knows of a request: its true output length and what happened to it. 128 bytes, and the first
# 64, one cache line, are what a token changes.
OUTCOME = record(
    [
        ("output_tokens", "i4"),
        ("on_time_tokens", "i4"),
        ("sent_tokens", "i4"),  # tokens that were out when it was last sent to an engine for prefill
        ("under_way", "i4"),  # tokens in `num_output_tokens` that are not out yet (ahead.py)
        ("gain", "f8"),
        ("first_token_s", "f8"),  # when it set out for the client (front_end.py); nan: none yet
        ("last_token_s", "f8"),  # the same of its last one so far; when it has finished, when that left the engine
        ("longest_tbt_s", "f8"),
        ("finish_s", "f8"),  # when its last token set out; nan: not finished
        ("evictions", "i4"),
        ("cached_tokens", "i4"),  # tokens taken from a prefix cache or store when it was admitted
        ("decode_engine", "i4"),  # where the router wants it decoded; -1: not said
        ("source", "i4"),  # engine from which its KV is being sent; -1: none
        ("next_in_queue", "i4"),  # the request behind it, held at the router or with KV to be sent; -1: none
        ("task_tokens", "i4"),  # its chunk, while it is in a task
        ("task_position", "i4"),  # and its position in the batch
        ("table", "i8"),  # where the table of its blocks begins, at an engine that caches prefixes
        ("borrowed", "i2"),  # 1: what it keeps is in the prefix store, and takes no host memory of its own
        ("counted", "i2"),  # 1: its prompt counts among those admitted where it is
        ("reroutes", "i4"),  # times it was taken back from an engine
        (
            "ready_s",
            "f8",
        ),  # when it joins a queue: its arrival, or when it is through the front end or predicted; nan: unknown
        ("admitted_s", "f8"),  # first time it was given memory; nan: never
        ("refused_s", "f8"),  # when the router refused it, or a request that it follows; nan: never
    ],
    lines_of=64,
)

# Which request follows a request, and in which session it is.
FOLLOWING = record(
    [
        ("first", "i4"),  # the first that follows it; -1: none
        ("next", "i4"),  # the next one that follows the same request as it does; -1: none
        ("session", "i4"),  # the first request of its session
        ("unfinished", "i4"),  # of a session's first request: requests of the session that are unfinished
        ("in_engines", "i4"),  # of that too: requests of the session whose last token has not set out
        ("think_s", "f8"),  # from the end of the request it follows to its coming
        ("due_s", "f8"),  # of its first token (TTLT: its last), from the arrival of the session, by SLOs
        ("session_slo_s", "f8"),  # of a session's first request: from its arrival to the session's deadline
        ("session_gain", "f8"),  # of that too: what the session earns if it ends by then
    ]
)
