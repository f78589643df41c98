"""A router of this project: send a request where the least gain is expected to be lost, its own and that of others.

ProServe's router counts the gain that a request adds, less what queued prompts lose. This one counts decodes too, and
chances in place of yes and no. A request takes nothing from the others on an engine where nearly all are late already.
So requests that a fleet cannot serve in time collect on few engines, and those elsewhere stay within their SLOs.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import numpy as np

from servegym.baselines.routers.engine_pace import (
    BATCH_S,
    KEPT,
    count_prefill,
    look_at,
    memory_s,
    missing_blocks,
    slowest_batch_s,
    token_s,
)
from servegym.baselines.routers.engine_pace import FIELDS as PACE_FIELDS
from servegym.baselines.routers.predicted_cost import chance_of_being_late, logistic, mean_requests
from servegym.baselines.routers.prefix_affinity import OWN_S, add_to_queue, decodes_s, prefill_s, queue_s
from servegym.baselines.routers.ties import MEASURE, least_of_takers, send_to
from servegym.policy import (
    REFUSE,
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
    Parameter("others", 0.5, "weight of each other request on the engine that is expected to miss an SLO because of "
              "this one", 0, 10),
    Parameter("own", 2.5, "weight of the chance that the request misses its own TPOT SLO", 0, 20),
    Parameter("late", 2.0, "weight of the chance that its first token is late", 0, 20),
    Parameter("sharpness", 6.0, "how fast the chance of a late first token grows with lateness, per TTFT SLO", 0.5, 50,
              log=True),
    Parameter("pace_limit", 0.95, "time between tokens, in TPOT SLOs, at which half the requests miss theirs", 0, 2),
    Parameter("pace_sharpness", 40.0, "how fast that share grows with the time between tokens, per TPOT SLO", 1, 200,
              log=True),
    Parameter("window_s", 6.0, "time over which what an engine prefills, emits and finishes is averaged", 0.1, 100,
              "s", log=True),
    Parameter("queue", 0.8, "weight of the wait for prompts queued before it; its own prefill has the weight 1", 0, 10),
    Parameter("pace", 1.0, "weight of the time between tokens, in TPOT SLOs", 0, 10),
    Parameter("memory_limit", 0.7, "share of KV blocks in use, with queued prompts and this one, above which memory "
              "costs", 0, 1),
    Parameter("memory_barrier", 5.0, "weight of the part above memory_limit", 0, 100),
    Parameter("session", 0.8, "cost of another engine than that of its session's last request", 0, 10),
    Parameter("load", 0.3, "weight of the number of requests there over its mean over the engines", 0, 10),
    Parameter("recover", 3.0, "weight of the share of requests there that are late anyway, times how much faster the "
              "engine is than the slowest", 0, 100),
    Parameter("stall", 1.0, "weight of the time to load its LoRA adapter for each request that is there, as the engine "
              "computes nothing meanwhile", 0, 10),
    Parameter("refuse", 0.0, "a request is refused if its chance to meet its SLOs on the chosen engine is below this, "
              "unless one of its session was sent before; 0: none is", 0, 1),
)  # fmt: skip
# ttft_slo_s, tpot_slo_s: mean SLOs of the requests there, as far as the router knows; 0: it has sent none. late: share
# of requests whose first token is late there, averaged over window_s.
STATE = StateFields(engine=(*PACE_FIELDS, "ttft_slo_s", "tpot_slo_s", "late"))
TTFT_SLO_S, TPOT_SLO_S, LATE = range(BATCH_S + 1, BATCH_S + 4)


@kernel
def chance_of_slow(context, pace):
    """Return the chance that a request misses its TPOT SLO. pace: time between tokens in TPOT SLOs; 0: none decodes."""
    p = P.read(context)
    return logistic(p.pace_sharpness * (pace - p.pace_limit)) if pace > 0.0 else 0.0


@kernel
def wait_s(context, e, tokens):
    """Return the time until engine e has prefilled its queue and has the KV blocks for a request of this context, s."""
    return max(queue_s(context, e), memory_s(context, e, tokens, P.read(context).window_s))


@kernel
def mean_slo_s(context, e, field, slo_s):
    """Return a mean SLO of the requests on engine e, s; `slo_s` if it has been sent none."""
    return context.state[e, field] if context.state[e, field] > 0.0 else slo_s


@kernel
def cost(context, e, record, tokens, mean, load_s, beside_s, slowest_s):
    """Return the cost of the request on engine e, where its prefill takes OWN_S.

    tokens: its context. mean: `mean_requests`. load_s: time to load its LoRA adapter. beside_s: time of a batch of the
    decodes there. slowest_s: `slowest_batch_s`.
    """
    p, state, snapshot = P.read(context), context.state, context.known.snapshots[e]
    slo_s = record.first_deadline_s - record.arrival_s
    without_s, with_s = token_s(context, e, 0, 0, p.window_s), token_s(context, e, 1, tokens, p.window_s)
    there_s = mean_slo_s(context, e, TPOT_SLO_S, record.tpot_slo_s)
    slow, slow_with = chance_of_slow(context, without_s / there_s), chance_of_slow(context, with_s / there_s)
    pace, to_decode = with_s / record.tpot_slo_s, snapshot.decodes + snapshot.prefills
    lost = p.own * chance_of_slow(context, pace) + p.others * to_decode * (slow_with - slow)
    lost += p.stall * load_s / slo_s * snapshot.requests
    used = 1.0 + missing_blocks(snapshot, tokens) / snapshot.total_blocks
    later, on_time = p.pace * pace + p.memory_barrier * max(0.0, used - p.memory_limit), 1.0 - slow
    if record.computed_tokens == 0:
        own_s, before_s = state[e, OWN_S], wait_s(context, e, tokens)
        there_s, first_s = mean_slo_s(context, e, TTFT_SLO_S, slo_s), before_s + beside_s
        late = logistic(p.sharpness * (first_s / there_s - 1.0))
        late_with = logistic(p.sharpness * ((first_s + own_s) / there_s - 1.0))
        lost += p.late * chance_of_being_late(context, record, before_s + own_s, beside_s, p.sharpness)
        lost += p.others * snapshot.prefills * (late_with - late)
        later += (own_s + p.queue * before_s) / slo_s
        if record.session_engine >= 0 and record.session_engine != e:
            later += p.session
        state[e, LATE] += (1.0 - state[e, KEPT]) * (late - state[e, LATE])
        on_time *= 1.0 - state[e, LATE]
    # What later requests lose: time, pace, memory that this one takes; where all are late, that a fast engine stays so.
    lost += on_time * later + p.recover * (1.0 - on_time) * (slowest_s / state[e, BATCH_S] - 1.0)
    return lost + p.load * snapshot.requests / max(mean, 1.0)


@kernel
def is_hopeless(context, e, record, tokens):
    """Return whether the request is refused on engine e, whose OWN_S is set: it is not likely to meet its SLOs there.

    Only a session's first request is refused: with a later turn the rest would be lost, and what was computed for it.
    """
    p = P.read(context)
    if p.refuse == 0.0 or record.num_output_tokens > 0 or record.session_engine >= 0:
        return False
    slow = chance_of_slow(context, token_s(context, e, 1, tokens, p.window_s) / record.tpot_slo_s)
    after_s, beside_s = wait_s(context, e, tokens) + context.state[e, OWN_S], decodes_s(context, e, 0, 0)
    return (1.0 - slow) * (1.0 - chance_of_being_late(context, record, after_s, beside_s, p.sharpness)) < p.refuse


@kernel
def count_slo(context, e, field, slo_s):
    """Count an SLO of the request that is sent to engine e in the mean there."""
    state = context.state
    if slo_s < np.inf:
        requests = context.known.snapshots[e].requests if state[e, field] > 0.0 else 0
        state[e, field] += (slo_s - state[e, field]) / (1 + requests)


@router
def lost_gain(context, request, route):
    state, record, window_s = context.state, context.requests[request], P.read(context).window_s
    tokens, mean = record.prompt_tokens + record.num_output_tokens, mean_requests(context, record)
    slowest_s = slowest_batch_s(context, record)
    for e in range(context.known.snapshots.shape[0]):
        if not takes(context.known.snapshots[e], record):
            continue
        beside_s = decodes_s(context, e, 0, 0)
        look_at(context, e, beside_s, window_s)
        load_s = adapter_s(context.known, record, e)
        state[e, OWN_S] = prefill_s(context, request, e) + load_s if record.computed_tokens == 0 else 0.0
        state[e, MEASURE] = cost(context, e, record, tokens, mean, load_s, beside_s, slowest_s)
    e = least_of_takers(context, request)
    if is_hopeless(context, e, record, tokens):
        route.engine = REFUSE
        return
    send_to(e, state, route)
    count_slo(context, e, TPOT_SLO_S, record.tpot_slo_s)
    if record.computed_tokens == 0:
        count_slo(context, e, TTFT_SLO_S, record.first_deadline_s - record.arrival_s)
        add_to_queue(context, e, tokens)
        count_prefill(context, e, window_s)


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
