"""Routers that send a request where one number is smallest: requests, tokens, or the time of an iteration."""

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.simulator import batches
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.signatures import router


@router
def min_load(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views = known.views
    for e in range(views.shape[0]):
        state[e, MEASURE] = views[e].requests
    send_to_least(views, requests[r], state, route)


@router
def min_tokens(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views = known.views
    for e in range(views.shape[0]):
        state[e, MEASURE] = views[e].prefill_tokens + views[e].decode_tokens
    send_to_least(views, requests[r], state, route)


@router
def min_cycle_time(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    """The iteration: all decodes at their mean context, and the prompts without a token up to the token budget."""
    views = known.views
    batch, request = estimates.scratch[0], requests[r]
    prefill_tokens, decodes, decode_tokens = request.prompt_tokens, 0, 0
    if request.computed_tokens > 0:
        prefill_tokens, decodes, decode_tokens = 0, 1, request.prompt_tokens + request.emitted_tokens
    for e in range(views.shape[0]):
        view = views[e]
        batches.clear(batch)
        batch.decode_requests = view.decodes + decodes
        batch.decode_cached_tokens = view.decode_tokens + decode_tokens
        if batch.decode_requests > 0:
            batch.longest_decode_cached = batch.decode_cached_tokens / batch.decode_requests
        room = max(0, int(parameters[0]) - view.decodes - decodes)
        chunk = min(view.prefill_tokens + prefill_tokens, room)
        if chunk > 0:
            batches.add(batch, chunk, 0, False)
        state[e, MEASURE] = estimates.batch_s[view.kind](batch, estimates.coefficients[e])
    send_to_least(views, request, state, route)


STATE = StateFields(engine=FIELDS)
register(
    Policy(
        "min-load", "router", "The engine with the fewest requests sent there and not finished.",
        "ProServe, section 5.1", min_load, state=STATE,
    )
)  # fmt: skip
register(
    Policy(
        "min-tokens", "router", "The engine with the fewest tokens: prompts without a token yet, context of decodes.",
        "ours", min_tokens, state=STATE,
    )
)  # fmt: skip
register(
    Policy(
        "min-cycle-time", "router", "The engine whose next iteration, with the request, is estimated shortest.",
        "PolyServe, section 5.1 (CO-Minimal)", min_cycle_time, state=STATE,
        parameters=(Parameter("token_budget", 1024, "tokens in a batch", 1, 2**20, "tokens", integer=True, log=True,
                              source="PolyServe's worked example"),),
    )
)  # fmt: skip
