"""Policies without sense, under which every run ends all the same: what must hold, must hold under these too."""

from servegym.simulator.fleet.routing import may_decode, nth_taker, takers
from servegym.simulator.policies.policy import Parameter, Policy, StateFields
from servegym.simulator.records.requests import is_decoding
from servegym.simulator.records.signatures import router, scaler, scheduler
from servegym.simulator.records.types import AT_LAYERS, AT_OPERATORS, NOT_PREEMPTIBLE, POOL, ROLE_DECODE, ROLE_PREFILL


@router
def random_router(context, request, route):
    requests, known, parameters = context.requests, context.known, context.parameters
    snapshots, tiers = known.snapshots, known.tiers.shape[0] - 2
    drawn, ending, decoding = request, 0, 0
    for e in range(snapshots.shape[0]):
        drawn += (e + 1) * (snapshots[e].version + 3 * snapshots[e].free_blocks)
        if snapshots[e].role == ROLE_DECODE:
            decoding += snapshots[e].requests
        if snapshots[e].role != ROLE_PREFILL:
            ending += snapshots[e].requests
    has_kv = requests[request].computed_tokens > 0
    # These engines end what they have; prefill engines may wait for the memory of KV that is held here.
    if (decoding if has_kv else ending) > 0 and drawn % 5 < int(parameters[0]):
        route.held_queue = drawn // 5 % (tiers + 1)
        return
    route.engine = nth_taker(drawn // 3 % takers(snapshots, requests[request]), snapshots, requests[request])
    if snapshots[route.engine].tier == POOL and drawn % 7 < int(parameters[1]):
        route.tier = drawn // 7 % tiers
    if not has_kv and drawn % 3 < int(parameters[2]):
        for e in range(snapshots.shape[0]):
            if may_decode(snapshots[e]):
                route.decode_engine = e


@scaler
def random_scaler(context, moves):
    known, state, parameters = context.known, context.state, context.parameters
    state[0, 0] += 1
    check = int(state[0, 0])
    for e in range(moves.shape[0]):
        drawn = 5 * check + 3 * e + known.snapshots[e].version
        if check <= int(parameters[1]):
            moves[e].tier = drawn % (known.tiers.shape[0] - 1) - 1
        # Where nothing more happens with all closed, there is another check, at which all are open.
        moves[e].closed = check <= int(parameters[1]) and check % 2 == 1 and drawn % 3 == 0
        # In the end, and at every other check, each has the role of its pool again.
        if known.snapshots[e].role_fixed == 0:
            if check == 1:
                state[e, 1] = moves[e].role
            moves[e].role = int(state[e, 1])
            if check <= int(parameters[1]) and check % 2 == 1 and drawn % 7 < int(parameters[2]):
                moves[e].role = ROLE_PREFILL + ROLE_DECODE - moves[e].role


@scheduler
def random_scheduler(context, ranks, limits):
    requests, queue, parameters = context.requests, context.queue, context.parameters
    limits.preemptible = int(parameters[0])
    limits.slice_s = parameters[1]
    limits.chunk_tokens = int(parameters[2])
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        ranks[position].tier = request.priority if not is_decoding(request) else int(parameters[3])
        ranks[position].key = float(queue[position] * 7 % 5)


def whole(name: str, default: int, low: int, high: int) -> Parameter:
    return Parameter(name, default, "see random_policies.py", low, high, integer=True)


RANDOM_ROUTER = Policy(
    "random-router", "router", "Holds requests, moves engines, names lines and decode engines.", "made up",
    random_router,
    parameters=(whole("holds", 2, 0, 5), whole("moves", 2, 0, 7), whole("names", 1, 0, 3)),
    moves_engines=True,
)  # fmt: skip
RANDOM_SCALER = Policy(
    "random-scaler", "scaler", "Moves, closes and opens engines, and changes their roles.", "made up", random_scaler,
    parameters=(Parameter("interval_s", 0.5, "between checks", 0.25, 8.0, "s"), whole("checks", 6, 0, 12),
                whole("changes", 3, 0, 7)),
    state=StateFields(engine=("checks", "role")),
)  # fmt: skip
RANDOM_SCHEDULER = Policy(
    "random-scheduler", "scheduler", "Batches that are suspended for whatever comes.", "made up", random_scheduler,
    parameters=(
        whole("preemptible", AT_OPERATORS, NOT_PREEMPTIBLE, AT_LAYERS),
        Parameter("slice_s", 1e9, "see types.py", 0.0, 1e9, "s"),
        whole("chunk_tokens", 1000, 1, 1000), whole("decode_tier", 0, -1, 3),
    ),
    state=StateFields(tasks=True),
)  # fmt: skip
