"""Records of a request: its row of the workload, what policies see, what only the simulator knows, its session."""

from servegym.simulator.records import record

# A request as the trace gives it.
WORKLOAD = record(
    [
        ("arrival_s", "f8"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),  # hidden from every policy
        ("priority", "i4"),  # lower is more important, as in vLLM: 0 is the highest
        ("weight", "f8"),  # gain of a token, ProServe's w_p(r)
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("ttlt_slo_s", "f8"),  # inf: an interactive request, judged by TTFT and TPOT
        ("predicted_output_tokens", "f8"),  # predicted output length; nan: no prediction
        ("client", "i4"),
        ("application", "i4"),
        ("urgency", "i4"),
        ("adapter", "i4"),  # a LoRA adapter; 0: the model itself
    ]
)

# A request as a policy sees it. 192 bytes; the first 64, one cache line, have what a pass over the queue reads.
REQUEST = record(
    [
        ("arrival_s", "f8"),  # arrival minus response latency (front_end.py)
        ("first_deadline_s", "f8"),  # absolute: arrival_s + TTFT SLO (or TTLT SLO)
        ("token_interval_s", "f8"),  # between deadlines of later tokens: TPOT SLO (0 with a TTLT SLO)
        ("first_token_gain", "f8"),  # gain of token 1, w_r(1)
        ("decode_token_gain", "f8"),  # gain of each later token, w_r(i)
        ("prompt_tokens", "i4"),
        ("num_output_tokens", "i4"),  # output tokens so far, g; includes those in flight (ahead.py)
        ("computed_tokens", "i4"),  # tokens whose KV is in the engine's memory, c
        ("blocks", "i4"),  # KV blocks; > 0: the request is running
        ("offloaded_tokens", "i4"),  # tokens whose KV is in host memory; > 0 only without blocks
        ("engine", "i2"),  # engine that it was sent to; -1: none, or it was taken back
        ("task", "i2"),  # index in state.tasks of the preemptible batch it is in; -1: none
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
        ("first_token_s", "f8"),  # time of its first token; nan: it has none
        ("session", "i4"),  # first request of its session; -1: it is in none
        ("sent_cached_tokens", "i4"),  # cached tokens of it that the router expected when it sent it
        ("session_engine", "i2"),  # engine of its session's last request; -1: none yet
        ("in_flight_tokens", "i4"),  # part of `computed_tokens` that a running batch computes (ahead.py)
        ("session_tokens", "i8"),  # tokens computed for earlier turns: uncached prompts, and answers
        ("turn", "i4"),  # number of turns before it
        ("session_arrival_s", "f8"),  # arrival of its session's first request
        ("session_deadline_s", "f8"),  # first_deadline_s, if all earlier turns just met their SLOs
    ],
    lines_of=64,
)

# What only the simulator knows of a request: its true output length and what happened to it. 128 bytes; the first 64,
# one cache line, have what each token changes.
OUTCOME = record(
    [
        ("output_tokens", "i4"),
        ("on_time_tokens", "i4"),
        ("sent_tokens", "i4"),  # output tokens when it was last sent to an engine for prefill
        ("under_way", "i4"),  # part of `num_output_tokens` that a running batch computes (ahead.py)
        ("gain", "f8"),
        ("first_token_s", "f8"),  # when it left for the client (front_end.py); nan: none yet
        ("last_token_s", "f8"),  # the same of its latest token; once finished: when that left the engine
        ("longest_tbt_s", "f8"),
        ("finish_s", "f8"),  # when its last token left for the client; nan: not finished
        ("table", "i8"),  # start of its block table in Cache.tables
        ("evictions", "i4"),
        ("cached_tokens", "i4"),  # tokens found in a prefix cache or store when it was admitted
        ("decode_engine", "i4"),  # engine that the router chose for its decode; -1: none
        ("source", "i4"),  # engine that sends its KV; -1: none
        ("next_in_queue", "i4"),  # request behind it in a HELD_QUEUE or TIER; -1: none
        ("task_tokens", "i4"),  # its chunk in a preemptible batch
        ("task_position", "i4"),  # its position in that batch
        ("borrowed", "i2"),  # 1: its offloaded tokens are in the prefix store, not in its own host memory
        ("counted", "i2"),  # 1: its prompt is counted in the totals of admitted tokens at its engine
        ("reroutes", "i4"),  # times it was taken back from an engine
        ("ready_s", "f8"),  # when it can be routed: its arrival, plus front end and predictor times; nan: unknown
        ("admitted_s", "f8"),  # time of its first admission; nan: never
        ("refused_s", "f8"),  # when the router refused it or an earlier turn; nan: never
    ],
    lines_of=64,
)

# The place of a request in its session.
FOLLOWING = record(
    [
        ("first", "i4"),  # the first request that follows it; -1: none
        ("next", "i4"),  # the next request that follows the same request; -1: none
        ("session", "i4"),  # the first request of its session
        ("unfinished", "i4"),  # at the first request of a session: its unfinished requests
        ("in_engines", "i4"),  # at the first request too: those with a last token yet to leave
        ("think_s", "f8"),  # time from the end of the request it follows to its arrival
        ("due_s", "f8"),  # deadline of its first token (TTLT: its last) after the session's arrival, by SLOs
        ("session_slo_s", "f8"),  # at the first request: deadline of the session after its arrival
        ("session_gain", "f8"),  # at the first request too: gain of a session that ends by then
    ]
)
