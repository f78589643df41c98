"""The Gateway API Inference Extension's scorers for LoRA, as in llm-d: send a request where the weighted sum of three
scores is highest: affinity of its adapter, short queue, free KV memory.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import math

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.policy import Parameter, Parameters, Policy, StateFields, kernel, register, router, takes

P = Parameters(
    Parameter("affinity_weight", 1.0, "weight of the score for having the request's adapter, or room for it", 0, 1e6,
              source="lora-affinity-scorer"),
    Parameter("queue_weight", 1.0, "weight of the score for a short queue", 0, 1e6, source="queue-scorer"),
    Parameter("kv_weight", 1.0, "weight of the share of its KV memory that is free", 0, 1e6,
              source="kv-cache-utilization-scorer"),
)  # fmt: skip
HERE, ROOM, ELSEWHERE = 1.0, 0.8, 0.0  # scores of lora-affinity-scorer


@kernel
def affinity(sent, most, adapter):
    """Return the score of an engine for an adapter. sent: latest adapters sent there, of which it keeps `most`."""
    for place in range(most):
        if sent[place] == adapter:
            return HERE
        if sent[place] == 0:
            return ROOM
    return ELSEWHERE


@kernel
def shortest_and_longest(context, record):
    """Return the fewest and the most prefills at an engine that takes the request."""
    least, most = math.inf, 0.0
    for e in range(context.known.snapshots.shape[0]):
        snapshot = context.known.snapshots[e]
        if takes(snapshot, record):
            least, most = min(least, float(snapshot.prefills)), max(most, float(snapshot.prefills))
    return least, most


@router
def lora_affinity(context, request, route):
    p, known, record = P.read(context), context.known, context.requests[request]
    least, most = shortest_and_longest(context, record)
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        if takes(snapshot, record):
            queue = (most - snapshot.prefills) / (most - least) if most > least else 1.0
            score = p.queue_weight * queue + p.kv_weight * (snapshot.free_blocks / snapshot.total_blocks)
            if record.adapter > 0:
                score += p.affinity_weight * affinity(known.adapters[e], snapshot.max_loras, record.adapter)
            context.state[e, MEASURE] = -score
    send_to_least(context, request, route)


register(
    Policy(
        "lora-affinity",
        "router",
        "The engine with the highest score: its adapters, its queue and its free KV memory.",
        "Gateway API Inference Extension, scorers",
        lora_affinity,
        state=StateFields(engine=FIELDS),
        parameters=P,
    )
)
