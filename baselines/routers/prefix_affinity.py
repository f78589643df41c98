"""Mooncake's KVCache-centric scheduling (Algorithm 1, its cache-aware branch): where the first token is estimated to
come first, the queue and the part of the prompt whose KV the engine already has both taken into account.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.simulator import batches
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Policy, StateFields, register
from servegym.simulator.prefixes import leading_chunks
from servegym.simulator.routing import takes
from servegym.simulator.signatures import router

# After the FIELDS of ties. work_s: of the queue record; of_tokens: its tokens then. own_s: of the request, in this
# decision.
WORK_S, OF_TOKENS, OWN_S = range(3, 6)


@kernel
def decodes_s(view, more, more_tokens, estimates, e):
    """Estimated time of a batch of the decodes of engine e, and of so many more with so much context."""
    batch = estimates.scratch[0]
    batches.clear(batch)
    batch.decode_requests = view.decodes + more
    batch.decode_cached_tokens = view.decode_tokens + more_tokens
    if batch.decode_requests > 0:
        batch.longest_decode_cached = batch.decode_cached_tokens / batch.decode_requests
    return estimates.batch_s[view.kind](batch, estimates.coefficients[e])


@kernel
def prefill_s(request, r, view, prefixes, estimates, e):
    """Estimated time of what engine e, as the router takes its store to be, does not have of the request."""
    context = request.prompt_tokens + request.emitted_tokens
    cached = 0
    if view.store_sets > 0:
        cached = leading_chunks(prefixes, prefixes.sent[e], view.store_sets, r) * prefixes.chunk_tokens
        cached = min(cached, context - 1)
    return estimates.request_s[view.kind](context - cached, cached, False, estimates.coefficients[e])


@router
def prefix_affinity(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views, request = known.views, requests[r]
    context = request.prompt_tokens + request.emitted_tokens
    decoding = request.computed_tokens > 0
    for e in range(views.shape[0]):
        view = views[e]
        if not takes(view, request):
            continue
        if decoding:
            state[e, MEASURE] = decodes_s(view, 1, context, estimates, e)
            continue
        if state[e, OF_TOKENS] > 0:  # of the requests that have left the record, their share by tokens
            state[e, WORK_S] *= view.prefill_tokens / state[e, OF_TOKENS]
        state[e, OF_TOKENS] = view.prefill_tokens
        state[e, OWN_S] = prefill_s(request, r, view, known.prefixes, estimates, e)
        queue_s = max(0.0, state[e, WORK_S] - (now_s - view.changed_s))
        state[e, MEASURE] = queue_s + state[e, OWN_S] + decodes_s(view, 0, 0, estimates, e)
    send_to_least(views, request, state, route)
    if not decoding:
        state[route.engine, WORK_S] += state[route.engine, OWN_S]
        state[route.engine, OF_TOKENS] += context


register(
    Policy(
        "prefix-affinity",
        "router",
        "Where the first token is estimated to come first, by the queue and by what the engine has of the prompt.",
        "Mooncake, Algorithm 1",
        prefix_affinity,
        state=StateFields(engine=(*FIELDS, "work_s", "of_tokens", "own_s")),
    )
)
