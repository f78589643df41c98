"""Opening and closing engines of a role until a number of them is in use, for scalers."""

from servegym.policy import POOL, kernel


@kernel
def is_in_use(snapshot, move):
    """Return whether an engine is up and open in a tier; it may still be starting."""
    return snapshot.up == 1 and move.tier != POOL and move.closed == 0 and (snapshot.closed == 0 or snapshot.off == 1)


@kernel
def engines_in_use(context, moves, role):
    """Return how many engines of a role are in use."""
    snapshots, count = context.known.snapshots, 0
    for e in range(snapshots.shape[0]):
        count += snapshots[e].role == role and is_in_use(snapshots[e], moves[e])
    return count


@kernel
def held_requests(context):
    """Return the number of requests that wait at the router."""
    tiers, total = context.known.tiers, 0
    for queue in range(tiers.shape[0] - 1):
        total += tiers[queue].waiting
    return total


@kernel
def start_first(context, moves, role, from_pool):
    """Open the first engine of a role that is closed in its tier or, with from_pool, start the first one of the pool.

    Returns False if there is none.
    """
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):
        snapshot, in_pool = snapshots[e], moves[e].tier == POOL
        if snapshot.role != role or snapshot.up == 0 or in_pool != from_pool:
            continue
        if in_pool:
            moves[e].tier, moves[e].closed = 0, 0
            return True
        if moves[e].closed == 1 and (snapshot.pending == 1 or snapshot.off == 1):
            moves[e].closed = 0
            return True
    return False


@kernel
def close_least(context, moves, role):
    """Close the engine in use with the fewest requests; ties: the last."""
    snapshots, least = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if snapshots[e].role != role or not is_in_use(snapshots[e], moves[e]):
            continue
        if least < 0 or snapshots[e].requests <= snapshots[least].requests:
            least = e
    moves[least].closed = 1


@kernel
def resize(context, moves, role, least, most):
    """Open engines of a role until `least` are in use, or close some until `most` are."""
    current = engines_in_use(context, moves, role)
    for _ in range(current, least):
        if not start_first(context, moves, role, False) and not start_first(context, moves, role, True):
            break
    for _ in range(most, current):
        close_least(context, moves, role)


@kernel
def return_to_pool(context, moves):
    """Close the engines in the pool, and move closed engines without requests into it."""
    for e in range(moves.shape[0]):
        if moves[e].tier == POOL:
            moves[e].closed = 1
        elif moves[e].closed == 1 and context.known.snapshots[e].requests == 0:
            moves[e].tier = POOL
