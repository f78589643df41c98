"""Mooncake's KVCache-centric scheduling (Algorithm 1, its cache-aware branch): send a request where its first token is
estimated to come earliest, given the queue and the cached part of the prompt. With `refuse` also its early rejection.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

from servegym.baselines.routers.ties import FIELDS, MEASURE, least_of_takers, send_to, subtract_finished
from servegym.policy import (
    ENGINES_AHEAD,
    REFUSE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    ask_for_known,
    batches,
    kernel,
    known_tokens,
    register,
    router,
    takes,
)  # fmt: skip

P = Parameters(
    Parameter("refuse", 0.0, "refuses a request whose TTFT or time between tokens is estimated above this share of its "
              "SLO; 0: none", 0, 10, source="Mooncake, Algorithm 1 (with 1)"),
)  # fmt: skip
# State per engine, after the FIELDS of ties. work_s: time of queued prompts; of_tokens: their tokens when work_s was
# exact. own_s: time of the request, valid in one decision.
STATE = StateFields(engine=(*FIELDS, "work_s", "of_tokens", "own_s"))
WORK_S, OF_TOKENS, OWN_S = range(3, 6)


@kernel
def decodes_s(context, e, more, more_tokens):
    """Return the estimated time of a batch of engine e's decodes and `more` others with `more_tokens` of context, s."""
    snapshot, estimates = context.known.snapshots[e], context.estimates
    batch = estimates.scratch[0]
    # Without decodes, the reported context is of requests that have finished since, and does not count.
    batches.set_decodes(batch, snapshot.decodes + more, snapshot.decode_tokens + more_tokens)
    return estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])


@kernel
def prefill_s(context, request, e):
    """Return the estimated time to prefill the part of the request that engine e has not cached, s."""
    estimates, snapshot, record = context.estimates, context.known.snapshots[e], context.requests[request]
    tokens, cached = record.prompt_tokens + record.num_output_tokens, known_tokens(context.known, record, request, e)
    return estimates.request_s[snapshot.pool](tokens - cached, cached, False, estimates.coefficients[e])


@kernel
def queue_s(context, e):
    """Return the estimated time until engine e has prefilled its queue, without what was cached when sent, s."""
    snapshot, state = context.known.snapshots[e], context.state
    subtract_finished(snapshot, state, e, WORK_S, OF_TOKENS)
    return max(0.0, state[e, WORK_S] - (context.now_s - snapshot.changed_s))


@kernel
def add_to_queue(context, e, tokens):
    """Add the request, with OWN_S of this decision, to the queue of engine e."""
    context.state[e, WORK_S] += context.state[e, OWN_S]
    context.state[e, OF_TOKENS] += tokens


@kernel
def misses(context, e, record):
    """Return whether the request's TTFT, in MEASURE, or TPOT on engine e is estimated above `refuse` times its SLO."""
    p, snapshot = P.read(context), context.known.snapshots[e]
    if p.refuse == 0.0:
        return False
    left_s = record.arrival_s + p.refuse * (record.first_deadline_s - record.arrival_s) - context.now_s
    if context.state[e, MEASURE] > left_s or snapshot.role == ROLE_PREFILL:  # nothing decodes there
        return context.state[e, MEASURE] > left_s
    return decodes_s(context, e, 1, record.prompt_tokens) > p.refuse * record.tpot_slo_s


@router
def prefix_affinity(context, request, route):
    snapshots, state, record = context.known.snapshots, context.state, context.requests[request]
    tokens, decoding = record.prompt_tokens + record.num_output_tokens, record.computed_tokens > 0
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], record):
            continue
        if decoding:
            state[e, MEASURE] = decodes_s(context, e, 1, tokens)
            continue
        ask_for_known(context.known, request, e + ENGINES_AHEAD, 0)
        state[e, OWN_S] = prefill_s(context, request, e)
        state[e, MEASURE] = queue_s(context, e) + state[e, OWN_S] + decodes_s(context, e, 0, 0)
    e = least_of_takers(context, request)
    if record.num_output_tokens == 0 and misses(context, e, record):
        route.engine = REFUSE
        return
    send_to(e, state, route)
    if not decoding:
        add_to_queue(context, e, tokens)


register(
    Policy(
        "prefix-affinity",
        "router",
        "The engine with the earliest estimated first token, by its queue and the prompt's cached part there.",
        "Mooncake, Algorithm 1",
        prefix_affinity,
        state=STATE,
        parameters=P,
    )
)
