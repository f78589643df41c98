"""Policies that write or read where they should not: one function of each kind, and a policy for each way."""

from servegym.simulator.fleet.routing import takes
from servegym.simulator.policies.policy import Parameter, Policy, Scratch, StateFields, register
from servegym.simulator.records.signatures import router, scaler, scheduler, victims

SCHEDULER_WAYS = (
    "none", "ranks-past-end", "ranks-far-away", "ranks-before-start", "ranks-by-request", "requests-by-place",
    "last-not-ranked", "writes-requests", "state-past-width", "queue-past-end", "state-by-place", "writes-queue",
    "clients-by-request", "victims-by-place", "limit-by-place", "raises-when-busy",
)  # fmt: skip


@scheduler
def harmful(context, ranks, limits):
    requests, queue, state, parameters = context.requests, context.queue, context.state, context.parameters
    way, n = int(parameters[0]), queue.shape[0]
    for position in range(n):
        request = requests[queue[position]]
        ranks[position].tier, ranks[position].key = 0, request.arrival_s
        state.requests[queue[position], 0] += 1.0
        if way == 4:
            ranks[queue[position]].key = request.arrival_s
        elif way == 5:
            ranks[position].key = requests[position].prompt_tokens
        elif way == 10:
            state.requests[position, 0] += 1.0
        elif way == 12:
            state.clients[queue[position], 0] += 1.0
    if way == 1:
        ranks[n].key = 0.0
    elif way == 2:
        ranks[10**7].key = 0.0
    elif way == 3:
        ranks[-1].key = 5.0
    elif way == 6:
        pass
    elif way == 7:
        requests[queue[0]].num_output_tokens += 1
    elif way == 8:
        ranks[0].key = state.requests[queue[0], 3]
    elif way == 9:
        ranks[0].key = queue[n]
    elif way == 11:
        queue[0] = 0
    elif way == 14:
        limits.max_num_batched_tokens = 1 + requests[n - 1].prompt_tokens
    elif way == 15:
        assert n < 20, "so many requests"


@scheduler
def forgets_the_last(context, ranks, limits):
    queue = context.queue
    for position in range(queue.shape[0] - 1):
        ranks[position].tier, ranks[position].key = 0, float(position)


@victims
def harmful_victims(context, ranks, limits):
    requests, queue, parameters = context.requests, context.queue, context.parameters
    for position in range(queue.shape[0]):
        ranks[position].victim_tier, ranks[position].victim_key = 0, ranks[position].key
        if int(parameters[0]) == 13:
            ranks[position].victim_key = requests[position].prompt_tokens


for way in SCHEDULER_WAYS:
    register(
        Policy(
            way, "scheduler", "Does harm.", "", forgets_the_last if way == "last-not-ranked" else harmful,
            victims=harmful_victims, parameters=(Parameter("way", way, "what it does", choices=SCHEDULER_WAYS),),
            state=StateFields(request=("seen",), client=("seen",)),
        )
    )  # fmt: skip

ROUTER_WAYS = (
    "route-right", "records-past-end", "scratch-past-end", "scratch-before-start", "writes-views", "unknown-requests",
)  # fmt: skip
SCRATCH = Scratch("work", indices=("order",))


@router
def harmful_router(context, request, route):
    requests, known, parameters = context.requests, context.known, context.parameters
    way, s = int(parameters[0]), SCRATCH.read(context)
    for e in range(known.snapshots.shape[0]):
        if takes(known.snapshots[e], requests[request]) and (route.engine < 0 or (request + e) % 3 == 0):
            route.engine = e
    e = route.engine
    if way == 1:
        other = requests[known.prefilling[e, known.snapshots[e].prefills]]
        route.held_queue = other.prompt_tokens % 2
    elif way == 2:
        s.work[s.work.shape[0]] = 1.0
    elif way == 3:
        s.order[-s.order.shape[0] - 1] = 1
    elif way == 4:
        known.snapshots[e].requests += 1
    elif way == 5:
        route.held_queue = (requests[0].prompt_tokens + requests[requests.shape[0] - 1].prompt_tokens) % 4


for way in ROUTER_WAYS:
    register(
        Policy(way, "router", "Does harm.", "", harmful_router,
               parameters=(Parameter("way", way, "what it does", choices=ROUTER_WAYS),), scratch=SCRATCH)
    )  # fmt: skip


@scaler
def harmful_scaler(context, moves):
    parameters = context.parameters
    moves[moves.shape[0] - 1].tier = 1
    if parameters[1] == 1.0:
        moves[moves.shape[0]].tier = 1


for way, harm in (("scale-right", 0), ("moves-past-end", 1)):
    register(
        Policy(way, "scaler", "Does harm.", "", harmful_scaler, parameters=(
            Parameter("interval_s", 2.0, "between checks", low=0.1), Parameter("harm", harm, "what it does")))
    )  # fmt: skip
