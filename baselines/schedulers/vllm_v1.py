"""vLLM V1 as shipped (checked step by step against vLLM 0.32, tests/vllm_v1).

Running requests come first, in order of admission, then waiting ones. Running requests may evict; after an eviction
none is admitted.
"""

from servegym.policy import EVICT_FOR_RUNNING, Parameter, Parameters, Policy, register, scheduler, victims

RUNNING = -(2**40)  # tiers: running, evicted (fcfs), then waiting, by priority
EVICTED = -(2**39)
POLICIES = ("fcfs", "priority")
PRIORITY = 1

P = Parameters(
    Parameter("policy", "fcfs", "order of the waiting requests", choices=POLICIES, source="vLLM"),
    Parameter("max_num_batched_tokens", 2048, "most tokens in a batch", 1, 2**20, "tokens",
              integer=True, log=True, source="vLLM"),
    Parameter("max_num_seqs", 256, "most requests that may hold memory", 1, 2**20, "requests",
              integer=True, log=True, source="vLLM"),
    Parameter("reserve_full", 1, "1: admit a request only if its whole context fits (scheduler_reserve_full_isl)", 0, 1,
              integer=True, source="vLLM"),
    Parameter("watermark", 0.0, "share of the blocks kept free at an admission", 0, 0.99, source="vLLM"),
    Parameter("long_prefill_token_threshold", 0, "most tokens of one of several requests in a batch; 0: no limit",
              0, 2**20, "tokens", integer=True, source="vLLM"),
)  # fmt: skip


@scheduler
def vllm_v1(context, ranks, limits):
    p = P.read(context)
    by_priority = p.policy == PRIORITY
    limits.max_num_batched_tokens = p.max_num_batched_tokens
    limits.max_num_seqs = p.max_num_seqs
    limits.reserve_context = p.reserve_full
    limits.watermark_blocks = int(p.watermark * (context.engine.total_blocks + 1))  # vLLM counts its null block
    limits.evict_for = EVICT_FOR_RUNNING
    if p.long_prefill_token_threshold > 0 and context.queue.shape[0] > 1:  # alone, it delays no other request
        limits.chunk_tokens = p.long_prefill_token_threshold
    for position in range(context.queue.shape[0]):
        request, rank = context.requests[context.queue[position]], ranks[position]
        if request.blocks > 0:
            rank.tier = RUNNING
            rank.key = float(request.admitted)
        elif by_priority:
            rank.tier = request.priority
            rank.key = request.arrival_s
        elif request.evicted > 0:
            # Each evicted request is put at the front of the waiting queue.
            rank.tier = EVICTED
            rank.key = -float(request.evicted)
        else:
            rank.tier = 0
            rank.key = request.arrival_s


@victims
def vllm_v1_victims(context, ranks, limits):
    """Evict the last of the running list (fcfs), or the least important, of these the latest (priority)."""
    by_priority = P.read(context).policy == PRIORITY
    for position in range(context.queue.shape[0]):
        request, rank = context.requests[context.queue[position]], ranks[position]
        rank.victim_tier = request.priority if by_priority else 0
        rank.victim_key = request.arrival_s if by_priority else float(request.admitted)


register(
    Policy(
        "vllm-v1",
        "scheduler",
        "The scheduler of vLLM V1: running requests first, then waiting ones by arrival or priority.",
        "vLLM 0.32, vllm/v1/core/sched/scheduler.py",
        vllm_v1,
        vllm_v1_victims,
        parameters=P,
    )
)  # fmt: skip
