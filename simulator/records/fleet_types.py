"""Records of a fleet: engines as the router knows them, decisions of routers and scalers, signals and transfers."""

from servegym.simulator.records import record

# An engine as the router knows it: what it sent there, and what the engine reported. A first or last token tells the
# router that a prefill is done or a request has finished; reports come at the end of an iteration. Both may be late.
# Whole cache lines; the first two, 128 bytes, have the fields that a router reads of each engine.
ENGINE_SNAPSHOT = record(
    [
        ("pool", "i2"),  # index of its pool
        ("role", "i2"),
        ("tier", "i2"),  # -1: the common pool
        ("up", "i2"),  # 0: it has failed
        ("closed", "i2"),  # 1: no requests may be sent to it
        ("pending", "i2"),  # 1: closed by the scaler; a router opens it by moving it into a tier
        ("off", "i2"),  # 1: closed because it is off, or starting in a tier
        ("publishes", "i2"),  # 1: it publishes KV events
        ("requests", "i4"),  # sent there and not finished
        ("prefills", "i4"),  # of those, without a token since: known.prefilling
        ("decodes", "i4"),  # n_d, with a token since: known.decoding
        ("finished", "i4"),  # requests that have finished there
        ("prefill_tokens", "i8"),  # context of the prefills when they were sent
        ("finished_tokens", "i8"),  # output tokens of the finished requests
        ("version", "i8"),  # grows with each request sent and each first and last token
        ("busy_until_s", "f8"),  # reported estimate of the end of its iteration
        ("changed_s", "f8"),  # time of the last change of its requests
        ("index", "i4"),
        ("changing", "i2"),  # 1: closed because it changes its role
        ("role_fixed", "i2"),  # 1: a scaler cannot change its role
        ("output_tokens", "i8"),  # as reported: tokens that it has emitted so far
        ("block_tokens", "i8"),
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),  # as reported
        ("decode_tokens", "i8"),  # as reported: context of requests with a token since sent
        ("index_sets", "i4"),  # sets in the router's prefix index of it; 0: it caches nothing
        ("max_loras", "i4"),  # most LoRA adapters in its device memory
        ("index_uses", "i8"),  # uses of chunks in that index so far
        ("max_cpu_loras", "i8"),  # most LoRA adapters in its host memory
        ("lora_load_s", "f8"),  # time to load an adapter into host memory
        ("lora_activate_s", "f8"),  # time to load an adapter from host into device memory
        ("role_change_s", "f8"),  # time of a change of role once it is empty; NaN: its role is fixed
    ],
    lines_of=64,
)

# The decision of a router.
ROUTE = record(
    [
        ("engine", "i8"),  # engine of the request; HOLD: into a held queue; REFUSE: it is not served
        ("decode_engine", "i8"),  # of a prefill: engine of its decode; -1: the router is asked again then
        ("held_queue", "i8"),  # held queue for HOLD; by default that of the request's tier
        ("tier", "i8"),  # tier to move the engine to before; STAY: none
    ]
)
HOLD, STAY, REFUSE = -1, -1, -2

# A queue of requests, linked by OUTCOME.next_in_queue.
HELD_QUEUE = record([("waiting", "i8"), ("first", "i8"), ("last", "i8")])

# A tier of requests with its held queue. After the tiers come the held queue of best effort, and the requests that
# came to the router at this instant.
TIER = record([("tpot_slo_s", "f8"), ("waiting", "i8"), ("first", "i8"), ("last", "i8")])
TIERS = 8
POOL = -1

# The decision of a scaler for an engine.
MOVE = record([("tier", "i8"), ("closed", "i8"), ("role", "i8")])

# A failure, a return or a drain of an engine at a given time; see incidents.py.
INCIDENT = record([("time_s", "f8"), ("engine", "i8"), ("kind", "i8")])
INCIDENTS = ("fail", "return", "drain")
FAIL, RETURN, DRAIN = range(3)

WAYS = 16  # places in a set of a prefix store
# A set of a prefix store: two cache lines, of which a look-up reads the first.
STORED_SET = record(
    [
        ("chunk", "i4", (WAYS,)),  # -1 - the number of the chunk in each place; 0: it is empty
        ("used", "i4", (WAYS,)),  # the store's count of uses at its last use
    ],
    lines_of=64,
)

# A first or last token that the router hears of at time_s.
SIGNAL = record([("time_s", "f8"), ("request", "i4"), ("engine", "i4"), ("tokens", "i4"), ("kind", "i4")])
FIRST_TOKEN, LAST_TOKEN = 0, 1  # FIRST_TOKEN: the first since the request was sent there
# The new name of a block of an engine, which the router hears of at time_s; see kv_events.py.
KV_EVENT = record([("time_s", "f8"), ("name", "i8"), ("engine", "i4"), ("block", "i4")])
# A report of an engine. The last REPORTS span the delay, as they are 1 / (REPORTS - 2) of it apart or more.
REPORT = record(
    [("time_s", "f8"), ("busy_until_s", "f8"), ("free_blocks", "i8"), ("decode_tokens", "i8"), ("output_tokens", "i8")]
)
REPORTS = 10

# The link for KV from prefill to decode engines. shared: 1: one transfer at a time in all; 0: one to each engine.
LINK = record([("s_per_token", "f8"), ("latency_s", "f8"), ("shared", "i8"), ("busy", "i8")])
