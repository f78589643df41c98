"""SlideBatching, ProServe's engine-level scheduler (Algorithm 1): urgent requests by density, the others by deadline.

The boundary between the two moves with the load.
"""

import numpy as np

from servegym.baselines.time_budgets import DEADLINES, counted_deadline_s, steps
from servegym.policy import (
    EMPTY_BATCH,
    MISFIT_STOP,
    ByWord,
    Fact,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    is_decoding,
    kernel,
    register,
    scheduler,
    sort,
)

LOADS = ("a", "c", "p")
LOAD_A, LOAD_C, LOAD_P = range(3)
ABLATIONS = ("none", "only-deadline", "only-density", "no-latency")
NONE, ONLY_DEADLINE, ONLY_DENSITY, NO_LATENCY = range(4)
HOPELESS = ("exclude", "include")
INCLUDE = 1
VARIANTS = ("paper", "xllm")
XLLM = 1
XLLM_SMALLEST_CHUNK_TOKENS = 51  # "a chunk <= 50 tokens ends the batch"
XLLM_BATCH_TOKENS = 10240  # its default of max_tokens_per_batch
SCRATCH = Scratch(indices=("order",))

# Measured on training seeds: docs/results/slide-batching-eta.md. Above 1 every decode of a full batch is late.
ETA = Fact("min_tpot_slo_s", 0.9)

P = Parameters(
    Parameter("gamma", 1.0, "factor of the load below which time to the deadline is urgent: larger: more are urgent",
              0.1, 10, log=True, source="ProServe, Alg. 1 line 9; value: xLLM"),
    Parameter("eta", ByWord("variant", {"paper": ETA, "xllm": Fact("min_tpot_slo_s", 0.65)}),
              "least time budget of a batch, however short the slack", 0.005, 0.5, "s", log=True,
              source="ProServe, Alg. 1 line 7; values: [measured](../results/slide-batching-eta.md), xLLM"),
    Parameter("load", "a", "load that decides which requests are urgent: of the whole queue (a, Eq. 8), of the "
              "requests due no later (c, Eq. 9), or of a prefill-only engine (p)", choices=LOADS,
              source="ProServe, section 4.2"),
    Parameter("hopeless", ByWord("variant", {"paper": "include", "xllm": "exclude"}),
              "whether requests that cannot be in time set the budget", choices=HOPELESS,
              source="ProServe, Alg. 1 line 6; exclude: xLLM, which skips them"),
    Parameter("ablation", "none", "leaves a part out: order by deadline alone, by density alone, or a "
              "token budget in place of the time budget (no-latency)", choices=ABLATIONS,
              source="ProServe, section 5.4"),
    Parameter("max_num_batched_tokens", 512, "most tokens in a batch under ablation=no-latency", 1, 2**20, "tokens",
              integer=True, log=True),
    Parameter("variant", "paper", "paper: as printed; xllm: as the public code does it", choices=VARIANTS,
              source="xLLM"),
    Parameter("starve_threshold", 1.0, "variant=xllm: how late an urgent prefill may be, in SLOs of its next token, "
              "before it goes ahead of others", 0, 1000),
    Parameter("density_exponent", 1.0, "x in density = gain / exec^x: 0 gain alone, above 1 shorter first",
              0, 3),
    Parameter("deadlines", ByWord("variant", {"paper": "slo", "xllm": "first-token"}),
              "from where the scheduler counts the deadlines after the first: the first deadline (slo), the first "
              "token if it came early, or the first token", choices=DEADLINES,
              source="ProServe, section 2; early-first-token: its footnote 2; first-token: xLLM"),
    *steps(ByWord("variant", {"paper": "device", "xllm": "ignore"})),
)  # fmt: skip


@kernel
def mark_urgent_by_phi_c(ranks, order, n, gamma, factor):
    """Set tier 0 if remain < gamma * phi_c (Eq. 9: work up to the request in deadline order), else tier 1."""
    for position in range(n):
        ranks[position].tier = 0
        order[position] = position
    sort(order, ranks, n)
    work_s = 0.0
    for i in range(n):
        rank = ranks[order[i]]
        work_s += rank.exec_s
        rank.tier = 0 if rank.key < gamma * (factor * work_s) else 1


@kernel
def rank_urgent(request, rank, p):
    """Rank an urgent request by density; xllm puts decodes, then starved prefills, latest first, before the others."""
    if p.variant == XLLM:
        slo_s = request.ttft_slo_s if request.num_output_tokens == 0 else request.tpot_slo_s
        if is_decoding(request):
            rank.tier = -2
        elif rank.key < -p.starve_threshold * slo_s:
            rank.tier = -1
            return
    # density(r): gain of the next token per second of work
    gain = request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain
    exponent = p.density_exponent
    rank.key = -(gain / (rank.exec_s if exponent == 1.0 else rank.exec_s**exponent))


@scheduler
def slide_batching(context, ranks, limits):
    p, now_s, estimator = P.read(context), context.now_s, context.estimator
    requests, queue, n = context.requests, context.queue, context.queue.shape[0]
    include_hopeless, xllm = p.hopeless == INCLUDE, p.variant == XLLM
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    # Lines 1-7: the work of each request, their sum, and the latency budget. A key is remain(r) until it is ranked.
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    total_s, least_remain = 0.0, np.inf
    for position in range(n):
        rank = ranks[position]
        rank.key = counted_deadline_s(requests[queue[position]], p.deadlines) - now_s
        total_s += rank.exec_s
        if include_hopeless or rank.key >= rank.exec_s + constant_s:
            least_remain = min(least_remain, rank.key)
    if least_remain == np.inf and not xllm:  # no request can be in time
        budget_s = p.eta
    else:
        budget_s = max(least_remain, p.eta)  # xllm has no time budget then
    if xllm:
        limits.max_num_batched_tokens = XLLM_BATCH_TOKENS
        limits.misfit = MISFIT_STOP
        limits.smallest_chunk_tokens = XLLM_SMALLEST_CHUNK_TOKENS
    if p.ablation == NO_LATENCY:
        limits.max_num_batched_tokens = p.max_num_batched_tokens
    else:
        limits.time_budget_s = budget_s
        limits.step_tokens = p.step_tokens
    # Lines 8-13: urgent requests by density, the others by deadline.
    by_phi_c, share = False, 1.0
    if p.ablation == ONLY_DEADLINE:
        bound_s = -np.inf
    elif p.ablation == ONLY_DENSITY or (p.load != LOAD_P and budget_s <= constant_s):
        bound_s = np.inf
    elif p.load == LOAD_P:
        bound_s = p.gamma * (total_s + n * constant_s)
    else:
        if budget_s < np.inf:
            share = budget_s / (budget_s - constant_s)
        bound_s = p.gamma * (share * total_s)
        by_phi_c = p.load == LOAD_C
    if by_phi_c:
        mark_urgent_by_phi_c(ranks, SCRATCH.read(context).order, n, p.gamma, share)
    for position in range(n):
        rank = ranks[position]
        if not by_phi_c:
            rank.tier = 0 if rank.key < bound_s else 1
        if rank.tier == 0:
            rank_urgent(requests[queue[position]], rank, p)


register(
    Policy(
        "slide-batching",
        "scheduler",
        "Urgent requests by gain per second of work, the others by deadline, within a latency budget.",
        "ProServe, Algorithm 1",
        slide_batching,
        urgent_tier=0,
        parameters=P,
        estimates=True,
        scratch=SCRATCH,
    )
)  # fmt: skip
