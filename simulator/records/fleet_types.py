"""Records of a fleet: engines as the router knows them, what routers and scalers decide, and what is on its way."""

from servegym.simulator.records import record

# An engine as the router knows it: what it sent there itself, and what the engine reported. A token tells the router
# that a prefill is done or a request has finished; reports come at the end of an iteration. Both may be late. Whole
# cache lines: the first 64 bytes and the next are what a router that passes over all engines reads.
ENGINE_SNAPSHOT = record(
    [
        ("pool", "i2"),  # index of its pool
        ("role", "i2"),
        ("tier", "i2"),  # -1: the common pool
        ("up", "i2"),  # 0: it has failed
        ("closed", "i2"),  # 1: it takes no requests
        ("pending", "i2"),  # 1: for a scaler has closed it; a router that moves it into a tier opens it
        ("off", "i2"),  # 1: for it is off, or in a tier and loading
        ("publishes", "i2"),  # 1: it tells which KV blocks it has
        ("requests", "i4"),  # sent there and not finished
        ("prefills", "i4"),  # of those, without a token since; they are in the queue record, in the order sent
        ("decodes", "i4"),  # n_d: with a token since
        ("finished", "i4"),  # requests that have finished there
        ("prefill_tokens", "i8"),  # of the prefills, prompt and those out when they were sent
        ("finished_tokens", "i8"),  # output tokens of those that have finished
        ("version", "i8"),  # grows with each request sent there, and with each first and last token heard of
        ("busy_until_s", "f8"),  # as reported: estimated end of its iteration
        ("changed_s", "f8"),  # when the queue record changed last
        ("index", "i4"),
        ("changing", "i2"),  # 1: it takes no requests, for it changes its role
        ("role_fixed", "i2"),  # 1: a scaler cannot change its role
        ("role_change_s", "f8"),  # what that takes once it has nothing left; nan: its role is fixed
        ("block_tokens", "i8"),
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),  # as reported
        ("decode_tokens", "i8"),  # as reported: context of the requests that have emitted a token since they were sent
        ("index_sets", "i4"),  # of the router's index of what it has sent there; 0: nothing sent there is kept there
        ("max_loras", "i4"),  # LoRA adapters that its device memory holds
        ("index_uses", "i8"),  # of chunks sent there
        ("max_cpu_loras", "i8"),  # and its host memory
        ("lora_load_s", "f8"),  # of one that is not in host memory
        ("lora_activate_s", "f8"),  # of one that is not in device memory, from there
    ],
    lines_of=64,
)

# What a router decides.
ROUTE = record(
    [
        ("engine", "i8"),  # where the request goes; HOLD: it waits in a held queue; REFUSE: it is not served
        ("decode_engine", "i8"),  # of a request to be prefilled, where it goes then; -1: to be asked again
        ("held_queue", "i8"),  # where it waits; set to that of its tier beforehand
        ("tier", "i8"),  # a tier that the engine is moved to first; STAY: none
    ]
)
HOLD, STAY, REFUSE = -1, -1, -2

# Requests that wait in order; they are linked by OUTCOME.next_in_queue.
HELD_QUEUE = record([("waiting", "i8"), ("first", "i8"), ("last", "i8")])

# A tier of requests, and those of it that the router holds. After the tiers come a held queue for best effort, and
# the requests that went to the router at this instant.
TIER = record([("tpot_slo_s", "f8"), ("waiting", "i8"), ("first", "i8"), ("last", "i8")])
TIERS = 8
POOL = -1

# What a scaler decides of an engine.
MOVE = record([("tier", "i8"), ("closed", "i8"), ("role", "i8")])

# What happens to engines; see incidents.py.
INCIDENT = record([("time_s", "f8"), ("engine", "i8"), ("kind", "i8")])
INCIDENTS = ("fail", "return", "drain")
FAIL, RETURN, DRAIN = range(3)

# A chunk of a prompt in a prefix store. used: number of its last use; 0: the place is empty.
STORED_CHUNK = record([("chunk", "i4"), ("used", "i4")])
WAYS = 16  # places in a set of a prefix store

# A token on its way to the router.
SIGNAL = record([("time_s", "f8"), ("request", "i4"), ("engine", "i4"), ("tokens", "i4"), ("kind", "i4")])
FIRST_TOKEN, LAST_TOKEN = 0, 1  # the first since it was sent there
# What a block of an engine holds now, on its way to the router; see kv_events.py.
KV_EVENT = record([("time_s", "f8"), ("name", "i8"), ("engine", "i4"), ("block", "i4")])
# What an engine reported, the latest few.
REPORT = record([("time_s", "f8"), ("busy_until_s", "f8"), ("free_blocks", "i8"), ("decode_tokens", "i8")])
REPORTS = 4

# How KV is sent from prefill to decode engines. shared: one transfer at a time in all, else one to each engine.
LINK = record([("s_per_token", "f8"), ("latency_s", "f8"), ("shared", "i8"), ("busy", "i8")])
