"""Policies that write or read where they should not: one function of each kind, and a policy for each way."""

from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.routing import takes
from servegym.simulator.signatures import router, scaler, scheduler, victims

SCHEDULER_WAYS = (
    "none", "plan-past-end", "plan-far-away", "plan-before-start", "plan-by-request", "requests-by-place",
    "last-not-ranked", "writes-requests", "state-past-width", "queue-past-end", "state-by-place", "writes-queue",
    "clients-by-request", "victims-by-place", "limit-by-place", "raises-when-busy",
)  # fmt: skip


@scheduler
def harmful(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    way, n = int(parameters[0]), queue.shape[0]
    for place in range(n):
        request = requests[queue[place]]
        plan[place].tier, plan[place].key = 0, request.arrival_s
        state.requests[queue[place], 0] += 1.0
        if way == 4:
            plan[queue[place]].key = request.arrival_s
        elif way == 5:
            plan[place].key = requests[place].prompt_tokens
        elif way == 10:
            state.requests[place, 0] += 1.0
        elif way == 12:
            state.clients[queue[place], 0] += 1.0
    if way == 1:
        plan[n].key = 0.0
    elif way == 2:
        plan[10**7].key = 0.0
    elif way == 3:
        plan[-1].key = 5.0
    elif way == 6:
        pass
    elif way == 7:
        requests[queue[0]].emitted_tokens += 1
    elif way == 8:
        plan[0].key = state.requests[queue[0], 3]
    elif way == 9:
        plan[0].key = queue[n]
    elif way == 11:
        queue[0] = 0
    elif way == 14:
        limits.token_budget = 1 + requests[n - 1].prompt_tokens
    elif way == 15:
        assert n < 20, "so many requests"


@scheduler
def forgets_the_last(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0] - 1):
        plan[place].tier, plan[place].key = 0, float(place)


@victims
def harmful_victims(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0]):
        plan[place].victim_tier, plan[place].victim_key = 0, plan[place].key
        if int(parameters[0]) == 13:
            plan[place].victim_key = requests[place].prompt_tokens


for way in SCHEDULER_WAYS:
    register(
        Policy(
            way, "scheduler", "Does harm.", "", forgets_the_last if way == "last-not-ranked" else harmful,
            victims=harmful_victims, parameters=(Parameter("way", way, "what it does", choices=SCHEDULER_WAYS),),
            state=StateFields(request=("seen",), client=("seen",)),
        )
    )  # fmt: skip

ROUTER_WAYS = (
    "route-right", "records-past-end", "plan-beyond", "order-before-start", "writes-views", "unknown-requests",
)  # fmt: skip


@router
def harmful_router(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    way = int(parameters[0])
    for e in range(known.views.shape[0]):
        if takes(known.views[e], requests[r]) and (route.engine < 0 or (r + e) % 3 == 0):
            route.engine = e
    e = route.engine
    if way == 1:
        other = requests[known.records[e, known.views[e].prefills]]
        route.line = other.prompt_tokens % 2
    elif way == 2:
        plan[plan.shape[0]].key = 1.0
    elif way == 3:
        order[-order.shape[0] - 1] = 1
    elif way == 4:
        known.views[e].requests += 1
    elif way == 5:
        route.line = (requests[0].prompt_tokens + requests[requests.shape[0] - 1].prompt_tokens) % 4


for way in ROUTER_WAYS:
    register(
        Policy(way, "router", "Does harm.", "", harmful_router,
               parameters=(Parameter("way", way, "what it does", choices=ROUTER_WAYS),))
    )  # fmt: skip


@scaler
def harmful_scaler(now_s, requests, known, state, parameters, estimates, moves):
    moves[moves.shape[0] - 1].tier = 1
    if parameters[1] == 1.0:
        moves[moves.shape[0]].tier = 1


for way, harm in (("scale-right", 0), ("moves-past-end", 1)):
    register(
        Policy(way, "scaler", "Does harm.", "", harmful_scaler, parameters=(
            Parameter("interval_s", 2.0, "between checks", low=0.1), Parameter("harm", harm, "what it does")))
    )  # fmt: skip
