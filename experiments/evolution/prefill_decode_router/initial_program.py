"""Which engine prefills a request, and which one decodes it? It is asked twice: before the prefill, and after it."""

from servegym.policy import Policy, register, router, takes


# EVOLVE-BLOCK-START
@router
def evolved(context, request, route):
    """`takes` is true of prefill engines before the prefill, and of decode engines after it (computed_tokens > 0)."""
    snapshots, best, least = context.known.snapshots, -1, 0.0
    prefilled = context.requests[request].computed_tokens > 0
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], context.requests[request]):
            continue
        measure = float(snapshots[e].decodes if prefilled else snapshots[e].prefills)
        if best < 0 or measure < least:
            best, least = e, measure
    route.engine = best


# EVOLVE-BLOCK-END

register(Policy("evolved", "router", "The engine with the smallest measure.", "a start for evolution", evolved))
