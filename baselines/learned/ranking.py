"""Rankings: scores permute the ranks that a base scheduler gave the requests in slots.

Requests that the base leaves out stay out, requests without slot keep their rank, and limits and victim ranks are the
base's. Equal scores keep the base's order.
"""

from __future__ import annotations

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import SLOTS, forward
from servegym.baselines.learned.memory import KEPT, is_same_decision, split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.queue import fill_slots, observe_queue, queue_layout
from servegym.errors import PolicyError
from servegym.policy import Compiled, Policy, allocating_kernel, scheduler, specialised


@allocating_kernel
def rerank(ranks, order, filled, scores):
    """Permute the ranks of the requests in slots: the best rank goes to the highest score, and so on.

    Equal scores keep the base's order, and a request without slot keeps its rank. Equal ranks of the base are made
    distinct by the smallest possible steps.

    order: int32[filled], the queue position of each slot, in rank order. scores: float64[filled].
    """
    same = True
    for k in range(1, filled):
        same = same and scores[k] == scores[0]
    if same:
        return
    tiers, keys = np.empty(filled, np.int64), np.empty(filled)
    for k in range(filled - 1, -1, -1):
        tiers[k], keys[k] = ranks[order[k]].tier, ranks[order[k]].key
        if k + 1 == filled:  # before requests without slot of the same rank
            keys[k] = np.nextafter(keys[k], -np.inf)
        elif tiers[k] == tiers[k + 1] and keys[k] >= keys[k + 1]:
            keys[k] = np.nextafter(keys[k + 1], -np.inf)
    for k in range(filled):
        ahead = 0
        for j in range(k):
            ahead += scores[j] >= scores[k]
        for j in range(k + 1, filled):
            ahead += scores[j] > scores[k]
        ranks[order[k]].tier, ranks[order[k]].key = tiers[ahead], keys[ahead]


@scheduler
def base(context, ranks, limits):
    """Placeholder for the base scheduler, or for the part of it that ranks."""


@scheduler
def nothing(context, ranks, limits):
    """Placeholder for the part of the base that follows ranking."""


then = nothing
PARAMETERS = 0  # placeholder: number of the base's parameters


@scheduler
def scored_scheduler(context, ranks, limits):
    """Permute the base's ranks by scores that a caller writes: a template.

    Its numbers: the base's parameters, the number of slots. Memory: the scores, a flag to only write the ranks by which
    slots are filled, the positions in the queue.
    """
    base(context, ranks, limits)
    parameters = context.parameters
    slots = int(parameters[PARAMETERS])
    scores, rest = split(parameters[PARAMETERS + 1 :], slots)
    shown, positions = split(rest, 1)
    order = positions.view(np.int32)
    if shown[0] == 1.0:
        return
    for k in range(slots):
        if scores[k] != 0.0:
            rerank(ranks, order, fill_slots(False, context.requests, context.queue, ranks, slots, order), scores)
            break
    then(context, ranks, limits)


@scheduler
def ranked_scheduler(context, ranks, limits):
    """Permute the base's ranks by scores of a network: a template.

    Its numbers: the base's parameters, the network. Memory: the network's room, the last decision's key, the scores,
    the positions in the queue, the observation.
    """
    base(context, ranks, limits)
    parameters, now_s, engine = context.parameters, context.now_s, context.engine
    requests, queue = context.requests, context.queue
    network, rest = split_network(parameters[PARAMETERS:])
    slots = int(network[SLOTS])
    memory, rest = split(rest, KEPT)
    scores, rest = split(rest, slots)
    positions, seen = split(rest, (slots + 1) // 2)
    order, observation = positions.view(np.int32), seen.view(np.float32)
    if is_same_decision(memory, now_s, engine):
        filled = fill_slots(False, requests, queue, ranks, slots, order)
    else:
        filled = observe_queue(context, ranks, order, slots, observation)
        forward(network, observation, filled, scores)
    rerank(ranks, order, filled, scores)
    then(context, ranks, limits)


def ranks_of(base: Policy) -> Compiled:
    """Return the function whose ranks decide which requests get slots: the scheduler, or the part of it that ranks."""
    return base.rank_then_filter[0] if base.rank_then_filter else base.function


def specialised_on(template: Compiled, base: Policy, **more: object) -> Compiled:
    after = base.rank_then_filter[1] if base.rank_then_filter else nothing
    return specialised(template, base=ranks_of(base), then=after, PARAMETERS=len(base.parameters), **more)


def check_repeatable(base: Policy) -> None:
    """Raise PolicyError for a base that cannot be called twice in one decision."""
    keeps = base.state.request + base.state.engine + base.state.client
    if keeps and not base.state.repeatable:
        raise PolicyError(
            f"{base.name} keeps numbers of its own ({', '.join(keeps)}), which a second call would change; "
            "the base should keep none"
        )


def scored(base: Policy, slots: int) -> LearnedPolicy:
    """Return the base scheduler with scores for the requests in slots, which a caller writes.

    They are float64[slots] at `run.parameters[e, first_score(base):]`. With all scores 0 it decides as the base.

    To see which requests are in slots, set the number after the scores to 1, call it once, and reset the number to 0.
    It then only writes the ranks that decide who gets a slot; a base with `Policy.rank_then_filter` has left nothing
    out yet. Raises PolicyError for a base that cannot be called twice in one decision.
    """
    check_base(base, "scheduler")
    check_repeatable(base)
    if slots < 1:
        raise PolicyError(f"{base.name}: {slots} slots; there should be 1 or more")
    function = specialised_on(scored_scheduler, base)
    return derived(
        "scores", base, f"scored:{base.name}", function, np.array([slots]), slots + 1 + half(slots), urgent_tier=None
    )


def first_score(base: Policy) -> int:
    """Return the index of the first score among the numbers of a `scored` scheduler."""
    return len(base.parameters) + 1


def ranked(base: Policy, network: Network, slots: int | None = None, name: str = "") -> LearnedPolicy:
    """Return the base scheduler with ranks of requests in slots permuted by a shared network.

    The network sees `queue_layout(slots)`, and its output for a slot is the score.

    slots: None: as many as the network has. With all weights 0 it decides as the base does. Raises PolicyError if base
    and network do not match.
    """
    check_base(base, "scheduler")
    layout = queue_layout(network.shape.slots if slots is None else slots)
    check_network(network, layout, 1, f"a ranking of {base.name}", "shared")
    function = specialised_on(ranked_scheduler, base)
    memory = network.shape.room + KEPT + layout.slots + half(layout.slots) + half(layout.size)
    return derived(
        "ranking", base, name, function, network.numbers, memory, network=network, layout=layout, urgent_tier=None
    )
