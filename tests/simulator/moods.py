"""Policies without sense, under which every run ends all the same: what must hold, must hold under these too."""

from servegym.simulator.policies import Parameter, Policy, StateFields
from servegym.simulator.requests import is_decoding
from servegym.simulator.routing import may_decode, nth_taker, takers
from servegym.simulator.signatures import router, scaler, scheduler
from servegym.simulator.types import AT_LAYERS, AT_OPERATORS, NOT_PREEMPTIBLE, POOL, ROLE_DECODE, ROLE_PREFILL


@router
def moody(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views, tiers = known.views, known.tiers.shape[0] - 2
    mood, ending, decoding = r, 0, 0
    for e in range(views.shape[0]):
        mood += (e + 1) * (views[e].version + 3 * views[e].free_blocks)
        if views[e].role == ROLE_DECODE:
            decoding += views[e].requests
        if views[e].role != ROLE_PREFILL:
            ending += views[e].requests
    has_kv = requests[r].computed_tokens > 0
    # These engines end what they have; prefill engines may wait for the memory of KV that is held here.
    if (decoding if has_kv else ending) > 0 and mood % 5 < int(parameters[0]):
        route.line = mood // 5 % (tiers + 1)
        return
    route.engine = nth_taker(mood // 3 % takers(views, requests[r]), views, requests[r])
    if views[route.engine].tier == POOL and mood % 7 < int(parameters[1]):
        route.tier = mood // 7 % tiers
    if not has_kv and mood % 3 < int(parameters[2]):
        for e in range(views.shape[0]):
            if may_decode(views[e]):
                route.decode_engine = e


@scaler
def restless(now_s, requests, known, state, parameters, estimates, moves):
    state[0, 0] += 1
    check = int(state[0, 0])
    for e in range(moves.shape[0]):
        mood = 5 * check + 3 * e + known.views[e].version
        if check <= int(parameters[1]):
            moves[e].tier = mood % (known.tiers.shape[0] - 1) - 1
        # Where nothing more happens with all closed, there is another check, at which all are open.
        moves[e].closed = check <= int(parameters[1]) and check % 2 == 1 and mood % 3 == 0


@scheduler
def lurching(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.preemptible = int(parameters[0])
    limits.slice_s = parameters[1]
    limits.chunk_tokens = int(parameters[2])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = request.priority if not is_decoding(request) else int(parameters[3])
        plan[place].key = float(queue[place] * 7 % 5)


def whole(name: str, default: int, low: int, high: int) -> Parameter:
    return Parameter(name, default, "see moods.py", low, high, integer=True)


MOODY = Policy(
    "moody", "router", "Holds requests, moves engines, names lines and decode engines.", "made up", moody,
    parameters=(whole("holds", 2, 0, 5), whole("moves", 2, 0, 7), whole("names", 1, 0, 3)),
    moves_engines=True,
)  # fmt: skip
RESTLESS = Policy(
    "restless", "scaler", "Moves, closes and opens engines.", "made up", restless,
    parameters=(Parameter("interval_s", 0.5, "between checks", 0.25, 8.0, "s"), whole("checks", 6, 0, 12)),
    state=StateFields(engine=("checks",)),
)  # fmt: skip
LURCHING = Policy(
    "lurching", "scheduler", "Batches that are suspended for whatever comes.", "made up", lurching,
    parameters=(
        whole("preemptible", AT_OPERATORS, NOT_PREEMPTIBLE, AT_LAYERS),
        Parameter("slice_s", 1e9, "see types.py", 0.0, 1e9, "s"),
        whole("chunk_tokens", 1000, 1, 1000), whole("decode_tier", 0, -1, 3),
    ),
    state=StateFields(tasks=True),
)  # fmt: skip
