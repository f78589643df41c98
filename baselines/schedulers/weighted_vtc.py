"""Weighted VTC: fair shares of the tokens served, by client (VTC; ProServe, section 5.1).

The rule, and why a tag for each waiting request gives VTC's order, is in docs/systems/vtc.md.
"""

import numpy as np

from servegym.baselines.schedulers import sarathi
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import scheduler

DECODE, HOLDER, WAITING = range(3)  # tiers

# state.clients: the first three last, the others are of one ranking, whose number tells whether they have been reset.
CLIENT_FIELDS = ("counter", "charged", "weight", "ranking", "next", "waits", "left_waiting", "tag")
COUNTER, CHARGED, WEIGHT, RANKING, NEXT, WAITS, LEFT_WAITING, TAG = range(8)
SEEN = 0  # of state.requests
LAST, RANKINGS = range(2)  # of state.engines; LAST: client + 1, 0: none
NOBODY = -1


@kernel
def survey(requests, queue, state, ranking, plan):
    """Rank all but the waiting requests, and note whether each client here waits and was left waiting.

    Returns one of the clients here; each knows the next. A waiting request's line keeps its client (victim_tier) and
    the prompt tokens it is yet to be charged (exec_s), so that the pass over tags reads nothing else.
    """
    first = NOBODY
    for place in range(queue.shape[0]):
        r = queue[place]
        request, line = requests[r], plan[place]
        client = state.clients[request.client]
        if client[RANKING] != ranking:
            client[RANKING] = ranking
            client[NEXT] = first
            first = request.client
            client[WAITS] = client[LEFT_WAITING] = 0.0
            client[WEIGHT] = request.weight
        if request.blocks > 0:
            line.tier = DECODE if is_decoding(request) else HOLDER
            line.key = request.arrival_s
        else:
            line.tier = WAITING
            line.victim_tier = request.client
            line.exec_s = 0.0 if request.evicted > 0 else float(request.prompt_tokens)
            client[WAITS] = 1.0
            if state.requests[r, SEEN] == 1.0:
                client[LEFT_WAITING] = 1.0
            else:
                state.requests[r, SEEN] = 1.0
    return first


@kernel
def charge(client, group, input_weight, output_weight):
    """Bring a client's counter up to what it has been served since it was last looked at."""
    served = input_weight * group.admitted_prompt_tokens + output_weight * group.emitted_tokens
    client[COUNTER] += (served - client[CHARGED]) / client[WEIGHT]
    client[CHARGED] = served


@kernel
def charge_and_lift(state, first, last, input_weight, output_weight):
    """Charge the clients here, and lift those that return to the smallest counter of those left waiting."""
    level = np.inf
    c = first
    while c != NOBODY:
        client = state.clients[c]
        charge(client, state.by_client[c], input_weight, output_weight)
        if client[LEFT_WAITING] == 1.0:
            level = min(level, client[COUNTER])
        c = int(client[NEXT])
    if level == np.inf and last != NOBODY:
        charge(state.clients[last], state.by_client[last], input_weight, output_weight)
        level = state.clients[last, COUNTER]
    c = first
    while c != NOBODY:
        client = state.clients[c]
        if client[WAITS] == 1.0 and level < np.inf:  # those left waiting are up there anyway
            client[COUNTER] = max(client[COUNTER], level)
        client[TAG] = client[COUNTER]
        c = int(client[NEXT])


@scheduler
def weighted_vtc(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    sarathi.set_budgets(parameters, limits)
    input_weight, output_weight = parameters[2], parameters[3]
    own = state.engines[engine.index]
    own[RANKINGS] += 1.0
    first = survey(requests, queue, state, own[RANKINGS], plan)
    charge_and_lift(state, first, int(own[LAST]) - 1, input_weight, output_weight)
    last_tag = -np.inf
    for place in range(queue.shape[0]):
        line = plan[place]
        if line.tier != WAITING:
            continue
        # The counter its client will have when it is this request's turn.
        client = state.clients[line.victim_tier]
        line.key = client[TAG]
        client[TAG] += (input_weight * line.exec_s) / client[WEIGHT]
        if line.key >= last_tag:
            last_tag = line.key
            own[LAST] = line.victim_tier + 1.0


register(
    Policy(
        "weighted-vtc",
        "scheduler",
        "Fair shares: admits from the client with the fewest tokens served over its weight; runs as sarathi-fcfs.",
        "VTC; ProServe, section 5.1",
        weighted_vtc,
        parameters=(
            *sarathi.PARAMETERS,
            Parameter("input_weight", 1.0, "charge for a prompt token", 0, 1000, source="VTC"),
            Parameter("output_weight", 2.0, "charge for an output token", 0, 1000, source="VTC"),
        ),
        state=StateFields(request=("seen",), engine=("last", "rankings"), client=CLIENT_FIELDS, by_client=True),
    )
)
