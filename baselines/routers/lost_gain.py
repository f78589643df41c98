"""A router of this project: send a request where the least gain is expected to be lost, its own and that of others.

ProServe's router counts the gain that a request adds, less what queued prompts lose. This one counts decodes too, and
chances in place of yes and no. A request takes nothing from the others on an engine where nearly all are late already.
So requests that a fleet cannot serve in time collect on few engines, and others stay within their SLOs.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import math

import numpy as np

from servegym.baselines.routers.predicted_cost import chance_of_being_late, logistic, mean_requests
from servegym.baselines.routers.prefix_affinity import OWN_S, add_to_queue, decodes_s, prefill_s, queue_s
from servegym.baselines.routers.prefix_affinity import STATE as QUEUE_STATE
from servegym.baselines.routers.ties import MEASURE, least_of_takers, send_to
from servegym.policy import (
    REFUSE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    adapter_s,
    kernel,
    register,
    router,
    takes,
)

P = Parameters(
    Parameter("others", 0.4, "weight of each other request on the engine that is expected to miss its TPOT SLO because "
              "of this one", 0, 10),
    Parameter("own", 2.0, "weight of the chance that the request misses its own TPOT SLO", 0, 20),
    Parameter("late", 2.0, "weight of the chance that its first token is late", 0, 20),
    Parameter("sharpness", 3.0, "how fast the chance of a late first token grows with lateness, per TTFT SLO", 0.5, 50,
              log=True),
    Parameter("pace_limit", 0.9, "time between tokens, in TPOT SLOs, at which half the requests miss theirs", 0, 2),
    Parameter("pace_sharpness", 40.0, "how fast that share grows with the time between tokens, per TPOT SLO", 1, 200,
              log=True),
    Parameter("window_s", 6.0, "time over which the share of an engine's time that prefills take is averaged", 0.1, 100,
              "s", log=True),
    Parameter("queue", 1.0, "weight of the wait for prompts queued before it; its own prefill has the weight 1", 0, 10),
    Parameter("pace", 1.0, "weight of the time between tokens, in TPOT SLOs", 0, 10),
    Parameter("memory", 3.0, "weight of the KV blocks that it and queued prompts need beyond the free ones, as a share "
              "of all", 0, 100),
    Parameter("load", 0.3, "weight of the number of requests there over its mean over the engines", 0, 10),
    Parameter("stall", 1.0, "weight of the time to load its LoRA adapter for each request that is there, as the engine "
              "computes nothing meanwhile", 0, 10),
    Parameter("refuse", 0.0, "a request is refused if its chance to meet its SLOs on the chosen engine is below this, "
              "unless one of its session was sent before; 0: none is", 0, 1),
)  # fmt: skip
# recent_s: the prefill times of requests sent there, each times e^(-its age / window_s), as of recent_at_s.
# tpot_slo_s: mean TPOT SLO of the requests there, as far as the router knows; 0: it has sent none.
STATE = StateFields(engine=(*QUEUE_STATE.engine, "recent_s", "recent_at_s", "tpot_slo_s"))
RECENT_S, RECENT_AT_S, TPOT_SLO_S = range(OWN_S + 1, OWN_S + 4)
MOST_PREFILLING = 0.9  # cap on the share of an engine's time that prefills take
LARGEST_PREFILL = 0.1  # cap on a prefill in recent_s, as a share of window_s: it delays the tokens of an answer once


@kernel
def recent_s(context, e):
    """Return the sum of the prefill times sent to engine e, each times e^(-its age / window_s), s."""
    state = context.state
    return state[e, RECENT_S] * math.exp((state[e, RECENT_AT_S] - context.now_s) / P.read(context).window_s)


@kernel
def counted_s(context, e):
    """Return what the request, whose OWN_S is set, adds to `recent_s` of engine e, s."""
    return min(context.state[e, OWN_S], LARGEST_PREFILL * P.read(context).window_s)


@kernel
def token_s(context, e, own, tokens):
    """Return the expected time between tokens on engine e, s; 0 where nothing will decode.

    own: 1 with the request, whose context is `tokens` and whose OWN_S is set; 0 without it, where `tokens` is 0.
    """
    snapshot = context.known.snapshots[e]
    if snapshot.role == ROLE_PREFILL or snapshot.decodes + snapshot.prefills + own == 0:
        return 0.0
    batch_s = decodes_s(context, e, snapshot.prefills + own, snapshot.prefill_tokens + tokens)
    # A batch of decodes waits for the prefills before it: its time / (1 - share of the time that prefills take).
    prefilling = (recent_s(context, e) + own * counted_s(context, e)) / P.read(context).window_s
    return batch_s / (1.0 - min(MOST_PREFILLING, prefilling))


@kernel
def chance_of_slow(context, pace):
    """Return the chance that a request misses its TPOT SLO. pace: time between tokens in TPOT SLOs; 0: none decodes."""
    p = P.read(context)
    return logistic(p.pace_sharpness * (pace - p.pace_limit)) if pace > 0.0 else 0.0


@kernel
def cost(context, e, record, tokens, mean, load_s):
    """Return the cost of the request on engine e, whose OWN_S is set.

    tokens: its context. mean: `mean_requests`. load_s: time to load its LoRA adapter there.
    """
    p, snapshot, slo_s = P.read(context), context.known.snapshots[e], record.first_deadline_s - record.arrival_s
    without_s, with_s = token_s(context, e, 0, 0), token_s(context, e, 1, tokens)
    there_s = context.state[e, TPOT_SLO_S] if context.state[e, TPOT_SLO_S] > 0.0 else record.tpot_slo_s
    before, after = chance_of_slow(context, without_s / there_s), chance_of_slow(context, with_s / there_s)
    pace = with_s / record.tpot_slo_s
    lost = p.own * chance_of_slow(context, pace) + p.others * (snapshot.decodes + snapshot.prefills) * (after - before)
    lost += p.stall * load_s / slo_s * snapshot.requests
    # What later requests lose: the time, the pace and the memory that this one takes.
    blocks = (snapshot.prefill_tokens + tokens) / snapshot.block_tokens
    later = p.pace * pace + p.memory * max(0.0, (blocks - snapshot.free_blocks) / snapshot.total_blocks)
    if record.computed_tokens == 0:
        lost += p.late * chance_of_being_late(context, e, record, p.sharpness)
        later += (context.state[e, OWN_S] + p.queue * queue_s(context, e)) / slo_s
    return lost + (1.0 - before) * later + p.load * snapshot.requests / max(mean, 1.0)


@kernel
def is_hopeless(context, e, record, tokens):
    """Return whether the request is refused on engine e, whose OWN_S is set: it is not likely to meet its SLOs there.

    Only the first of a session is refused: with a later turn the rest would be lost, and what was computed for it.
    """
    p = P.read(context)
    if p.refuse == 0.0 or record.num_output_tokens > 0 or record.session_engine >= 0:
        return False
    slow = chance_of_slow(context, token_s(context, e, 1, tokens) / record.tpot_slo_s)
    return (1.0 - slow) * (1.0 - chance_of_being_late(context, e, record, p.sharpness)) < p.refuse


@kernel
def count_slo(context, e, record):
    """Count the TPOT SLO of the request, which is sent to engine e, in the mean there."""
    known, state = context.state[e, TPOT_SLO_S] > 0.0, context.state
    if record.tpot_slo_s < np.inf:
        requests = context.known.snapshots[e].requests if known else 0
        state[e, TPOT_SLO_S] += (record.tpot_slo_s - state[e, TPOT_SLO_S]) / (1 + requests)


@router
def lost_gain(context, request, route):
    state, record = context.state, context.requests[request]
    tokens, mean = record.prompt_tokens + record.num_output_tokens, mean_requests(context, record)
    for e in range(context.known.snapshots.shape[0]):
        if not takes(context.known.snapshots[e], record):
            continue
        load_s = adapter_s(context.known, record, e)
        state[e, OWN_S] = prefill_s(context, request, e) + load_s if record.computed_tokens == 0 else 0.0
        state[e, MEASURE] = cost(context, e, record, tokens, mean, load_s)
    e = least_of_takers(context, request)
    if is_hopeless(context, e, record, tokens):
        route.engine = REFUSE
        return
    send_to(e, state, route)
    count_slo(context, e, record)
    if record.computed_tokens == 0:
        add_to_queue(context, e, tokens)
        state[e, RECENT_S] = recent_s(context, e) + counted_s(context, e)
        state[e, RECENT_AT_S] = context.now_s


register(
    Policy(
        "lost-gain",
        "router",
        "The least expected loss of gain: the chance that the request is late, and those that it makes late.",
        "ours",
        lost_gain,
        state=STATE,
        parameters=P,
    )
)
