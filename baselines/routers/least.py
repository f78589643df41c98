"""Routers to the engine with the smallest number of requests, of tokens, or time of an iteration."""

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.policy import Parameter, Parameters, Policy, StateFields, batches, register, router

P = Parameters(
    Parameter("max_num_batched_tokens", 1024, "most tokens in a batch", 1, 2**20, "tokens", integer=True, log=True,
              source="PolyServe's worked example"),
)  # fmt: skip


@router
def min_load(context, request, route):
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):
        context.state[e, MEASURE] = snapshots[e].requests
    send_to_least(context, request, route)


@router
def min_tokens(context, request, route):
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):
        context.state[e, MEASURE] = snapshots[e].prefill_tokens + snapshots[e].decode_tokens
    send_to_least(context, request, route)


@router
def min_cycle_time(context, request, route):
    """Send to the shortest iteration: all decodes at their mean context, and prompts up to the token budget."""
    snapshots, estimates, p = context.known.snapshots, context.estimates, P.read(context)
    batch, record = estimates.scratch[0], context.requests[request]
    prefill_tokens, decodes, decode_tokens = record.prompt_tokens, 0, 0
    if record.computed_tokens > 0:
        prefill_tokens, decodes, decode_tokens = 0, 1, record.prompt_tokens + record.num_output_tokens
    for e in range(snapshots.shape[0]):
        snapshot = snapshots[e]
        batches.clear(batch)
        batch.decode_requests = snapshot.decodes + decodes
        batch.decode_cached_tokens = snapshot.decode_tokens + decode_tokens
        if batch.decode_requests > 0:
            batch.longest_decode_cached = batch.decode_cached_tokens / batch.decode_requests
        room = max(0, p.max_num_batched_tokens - snapshot.decodes - decodes)
        chunk = min(snapshot.prefill_tokens + prefill_tokens, room)
        if chunk > 0:
            batches.add(batch, chunk, 0, False)
        context.state[e, MEASURE] = estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])
    send_to_least(context, request, route)


STATE = StateFields(engine=FIELDS)
register(
    Policy(
        "min-load", "router", "The engine with the fewest unfinished requests.",
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
        parameters=P,
    )
)  # fmt: skip
