"""SLOs-Serve: a dynamic program accepts the most new requests such that all accepted requests are in time.

The steps are those of "Rule, exactly" in docs/systems/slos_serve.md. The program is in `slos_serve_plan.py`.
"""

import numpy as np

from servegym.baselines.schedulers.slos_serve_plan import ACCEPTED, PLAN, UNDECIDED, plan
from servegym.baselines.time_budgets import DEADLINES, counted_deadline_s
from servegym.policy import (
    EVICT_FOR_ALL,
    UNKNOWN_TOKENS,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    is_decoding,
    kernel,
    register,
    scheduler,
)

DUE, PREFILL, EARLY, BEST_EFFORT = range(4)  # tiers

P = Parameters(
    Parameter("max_num_batched_tokens", 2048, "tokens in a batch", 1, 2**20, "tokens", integer=True, log=True,
              source="SLOs-Serve's code, as max_bs; value: ours, there 16,384"),
    Parameter("output_tokens", UNKNOWN_TOKENS, "expected output tokens of a request before any of its application has "
              "finished", 1, 2**20, "tokens", log=True),
    Parameter("deadlines", "early-first-token", "from where the scheduler counts the deadlines of decodes: the first "
              "deadline (slo), the first token if it came early, or the first token", choices=DEADLINES,
              source="value: ours; slo: SLOs-Serve's code"),
    Parameter("max_num_seqs", 256, "most requests that may hold memory", 1, 2**20, "requests", integer=True, log=True,
              source="vLLM"),
)  # fmt: skip


@kernel
def budget_of(context, deadlines):
    """Return the time until the first accepted decode is due, at least its TPOT SLO, s."""
    requests, queue, marks, budget_s = context.requests, context.queue, context.state.requests, np.inf
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        if is_decoding(request) and marks[queue[position], 0] == ACCEPTED and request.token_interval_s > 0.0:
            slack_s = counted_deadline_s(request, deadlines) - context.now_s
            budget_s = min(budget_s, max(slack_s, request.token_interval_s))
    return budget_s


@scheduler
def slos_serve(context, ranks, limits):
    p, requests, queue, marks = P.read(context), context.requests, context.queue, context.state.requests
    undecided = False
    for position in range(queue.shape[0]):
        undecided |= marks[queue[position], 0] == UNDECIDED
    if undecided:
        plan(context, ranks, PLAN.read(context), p.max_num_batched_tokens, p.output_tokens)
    budget_s = budget_of(context, p.deadlines)
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        deadline_s = counted_deadline_s(request, p.deadlines)
        if marks[queue[position], 0] != ACCEPTED:
            rank.tier, rank.key = BEST_EFFORT, request.arrival_s
        elif not is_decoding(request):
            rank.tier, rank.key = PREFILL, deadline_s
        else:
            due = deadline_s - request.token_interval_s < context.now_s + budget_s
            rank.tier, rank.key = DUE if due else EARLY, deadline_s
    limits.time_budget_s = budget_s
    limits.max_num_batched_tokens = p.max_num_batched_tokens
    limits.max_num_seqs = p.max_num_seqs
    limits.evict_for = EVICT_FOR_ALL


register(
    Policy(
        "slos-serve",
        "scheduler",
        "Accepts as many new requests as can be in time, by a dynamic program; all others run with what is left.",
        "SLOs-Serve, and its code",
        slos_serve,
        parameters=P,
        scratch=PLAN,
        state=StateFields(request=("decision",), by_application=True, repeatable=True),
    )
)  # fmt: skip
