"""Records of a batch: ranks and limits, its sums, its requests, and batches that can be suspended."""

import numpy as np

from servegym.simulator.records import record, with_alias

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

# A preemptible batch that has been started and is not done. Its device model's time is not for policies to see.
TASK = record(
    [
        ("length", "i8"),  # requests in it; 0: the row is free
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
