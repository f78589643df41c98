"""Observation of a request, the engines that could prefill it, and those that could decode it afterwards."""

from servegym.baselines.observations.routing import CHOSEN, SLOT, TAKES, WHOLE, observe_routing
from servegym.policy import ROLE_DECODE, kernel, may_decode


@kernel
def observe_disaggregated(context, r, chosen, chosen_decode, slots, out):
    """Write `routing_layout(slots)` of request r, about to be prefilled, into out, float32.

    As `observe_routing`, except for decode engines: `takes` says whether the engine accepts prefilled requests, and
    `chosen` whether the base router named it as decode engine. chosen_decode: -1: the router decides after the prefill.
    """
    known = context.known
    observe_routing(context, r, chosen, 0, slots, out)
    for e in range(min(slots, known.snapshots.shape[0])):
        if known.snapshots[e].role == ROLE_DECODE:
            at = WHOLE + e * SLOT
            out[at + TAKES] = may_decode(known.snapshots[e])
            out[at + CHOSEN] = e == chosen_decode
