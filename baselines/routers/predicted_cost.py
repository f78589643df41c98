"""A router of this project: send a request where its predicted cost is least, for itself and for others.

Costs are in SLOs, so that engines of different devices compare: the wait for the request's first token, the chance that
it is late, the time between tokens there, KV memory in use, and the number of requests relative to the mean.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import math

from servegym.baselines.routers.prefix_affinity import OWN_S, STATE, add_to_queue, decodes_s, prefill_s, queue_s
from servegym.baselines.routers.ties import MEASURE, least_of_takers, send_to
from servegym.policy import (
    REFUSE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    adapter_s,
    kernel,
    register,
    router,
    takes,
)

# The weight of the request's own prefill is 1, as only ratios of weights matter. The reasons for the terms: "Why these
# terms" of the page.
P = Parameters(
    Parameter("queue", 1.0, "weight of the wait for prompts queued before it; its own prefill has the weight 1", 0, 10),
    Parameter("late", 2.0, "weight of the chance that its first token is late", 0, 20),
    Parameter("sharpness", 6.0, "how fast that chance grows with lateness, per TTFT SLO", 0.5, 50, log=True),
    Parameter("pace", 1.0, "weight of the time between tokens there once it decodes, in TPOT SLOs", 0, 10),
    Parameter("pace_limit", 0.7, "share of the TPOT SLO above which that time costs more", 0, 2),
    Parameter("pace_barrier", 10.0, "additional weight of the part above pace_limit", 0, 100),
    Parameter("memory_limit", 0.9, "share of KV blocks in use, with queued prompts and this one, above which memory "
              "costs", 0, 1),
    Parameter("memory_barrier", 10.0, "weight of the part above memory_limit", 0, 100),
    Parameter("load", 0.1, "weight of the number of requests there over its mean over the engines", 0, 10),
    Parameter("refuse", 0.0, "a request is refused if this times its cost to others exceeds the chance that it is on "
              "time; 0: none is", 0, 10),
    Parameter("adapter", 1.0, "weight of the time to load its LoRA adapter, beside its own prefill; 0: none counts",
              0, 10),
    Parameter("stall", 1.0, "weight of the same time for each request that is there, as the engine computes nothing "
              "meanwhile", 0, 10),
)  # fmt: skip


@kernel
def mean_requests(context, record):
    """Return the mean number of unfinished requests over the engines that take the request."""
    snapshots, total, engines = context.known.snapshots, 0, 0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record):
            total += snapshots[e].requests
            engines += 1
    return total / engines


@kernel
def cost_to_others(context, e, record, tokens, mean, load_s):
    """Return the cost of the request to others on engine e.

    tokens: its context. mean: mean requests of an engine. load_s: time to load its LoRA adapter there.
    """
    p, snapshot = P.read(context), context.known.snapshots[e]
    stall = load_s / (record.first_deadline_s - record.arrival_s)
    queued_blocks = (snapshot.prefill_tokens + tokens) / snapshot.block_tokens
    used = (snapshot.total_blocks - snapshot.free_blocks + queued_blocks) / snapshot.total_blocks
    cost = p.memory_barrier * max(0.0, used - p.memory_limit) + p.load * snapshot.requests / max(mean, 1.0)
    cost += p.stall * stall * snapshot.requests
    if snapshot.role != ROLE_PREFILL:  # prefill engines have no decodes
        pace = decodes_s(context, e, 1 + snapshot.prefills, snapshot.prefill_tokens + tokens) / record.tpot_slo_s
        cost += p.pace * pace + p.pace_barrier * max(0.0, pace - p.pace_limit)
    return cost


@kernel
def cost_of_waiting(context, e, record):
    """Return the cost of the request's wait for its first token on engine e, whose OWN_S is set."""
    p, own_s = P.read(context), context.state[e, OWN_S]
    before_s, slo_s = queue_s(context, e), record.first_deadline_s - record.arrival_s
    late = chance_of_being_late(context, record, before_s + own_s, decodes_s(context, e, 0, 0), p.sharpness)
    return own_s / slo_s + p.queue * before_s / slo_s + p.late * late


@kernel
def chance_of_being_late(context, record, after_s, beside_s, sharpness):
    """Return the chance that the request's first token is late.

    after_s: when its prefill ends, without decodes beside it, s from now. beside_s: time of a batch of these, s.
    sharpness: how fast the chance grows with lateness, per TTFT SLO.
    """
    slo_s = record.first_deadline_s - record.arrival_s
    first_s = context.now_s + after_s + beside_s
    return logistic(sharpness * ((first_s - record.first_deadline_s) / slo_s))


@kernel
def logistic(x):
    """Return 1 / (1 + e^-x), which does not overflow."""
    return 0.5 + 0.5 * math.tanh(0.5 * x)


@kernel
def is_worth_less(context, e, record, tokens, mean):
    """Return whether the request on engine e is predicted to gain less than it costs others."""
    p = P.read(context)
    if p.refuse == 0.0:
        return False
    after_s = queue_s(context, e) + context.state[e, OWN_S]
    on_time = 1.0 - chance_of_being_late(context, record, after_s, decodes_s(context, e, 0, 0), p.sharpness)
    load_s = adapter_s(context.known, record, e)
    return p.refuse * cost_to_others(context, e, record, tokens, mean, load_s) > on_time


@router
def predicted_cost(context, request, route):
    state, record = context.state, context.requests[request]
    tokens, decoding = record.prompt_tokens + record.num_output_tokens, record.computed_tokens > 0
    mean, adapter = mean_requests(context, record), P.read(context).adapter
    for e in range(context.known.snapshots.shape[0]):
        if not takes(context.known.snapshots[e], record):
            continue
        load_s = adapter_s(context.known, record, e)
        state[e, MEASURE] = cost_to_others(context, e, record, tokens, mean, load_s)
        if not decoding:
            state[e, OWN_S] = prefill_s(context, request, e) + adapter * load_s
            state[e, MEASURE] += cost_of_waiting(context, e, record)
    e = least_of_takers(context, request)
    if record.num_output_tokens == 0 and is_worth_less(context, e, record, tokens, mean):
        route.engine = REFUSE
        return
    send_to(e, state, route)
    if not decoding:
        add_to_queue(context, e, tokens)


register(
    Policy(
        "predicted-cost",
        "router",
        "The least predicted cost, in SLOs: the request's own wait, and the pace, memory and load there.",
        "ours",
        predicted_cost,
        state=STATE,
        parameters=P,
    )
)
