"""Weighted VTC: fair shares of the tokens served, by client (VTC; ProServe, section 5.1).

The rule, and why a tag for each waiting request gives VTC's order, is in docs/systems/vtc.md.
"""

import numpy as np

from servegym.baselines.schedulers import sarathi
from servegym.policy import (
    Parameter,
    Parameters,
    Policy,
    Scratch,
    StateFields,
    is_decoding,
    kernel,
    limits_kernel,
    register,
    scheduler,
)

DECODE, HOLDER, WAITING = range(3)  # tiers

# state.clients: the first three persist; the others are for one ranking, and are reset if `ranking` is not its number.
CLIENT_FIELDS = ("counter", "charged", "weight", "ranking", "next", "waits", "left_waiting", "tag")
COUNTER, CHARGED, WEIGHT, RANKING, NEXT, WAITS, LEFT_WAITING, TAG = range(8)
SEEN = 0  # of state.requests
LAST, RANKINGS = range(2)  # of state.engines; LAST: client + 1, 0: none
NO_CLIENT = -1
SCRATCH = Scratch("uncharged_tokens", indices=("client",))  # by position, of waiting requests

P = Parameters(
    *sarathi.P,
    Parameter("input_weight", 1.0, "weight of a prompt token in its client's counter", 0, 1000, source="VTC"),
    Parameter("output_weight", 2.0, "weight of an output token in its client's counter", 0, 1000, source="VTC"),
)
set_limits = limits_kernel(sarathi.LIMITS, P)


@kernel
def survey(context, s, ranking, ranks):
    """Rank running requests, and write whether each client has waiting requests, and had them at the last ranking.

    Returns the first of a linked list of the clients here (NEXT). s: receives the client of each waiting request and
    the prompt tokens that it was not charged for yet.
    """
    state, first = context.state, NO_CLIENT
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        request, rank = context.requests[r], ranks[position]
        client = state.clients[request.client]
        if client[RANKING] != ranking:
            client[RANKING] = ranking
            client[NEXT] = first
            first = request.client
            client[WAITS] = client[LEFT_WAITING] = 0.0
            client[WEIGHT] = request.weight
        if request.blocks > 0:
            rank.tier = DECODE if is_decoding(request) else HOLDER
            rank.key = request.arrival_s
        else:
            rank.tier = WAITING
            s.client[position] = request.client
            s.uncharged_tokens[position] = 0.0 if request.evicted > 0 else float(request.prompt_tokens)
            client[WAITS] = 1.0
            if state.requests[r, SEEN] == 1.0:
                client[LEFT_WAITING] = 1.0
            else:
                state.requests[r, SEEN] = 1.0
    return first


@kernel
def charge(client, group, input_weight, output_weight):
    """Add the service of a client since the last call to its counter."""
    served = input_weight * group.admitted_prompt_tokens + output_weight * group.num_output_tokens
    client[COUNTER] += (served - client[CHARGED]) / client[WEIGHT]
    client[CHARGED] = served


@kernel
def charge_and_lift(state, first, last, input_weight, output_weight):
    """Charge the clients here; lift the counters of returning clients to the smallest among clients left waiting."""
    level = np.inf
    c = first
    while c != NO_CLIENT:
        client = state.clients[c]
        charge(client, state.by_client[c], input_weight, output_weight)
        if client[LEFT_WAITING] == 1.0:
            level = min(level, client[COUNTER])
        c = int(client[NEXT])
    if level == np.inf and last != NO_CLIENT:
        charge(state.clients[last], state.by_client[last], input_weight, output_weight)
        level = state.clients[last, COUNTER]
    c = first
    while c != NO_CLIENT:
        client = state.clients[c]
        if client[WAITS] == 1.0 and level < np.inf:  # clients left waiting are not below the level
            client[COUNTER] = max(client[COUNTER], level)
        client[TAG] = client[COUNTER]
        c = int(client[NEXT])


@scheduler
def weighted_vtc(context, ranks, limits):
    p, s, state = P.read(context), SCRATCH.read(context), context.state
    set_limits(limits, p)
    own = state.engines[context.engine.index]
    own[RANKINGS] += 1.0
    first = survey(context, s, own[RANKINGS], ranks)
    charge_and_lift(state, first, int(own[LAST]) - 1, p.input_weight, p.output_weight)
    last_tag = -np.inf
    for position in range(context.queue.shape[0]):
        rank = ranks[position]
        if rank.tier != WAITING:
            continue
        # The counter of its client when it will be this request's turn.
        client = state.clients[s.client[position]]
        rank.key = client[TAG]
        client[TAG] += (p.input_weight * s.uncharged_tokens[position]) / client[WEIGHT]
        if rank.key >= last_tag:
            last_tag = rank.key
            own[LAST] = s.client[position] + 1.0


register(
    Policy(
        "weighted-vtc",
        "scheduler",
        "Fair shares: admits from the client with the fewest tokens served over its weight; runs as sarathi-fcfs.",
        "VTC; ProServe, section 5.1",
        weighted_vtc,
        parameters=P,
        scratch=SCRATCH,
        state=StateFields(request=("seen",), engine=("last", "rankings"), client=CLIENT_FIELDS, by_client=True),
    )
)
