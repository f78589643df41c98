"""Dynamo's KV router: the least cost, of prompt blocks to be computed and blocks in use, what the engine already has of
the prompt taken off. With a temperature not always the least.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import math

from servegym.baselines.routers.queued import take_off_left
from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to, send_to_least
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Parameters, Policy, StateFields, register
from servegym.simulator.prefixes import known_tokens
from servegym.simulator.random import uniform
from servegym.simulator.routing import takes
from servegym.simulator.signatures import router

STREAM = 0x6B766177  # of random numbers, apart from those of others
# After the FIELDS of ties. uncached: tokens of the queue record that were not there when they were sent. of_tokens: its
# tokens then. own: of the request, in this decision.
UNCACHED, OF_TOKENS, OWN = range(3, 6)
P = Parameters(
    Parameter("overlap_weight", 1.0, "of a block to be prefilled, beside a block in use", 0, 1e6,
              source="Dynamo, --kv-overlap-score-weight"),
    Parameter("temperature", 0.0, "0: the least cost; above: the costlier the less likely, by a softmax", 0, 1e6,
              source="Dynamo, --router-temperature"),
    Parameter("seed", 0, "of the random numbers", 0, 2**31 - 1, integer=True),
)  # fmt: skip


@kernel
def least_and_most(context, request):
    """Of the costs of the engines that take the request."""
    least, most = math.inf, -math.inf
    for e in range(context.known.snapshots.shape[0]):
        if takes(context.known.snapshots[e], context.requests[request]):
            least = min(least, context.state[e, MEASURE])
            most = max(most, context.state[e, MEASURE])
    return least, most


@kernel
def any_by_cost(context, request, temperature, drawn):
    """An engine, by the softmax of costs that go from 0, the least, to 1, the most. drawn: from 0 to 1."""
    snapshots, state, record = context.known.snapshots, context.state, context.requests[request]
    least, most = least_and_most(context, request)
    total = 0.0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record):
            cost = (state[e, MEASURE] - least) / (most - least) if most > least else 0.0
            state[e, MEASURE] = math.exp(-cost / temperature)
            total += state[e, MEASURE]
    chosen, below = -1, 0.0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record) and (chosen < 0 or below < drawn * total):
            chosen = e
            below += state[e, MEASURE]
    return chosen


@kernel
def cost_up_to_prompt(context, request, overlap_weight):
    """MEASURE of each engine that takes the request: its cost, with all of the prompt but a token taken to be there."""
    record, decoding = context.requests[request], context.requests[request].computed_tokens > 0
    for e in range(context.known.snapshots.shape[0]):
        snapshot, state = context.known.snapshots[e], context.state
        if takes(snapshot, record):
            if not decoding:
                take_off_left(snapshot, state, e, UNCACHED, OF_TOKENS)
                state[e, OWN] = 1.0
            state[e, MEASURE] = cost(snapshot, record, overlap_weight, 0.0 if decoding else state[e, UNCACHED] + 1.0)


@kernel
def cost(snapshot, record, overlap_weight, to_prefill):
    """In blocks. to_prefill: tokens."""
    in_use = snapshot.prefill_tokens + snapshot.decode_tokens + record.prompt_tokens + record.num_output_tokens
    return (overlap_weight * to_prefill + in_use) / snapshot.block_tokens


@kernel
def look_up(context, request, overlap_weight, e):
    """OWN and MEASURE of engine e, with as much of the prompt as is there as far as the router knows."""
    snapshot, state, record = context.known.snapshots[e], context.state, context.requests[request]
    known = known_tokens(context.known, record, request, e)
    state[e, OWN] = record.prompt_tokens + record.num_output_tokens - known
    state[e, MEASURE] = cost(snapshot, record, overlap_weight, state[e, UNCACHED] + state[e, OWN])


@kernel
def look_up_near(context, request, overlap_weight, all_of_them):
    """Look the prompt up at each engine that may have the least cost (or at all of them).

    A prompt has a hundred blocks, and an engine in use much more than another is not the least even if it has them all.
    """
    snapshots, state, record, least = context.known.snapshots, context.state, context.requests[request], math.inf
    nearest = -1
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record) and (nearest < 0 or state[e, MEASURE] < state[nearest, MEASURE]):
            nearest = e
    for k in range(-1, snapshots.shape[0]):
        e = nearest if k < 0 else k
        if takes(snapshots[e], record) and k != nearest and (all_of_them or state[e, MEASURE] <= least):
            look_up(context, request, overlap_weight, e)
            least = min(least, state[e, MEASURE])


@router
def kv_aware(context, request, route):
    p, state, record = P.read(context), context.state, context.requests[request]
    decoding = record.computed_tokens > 0
    cost_up_to_prompt(context, request, p.overlap_weight)
    if not decoding:
        look_up_near(context, request, p.overlap_weight, p.temperature > 0.0)
    if p.temperature > 0.0:
        send_to(any_by_cost(context, request, p.temperature, uniform(p.seed, STREAM, request)), state, route)
    else:
        send_to_least(context, request, route)
    if not decoding:
        state[route.engine, UNCACHED] += state[route.engine, OWN]
        state[route.engine, OF_TOKENS] += record.prompt_tokens + record.num_output_tokens


register(
    Policy(
        "kv-aware",
        "router",
        "The least cost: blocks to be prefilled, without those the engine has, and blocks in use.",
        "NVIDIA Dynamo, KV router",
        kv_aware,
        state=StateFields(engine=(*FIELDS, "uncached", "of_tokens", "own")),
        parameters=P,
    )
)
