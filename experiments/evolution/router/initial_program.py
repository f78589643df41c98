"""Which engine is a request sent to? To the one with the smallest measure of those that may take it."""

from servegym.policy import Policy, register, router, takes


# EVOLVE-BLOCK-START
@router
def evolved(context, request, route):
    """context.known.snapshots: what is known of each engine; context.requests[request]: of the request."""
    snapshots, best, least = context.known.snapshots, -1, 0.0
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], context.requests[request]):
            continue
        measure = float(snapshots[e].requests)
        if best < 0 or measure < least:
            best, least = e, measure
    route.engine = best


# EVOLVE-BLOCK-END

register(Policy("evolved", "router", "The engine with the smallest measure.", "a start for evolution", evolved))
