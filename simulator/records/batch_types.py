"""Records of a batch: ranks, limits, the sums that latency models read, its requests, and preemptible batches."""

import numpy as np

from servegym.simulator.records import record, with_alias

# What a scheduler writes per queued request. Lower (tier, key) runs first; ties: position in the queue.
RANK = record(
    [
        ("tier", "i8"),
        ("key", "f8"),
        ("victim_tier", "i8"),  # the highest (tier, key) is evicted first; ties: later position
        ("victim_key", "f8"),
        ("keep_tokens", "i8"),  # if it is evicted: computed tokens to save to host memory; `victims` may set it
        ("headroom_blocks", "i8"),  # blocks to leave free when it is admitted beside running requests; 0 by default
        ("exec_s", "f8"),  # estimated time of its remaining tokens, written by `estimator.exec_s`
    ]
)
# ranks[k].listed for k < limits.listed: the queue position of the k-th request that may run. It shares the memory of
# keep_tokens, as the list is read before victims are ranked (8 bytes more make a pass over many ranks 7 % longer).
RANK = with_alias(RANK, "listed", "keep_tokens")
LEAVE_OUT = np.int64(2**62)  # a tier: the request does not run in this batch
IN_TASK = np.int64(2**62 + 1)  # a tier that only the packer sets: the request is in a suspended batch

# What a scheduler sets for the batch as a whole; the loop resets it to "no limit" before each call.
LIMITS = record(
    [
        ("max_num_batched_tokens", "i8"),  # tokens in the batch
        ("chunk_tokens", "i8"),  # tokens of one request in the batch
        ("sequence_budget", "i8"),  # requests in the batch
        ("max_num_seqs", "i8"),  # requests that may have KV blocks
        ("time_budget_s", "f8"),  # estimated duration of the batch, constant part included
        ("smallest_chunk_tokens", "i8"),  # a prefill whose chunk is cut below this does not fit
        ("untimed_prefill_tokens", "i8"),  # the first prefill tokens of a batch, which count as taking no time
        ("step_tokens", "i8"),  # batch time jumps where a batch exceeds a multiple of it; 0: no such jumps
        ("watermark_blocks", "i8"),  # blocks that an admission beside running requests leaves free
        ("most_drafts", "i8"),  # draft tokens of a decode, at most the engine's k (speculation.py)
        ("untimed_decodes", "i1"),  # 1: decodes ignore the time budget
        ("whole_prompts", "i1"),  # 1: prefills are not chunked
        ("reserve_context", "i1"),  # 1: admit a request only if its whole context fits in free memory
        ("phase", "i1"),  # PHASE_MIXED or PHASE_FIRST_DECIDES
        ("misfit", "i1"),  # MISFIT_PASS_OVER or MISFIT_STOP
        ("evict_for", "i1"),  # EVICT_FOR_DECODES, EVICT_FOR_RUNNING or EVICT_FOR_ALL
        ("preemptible", "i1"),  # NOT_PREEMPTIBLE, AT_OPERATORS or AT_LAYERS: where it can be suspended
        ("slice_s", "f8"),  # time after which a preemptible batch is suspended in any case
        ("listed", "i8"),  # positions in ranks[k].listed, ascending: only these may run and need ranks
    ]
)
# vLLM's names of limits, where they differ.
LIMITS_OF_VLLM = {"long_prefill_token_threshold": "chunk_tokens"}
NO_LIMIT = np.int64(2**62)
PHASE_MIXED, PHASE_FIRST_DECIDES = 0, 1  # FIRST_DECIDES: all are prefills, or all decodes, as the first request is
MISFIT_PASS_OVER, MISFIT_STOP = 0, 1  # a request that does not fit the budgets is passed over, or ends the batch
# Which requests may evict others: decodes; also running prefills; also waiting requests (lower victim ranks only).
EVICT_FOR_DECODES, EVICT_FOR_RUNNING, EVICT_FOR_ALL = 0, 1, 2

# Draft tokens of a batch's decodes, which are computed beside the one token of each.
DRAFTS = record(
    [
        ("known", "f8"),  # 0: each decode has the most that it may, and the other fields have no meaning
        ("requests", "f8"),  # decodes with drafts
        ("tokens", "f8"),  # sum of d; d: drafts of a decode
        ("tokens_squared", "f8"),  # sum of d * d
        ("tokens_cached", "f8"),  # sum of d * (lkv + 1)
        ("longest", "f8"),  # max d
    ]
)

# The sums of a batch that latency models read. lq: tokens computed in it; lkv: tokens cached before.
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

BATCH_SUMS = tuple(name for name in BATCH.names or () if name != "drafts")

# A request in a batch. tokens: its chunk, drafts included. emitted: tokens that it emits at the end of the iteration.
ENTRY = record([("request", "i4"), ("tokens", "i4"), ("emitted", "i4")])

# The batch being formed.
PACKING = record(
    [
        ("length", "i8"),  # requests taken
        ("tokens", "i8"),  # tokens taken that count in budgets
        ("decoding", "i1"),  # 1: the first request taken is a decode
        ("resumed_task", "i8"),  # suspended batch to resume instead of forming one; -1: none
        ("admitting", "i1"),  # 1: waiting requests may still be admitted
        ("victims_ranked", "i1"),  # the policy has written victim ranks for this batch
        ("evictions", "i8"),  # status.evictions before it; a request evicted since is not admitted
        ("gave_up", "i1"),  # 1: a request was its own victim, which ends the batch
        ("refused", "i1"),  # 1: the policy wrote ranks or limits that are not valid
        ("decodes_fit", "i1"),  # 0: no decode fits any more, by the time left or the phase
        ("prefills_fit", "i1"),  # the same of prefills
        ("windows", "i8"),  # windows of the queue that have been opened (windows.py)
        ("window_length", "i8"),  # positions in the latest window; 0: there has been none
        ("visited", "i8"),  # positions of it that have been visited
        ("places_given", "i8"),  # places in previous_order that this batch has given
    ]
)

# A preemptible batch that has started and is not done, as policies see it.
TASK = record(
    [
        ("length", "i8"),  # requests in it; 0: the row is free
        ("leader", "i8"),  # the first request in it
        ("tokens", "i8"),
        ("estimate_s", "f8"),  # estimated time of the whole batch, KV moving included
        ("executed_s", "f8"),  # time it has run, KV moving included; while it runs: up to its latest start
    ]
)
# The same batch as the device runs it, hidden from policies.
RUNNING = record(
    [
        ("computing_s", "f8"),  # time by the device model
        ("moving_s", "f8"),  # time to move KV
        ("boundaries", "i8"),  # NOT_PREEMPTIBLE, AT_OPERATORS or AT_LAYERS
        ("scale", "f8"),  # correction of its estimate
        ("blocked_since_s", "f8"),  # when the scheduler decided to suspend it
        ("stop_s", "f8"),  # time it will have run at the boundary where it is suspended
    ]
)
NOT_PREEMPTIBLE, AT_OPERATORS, AT_LAYERS = range(3)
