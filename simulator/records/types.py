"""The structured arrays of a run: what every record holds, field by field, with its unit.

A policy is handed REQUEST, ENGINE, RANK and LIMITS records. What a real scheduler cannot know (the
true output length, what will happen) is in OUTCOME, which no policy sees.
"""

from typing import Any

import numpy as np


def record(fields: list[tuple[str, Any]], lines_of: int = 1) -> np.dtype:
    """An aligned dtype whose scalars give attribute access with and without compilation; its size is a multiple of
    `lines_of` bytes."""
    dtype = np.dtype(fields, align=True)
    if dtype.fields and dtype.itemsize % lines_of:
        names = list(dtype.fields)
        formats, offsets = zip(*(dtype.fields[name][:2] for name in names), strict=True)
        size = -(-dtype.itemsize // lines_of) * lines_of
        dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size}, align=True)
    return np.dtype((np.record, dtype))


def with_alias(dtype: np.dtype, name: str, field: str) -> np.dtype:
    """A record with another name for a field."""
    assert dtype.fields is not None
    fields = {**dtype.fields, name: dtype.fields[field]}
    formats, offsets = zip(*(one[:2] for one in fields.values()), strict=True)
    layout: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    return np.dtype((np.record, np.dtype(layout, align=True)))


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
        ("task", "i2"),  # slot of the preemptible batch it is in, of its engine; -1: none
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
        ("first_token_s", "f8"),  # when its first token came out; nan: it has not
        ("session", "i4"),  # it is a turn of: the session's first request; -1: it is by itself
        (
            "sent_cached_tokens",
            "i4",
        ),  # what its engine had of it when it was last sent there, as far as the router knew
        ("session_engine", "i2"),  # where the router sent its session's last request; -1: nowhere yet
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
        ("borrowed", "i4"),  # 1: what it keeps is in the prefix store, and takes no host memory of its own
        ("counted", "i4"),  # 1: its prompt counts among those admitted where it is
        ("reroutes", "i4"),  # times it was taken back from an engine
        (
            "ready_s",
            "f8",
        ),  # when it joins a queue: its arrival, or when it is through the front end or predicted; nan: unknown
        ("admitted_s", "f8"),  # first time it was given memory; nan: never
    ],
    lines_of=64,
)

# KV on its way from and to an engine.
TRANSFERS = record(
    [
        ("leaving", "i8"),  # requests that have been prefilled here and whose KV has yet to arrive elsewhere
        ("leaving_blocks", "i8"),  # blocks they hold here
        ("coming_blocks", "i8"),  # blocks taken for KV that is on its way here
        ("receiving", "i8"),  # the request whose KV is on its way here; -1: none
    ]
)

# How the batches of an engine can be suspended, and what of that is under way.
PREEMPTION = record(
    [
        ("owed_s", "f8"),  # moving time of attempts that came to nothing but a resumed task: of the next batch
        ("operators", "i8"),  # of a layer
        ("layers", "i8"),
        ("check_s", "f8"),  # what a boundary costs at which a batch can be suspended
        ("jitter_s", "f8"),  # most that a boundary is late
        ("suspending", "i8"),  # 1: a round has decided to suspend the running task at its next boundary
        ("resuming", "i8"),  # 1: a task has just been suspended
    ]
)

# How an engine drafts tokens of decodes; see speculation.py.
ENGINE_SPECULATION = record(
    [
        ("k", "i8"),  # most drafts of a request; 0: none has any
        ("free", "i8"),  # 1: they take no time and no tokens of budgets
        ("seed", "i8"),  # of which are accepted
    ]
)

# What online correction of its estimator has come to at an engine.
ENGINE_CORRECTION = record(
    [
        ("batch_scale", "f8"),  # what the fit was multiplied by for batch_estimate_s
        ("beta", "f8"),
        ("window_ratios", "f8"),  # sum of real / fitted over the iterations of the window so far
        ("window_length", "i8"),
    ]
)

# Prefix caching of an engine: its free blocks, and the request without memory that the packer considers.
ENGINE_CACHE = record(
    [
        ("on", "i8"),  # 0: it caches none
        ("first_free", "i8"),  # ends of the queue of free blocks; -1: none
        ("last_free", "i8"),
        ("considered", "i8"),  # the request; -1: none
        ("found_blocks", "i8"),  # what it finds
        ("shared_blocks", "i8"),  # of these, held by others
        ("stored_blocks", "i8"),  # what it would load of the store of blocks behind them
        ("offloaded_tokens", "i8"),  # what it has kept; while it is considered its own field is what would be loaded
        ("publishes", "i8"),  # 1: it tells routers which blocks it has; see kv_events.py
        ("first_changed", "i8"),  # block whose name has changed since it told them; -1: none
    ]
)

# Host memory for blocks that the KV memory has overwritten, in named blocks of its own; see block_stores.py.
BLOCK_STORE = record(
    [
        ("total_blocks", "i8"),  # 0: there is none
        ("free_blocks", "i8"),  # all of them: no request holds any
        ("cache", ENGINE_CACHE),  # of this the queue, the block used least recently first
    ]
)

# How far into its queue the packer came when it formed the engine's last batch (windows.py).
VISITS = record(
    [
        ("previous_length", "i8"),  # greater than any place that it gave; 0: it has given none
        ("bound_tier", "i8"),  # the rank up to which the first window of the next batch goes
        ("bound_key", "f8"),
    ]
)

# The batch that an engine has formed while one runs; see ahead.py.
ENGINE_AHEAD = record(
    [
        ("on", "i8"),  # 0: it forms a batch when it is idle
        ("length", "i8"),  # requests in the batch; 0: there is none
        ("forming", "i8"),  # 1: it is being formed, and a batch runs
        ("model_s", "f8"),  # what the device model says it takes
        ("estimate_s", "f8"),  # what the estimator says
        ("scale", "f8"),  # what the fit was multiplied by for that
    ]
)

# The engines with which it starts and ends iterations; see lockstep.py.
ENGINE_LOCKSTEP = record(
    [
        ("first", "i8"),  # engine of the group
        ("ranks", "i8"),  # engines in it, this one included; 1: it waits for none
    ]
)

# Sums over the run of what an engine did; of no use to a policy.
TOTALS = record(
    [
        ("evictions", "i8"),
        ("scheduled_before", "i8"),  # scheduled_tokens when the last token came out, all was taken back, or KV came
        ("num_output_tokens", "i8"),
        ("drafted_tokens", "i8"),  # in iterations that have ended
        ("accepted_tokens", "i8"),
        ("saved_tokens", "i8"),  # moved to host memory so far, and back
        ("loaded_tokens", "i8"),
        ("suspensions", "i8"),  # rounds that ended in a suspension
        ("blocking_s", "f8"),  # sum of the times from a round to the boundary at which it suspended a task
        ("longest_blocking_s", "f8"),
        ("admitted_tokens", "i8"),  # contexts of requests at their first admission since they were sent here
        ("cached_tokens", "i8"),  # of these, found in a prefix cache or store
        ("regained_tokens", "i8"),  # found at later admissions
        ("overwritten_blocks", "i8"),  # blocks that had a name when they were taken
        ("failures", "i8"),
        ("recalled", "i8"),  # requests taken back
        ("lost_tokens", "i8"),  # tokens whose KV they lost
        ("service_s", "f8"),  # time in service up to `serving_since_s`, or to now if it is nan
        ("serving_since_s", "f8"),
        ("block_seconds", "f8"),  # integral of blocks in use over time
        ("blocks_counted_s", "f8"),  # time up to which it is integrated
        ("peak_blocks", "i8"),
    ]
)

# An engine: one model instance. Nothing here tells how long its running iteration will take.
ENGINE = record(
    [
        ("index", "i8"),
        ("pool", "i8"),  # index of its pool
        ("role", "i8"),  # ROLE_BOTH, ROLE_PREFILL or ROLE_DECODE
        ("tier", "i8"),  # -1: the common pool
        ("up", "i8"),  # 0: it has failed
        ("closed", "i8"),  # 1: it is sent no requests
        ("drained", "i8"),  # 1: closed until it returns
        ("off", "i8"),  # 1: it is off, or loading until `ready_s`
        ("startup_s", "f8"),  # what that takes; nan: it is never off
        ("ready_s", "f8"),  # inf: it is not loading
        ("block_tokens", "i8"),  # tokens in a KV block
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),
        ("watermark_blocks", "i8"),  # kept free when a request is admitted beside others
        ("running", "i8"),  # requests that hold KV blocks, those on their way from or to here included
        ("queue_length", "i8"),  # requests here, waiting and running
        ("batch_length", "i8"),  # requests in the running iteration; 0: idle
        ("last_batch_length", "i8"),  # requests in the last iteration that started
        ("iterations", "i8"),
        ("scheduled_tokens", "i8"),
        ("decode_tokens", "i8"),  # in a cluster: context of the requests here that have emitted a token
        ("host_blocks", "i8"),  # host memory for KV, in blocks; 0: none
        ("free_host_blocks", "i8"),
        ("save_s_per_token", "f8"),
        ("load_s_per_token", "f8"),
        ("moving_s", "f8"),  # time the running iteration (or the one being formed) spends on moving KV
        ("running_task", "i8"),  # slot of the running iteration, if that is preemptible; -1: it is not
        ("suspended", "i8"),  # tasks that are suspended
        ("rounds", "i8"),  # times the scheduler was asked, but for those straight after a suspension
        ("store_sets", "i8"),  # of its prefix store; 0: it has none, or keeps blocks there (block_store)
        ("store_uses", "i8"),  # of chunks there so far
        ("batch_start_s", "f8"),
        ("batch_estimate_s", "f8"),  # what the estimator said the running iteration takes, moving included
        ("estimate_scale", "f8"),  # online correction: what the estimator's fit is multiplied by
        ("busy_s", "f8"),
        # The simulator's, by what they are about.
        ("transfers", TRANSFERS),
        ("preemption", PREEMPTION),
        ("cache", ENGINE_CACHE),
        ("block_store", BLOCK_STORE),
        ("speculation", ENGINE_SPECULATION),
        ("correction", ENGINE_CORRECTION),
        ("visits", VISITS),
        ("ahead", ENGINE_AHEAD),
        ("totals", TOTALS),
        ("lockstep", ENGINE_LOCKSTEP),
    ]
)

# Limits of an engine, which hold whatever its scheduler says; NO_LIMIT: there is none.
ENGINE_LIMITS = record([("max_num_batched_tokens", "i8"), ("max_num_seqs", "i8")])

# An engine as the router knows it: what it sent there itself, and what the engine reported. A token tells the router
# that a prefill is done or a request has finished; reports come at the end of an iteration. Both may be late. 128
# bytes, and the first 64, one cache line, are what a router that passes over all engines reads.
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
        ("index", "i8"),
        ("block_tokens", "i8"),
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),  # as reported
        ("decode_tokens", "i8"),  # as reported: context of the requests that have emitted a token since they were sent
        ("index_sets", "i8"),  # of the router's index of what it has sent there; 0: nothing sent there is kept there
        ("index_uses", "i8"),  # of chunks sent there
    ]
)

# What a router decides.
ROUTE = record(
    [
        ("engine", "i8"),  # where the request goes; HOLD: it waits in a held queue
        ("decode_engine", "i8"),  # of a request to be prefilled, where it goes then; -1: to be asked again
        ("held_queue", "i8"),  # where it waits; set to that of its tier beforehand
        ("tier", "i8"),  # a tier that the engine is moved to first; STAY: none
    ]
)
HOLD, STAY = -1, -1

# Requests that wait in order; they are linked by OUTCOME.next_in_queue.
HELD_QUEUE = record([("waiting", "i8"), ("first", "i8"), ("last", "i8")])

# A tier of requests, and those of it that the router holds. After the tiers come a held queue for best effort, and
# the requests that went to the router at this instant.
TIER = record([("tpot_slo_s", "f8"), ("waiting", "i8"), ("first", "i8"), ("last", "i8")])
TIERS = 8
POOL = -1

# What a scaler decides of an engine.
MOVE = record([("tier", "i8"), ("closed", "i8")])

# What happens to engines; see incidents.py.
INCIDENT = record([("time_s", "f8"), ("engine", "i8"), ("kind", "i8")])
INCIDENTS = ("fail", "return", "drain")
FAIL, RETURN, DRAIN = range(3)

# A preemptible batch that has been started and is not done. Its device model's time is not for policies to see.
TASK = record(
    [
        ("length", "i8"),  # requests in it; 0: the slot is free
        ("leader", "i8"),  # the first of them
        ("tokens", "i8"),
        ("estimate_s", "f8"),  # of the whole batch, moving included
        ("executed_s", "f8"),  # how long it has run, moving included; of the running one, before it was resumed
    ]
)
# Hidden: computing and moving time of a task, and what its boundaries are.
RUNNING = record(
    [
        ("computing_s", "f8"),
        ("moving_s", "f8"),
        ("boundaries", "i8"),
        ("scale", "f8"),  # of the estimate
        ("blocked_since_s", "f8"),  # when a round decided to suspend it
        ("stop_s", "f8"),  # what it will have run at the boundary where it is to be suspended
    ]
)
NOT_PREEMPTIBLE, AT_OPERATORS, AT_LAYERS = range(3)

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

ROLES = ("both", "prefill", "decode")
ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE = range(3)

# What a scheduler writes per queued request. Lower (tier, key) runs first; ties: position in the queue.
RANK = record(
    [
        ("tier", "i8"),
        ("key", "f8"),
        ("victim_tier", "i8"),  # the highest (tier, key) gives up its memory first; ties: later position
        ("victim_key", "f8"),
        ("keep_tokens", "i8"),  # as a victim: computed tokens to save to host memory; 0 unless `victims` says so
        ("headroom_blocks", "i8"),  # blocks to leave free beside others when it is admitted; 0 unless a policy uses it
        ("exec_s", "f8"),  # estimated time of all it has left, written by the estimator when a policy asks
    ]
)
# listed: of the k-th, the k-th position that is listed, if limits.listed says that some are. The list is spent before
# victims are ranked, so it has the memory of keep_tokens (8 bytes more made a pass over many ranks 7 % longer).
RANK = with_alias(RANK, "listed", "keep_tokens")
LEAVE_OUT = np.int64(2**62)  # a tier: this request does not run in this batch
IN_TASK = np.int64(2**62 + 1)  # the packer's: nor can it, since it is in a task that is suspended

# What a scheduler sets for the batch as a whole; the loop resets it to "no limit" before each call.
LIMITS = record(
    [
        ("max_num_batched_tokens", "i8"),  # tokens in the batch
        ("chunk_tokens", "i8"),  # tokens of one request in the batch
        ("sequence_budget", "i8"),  # requests in the batch
        ("max_num_seqs", "i8"),  # requests that may hold memory
        ("time_budget_s", "f8"),  # estimated duration of the batch, constant part included
        ("smallest_chunk_tokens", "i8"),  # a prefill cut below this does not fit
        ("untimed_prefill_tokens", "i8"),  # so many prefill tokens need no time
        ("step_tokens", "i8"),  # past multiples of it a batch takes longer by a step; 0: there are none
        ("watermark_blocks", "i8"),  # blocks kept free at an admission while others hold memory
        ("most_drafts", "i8"),  # of a decode, of the k that its engine would make (speculation.py)
        ("untimed_decodes", "i1"),  # a decode fits whatever the time
        ("whole_prompts", "i1"),  # prefills are not chunked
        ("reserve_context", "i1"),  # admit only what fits whole in free memory, not just its first chunk
        ("phase", "i1"),  # PHASE_MIXED or PHASE_FIRST_DECIDES
        ("misfit", "i1"),  # MISFIT_PASS_OVER or MISFIT_STOP
        ("evict_for", "i1"),  # EVICT_FOR_DECODES, EVICT_FOR_RUNNING or EVICT_FOR_ALL
        ("preemptible", "i1"),  # NOT_PREEMPTIBLE, AT_OPERATORS or AT_LAYERS: ends at which the batch can be suspended
        ("slice_s", "f8"),  # after which it is suspended in any case
        ("listed", "i8"),  # positions listed, in ascending order: the others are left out, and need no rank
    ]
)
# What vLLM calls one of them.
LIMITS_OF_VLLM = {"long_prefill_token_threshold": "chunk_tokens"}
NO_LIMIT = np.int64(2**62)
PHASE_MIXED, PHASE_FIRST_DECIDES = 0, 1  # the second: a batch is prefill-only or decode-only
MISFIT_PASS_OVER, MISFIT_STOP = 0, 1  # what does not fit the budgets is passed over, or ends the batch
# What may evict: decodes only, running prefills too, or newcomers too (of those that give up memory before them).
EVICT_FOR_DECODES, EVICT_FOR_RUNNING, EVICT_FOR_ALL = 0, 1, 2

# Drafts of a batch's decodes: tokens that are computed beside the one of each.
DRAFTS = record(
    [
        ("known", "f8"),  # 0: each decode has as many as it may, and what follows means nothing
        ("requests", "f8"),  # with drafts
        ("tokens", "f8"),  # sum of d, the drafts of a request
        ("tokens_squared", "f8"),  # sum of d * d
        ("tokens_cached", "f8"),  # sum of d * (lkv + 1)
        ("longest", "f8"),  # max d
    ]
)

# A batch in the sums that latency models need. lq: tokens computed now; lkv: tokens cached before.
BATCH = record(
    [
        ("prefill_requests", "f8"),
        ("prefill_tokens", "f8"),  # sum of lq over prefills
        ("prefill_tokens_squared", "f8"),  # sum of lq * lq over prefills
        ("prefill_tokens_cached", "f8"),  # sum of lq * lkv over prefills
        ("prefill_cached_tokens", "f8"),  # sum of lkv over prefills
        ("longest_prefill_tokens", "f8"),  # max lq over prefills
        ("decode_requests", "f8"),  # a decode computes one token, and its drafts
        ("decode_cached_tokens", "f8"),  # sum of lkv over decodes
        ("longest_decode_cached", "f8"),  # max lkv over decodes
        ("drafts", DRAFTS),
    ]
)

BATCH_SUMS = tuple(name for name in BATCH.names or () if name != "drafts")  # by which batches are measured

# One request in a batch.
# tokens: its chunk, drafts included. emitted: tokens that it had at the end of the iteration.
ENTRY = record([("request", "i4"), ("tokens", "i4"), ("emitted", "i4")])

# The batch being formed.
PACKING = record(
    [
        ("length", "i8"),  # requests taken
        ("tokens", "i8"),  # tokens taken, those left out that count in no budget
        ("decoding", "i1"),  # phase of the first request taken
        ("resumed_task", "i8"),  # the task to be resumed, if no batch is formed; -1: none
        ("admitting", "i1"),  # requests without memory may still be admitted
        ("victims_ranked", "i1"),  # the policy has written victim ranks for this batch
        ("evictions", "i8"),  # before; no request that was evicted later is admitted
        ("gave_up", "i1"),  # a request gave up its own memory: filling has ended
        ("refused", "i1"),  # the policy has written what is refused
        ("decodes_fit", "i1"),  # 0: not even the cheapest decode fits the time left, or the phase; so for prefills
        ("prefills_fit", "i1"),
        ("windows", "i8"),  # of the queue, looked at so far (windows.py)
        ("window_length", "i8"),  # positions in the latest; 0: there has been none
        ("visited", "i8"),  # of these
        ("places_given", "i8"),  # in the order of this batch, so far
    ]
)

# Running statistics of an engine's requests of one client, or of one application.
GROUP = record(
    [
        ("queued", "i8"),  # requests here now
        ("admitted_prompt_tokens", "i8"),  # prompts of the requests admitted, each counted once
        ("num_output_tokens", "i8"),
        ("finished", "i8"),
        ("mean_output_tokens", "f8"),  # of the finished ones
        ("squared_deviations", "f8"),  # sum of (output tokens - mean)^2 over the finished ones
    ]
)

# What a device does besides its model; see disturbances.py.
DISTURBANCE = record([("noise", "f8"), ("drift_per_s", "f8"), ("shift_s", "f8"), ("shift_ratio", "f8"), ("seed", "i8")])
# A coefficient of an estimator as it was fitted: corrected it is fixed + estimate_scale x scaled (one of them is 0).
FITTED = record([("fixed", "f8"), ("scaled", "f8")])
# How an estimator is corrected; window_iterations 0: not at all.
CORRECTION = record([("theta", "f8"), ("window_iterations", "i8"), ("compounding", "i8")])

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

# An event of the future. Order: time, then kind, then index (an engine, or a request).
EVENT = record([("time_s", "f8"), ("kind", "i8"), ("index", "i8")])
EVENT_BATCH_END, EVENT_SUSPENSION, EVENT_KV_ARRIVAL, EVENT_DELIVERY = range(4)  # of an engine, twice; of a request
# How KV is sent from prefill to decode engines. shared: one transfer at a time in all, else one to each engine.
LINK = record([("s_per_token", "f8"), ("latency_s", "f8"), ("shared", "i8"), ("busy", "i8")])

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
        ("next_ready_s", "f8"),  # when the next engine that is loading is ready; inf: none is
        ("starts", "i8"),  # engines it has moved out of the common pool since a token came out
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
# Which request follows a request, and in which session it is.
FOLLOWING = record(
    [
        ("first", "i4"),  # the first that follows it; -1: none
        ("next", "i4"),  # the next one that follows the same request as it does; -1: none
        ("session", "i4"),  # the first request of its session
        ("unfinished", "i4"),  # of a session's first request: requests of the session that are unfinished
        ("think_s", "f8"),  # from the end of the request it follows to its coming
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
