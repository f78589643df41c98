"""Signals to the router at the end of an iteration, and the requests that leave for decode engines then."""

from servegym.simulator.batching.leaving import leave
from servegym.simulator.compilation.kernels import inlined_kernel
from servegym.simulator.fleet.incidents import count_service
from servegym.simulator.fleet.routing import emit_signal, report
from servegym.simulator.fleet.transfers import depart, start_transfer
from servegym.simulator.records.types import FIRST_TOKEN, LAST_TOKEN, ROLE_DECODE, ROLE_PREFILL


@inlined_kernel
def tell_router(run, router_state, e, entries, length, news, emitted):
    """Tell the router of an iteration of engine e that has ended: first and last tokens, and the engine's report.

    entries[:length]: its requests. news: number of their first and last tokens. emitted: number of all tokens.
    """
    status, engine = run.status[0], run.engines[e]
    if run.engines.shape[0] > 1:
        engine.decode_tokens += emitted
        if emitted > 0:
            status.scaler.starts = 0
        if news > 0:
            tell_of_tokens(run, router_state, e, entries, length, status.now_s)
        if router_state.coming[e].waiting > 0:
            start_transfer(run, router_state, e, status.now_s)
        report(run, router_state, e, status.now_s)
    if engine.drained == 1:
        count_service(status, router_state, engine, status.now_s)


@inlined_kernel
def tell_of_tokens(run, router_state, e, entries, length, now_s):
    """Signal first and last tokens of entries[:length] to the router, and let prefilled requests leave a prefill
    engine."""
    engine, departed = run.engines[e], 0
    for k in range(length):
        if entries[k].emitted == 0:
            continue
        r = entries[k].request
        request, outcome = run.requests[r], run.outcomes[r]
        out = request.num_output_tokens - outcome.under_way
        if engine.role != ROLE_DECODE and out == outcome.sent_tokens + 1:
            engine.decode_tokens += request.prompt_tokens + outcome.sent_tokens
            emit_signal(run, router_state, e, r, FIRST_TOKEN, now_s)
        if out == outcome.output_tokens:
            engine.decode_tokens -= request.prompt_tokens + request.num_output_tokens
            emit_signal(run, router_state, e, r, LAST_TOKEN, now_s)
        elif engine.role == ROLE_PREFILL:
            departed += 1
            depart(run, router_state, e, r)
    if departed > 0:
        leave(engine, run.queues[e], run.previous_order[e], run.requests, run.outcomes)
