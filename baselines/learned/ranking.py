"""Rankings: scores rank some of the requests that a base scheduler has ranked anew, among themselves.

What the base leaves out stays out, what is in no slot stays where it is, and limits, victims and packing are the base's
own: whatever the scores, the batch is filled as it would be. Equal scores leave the base's order as it is.
"""

from __future__ import annotations

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import COUNT, ROOM, SLOTS, forward
from servegym.baselines.learned.memory import KEPT, is_same_decision
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.queue import fill_slots, observe_queue, queue_layout
from servegym.errors import PolicyError
from servegym.simulator.compilation import Compiled, allocating_kernel, specialised
from servegym.simulator.policies import Policy
from servegym.simulator.signatures import scheduler


@allocating_kernel
def rerank(ranks, order, filled, scores):
    """Hand the ranks of the requests in slots out anew among them: the best to the highest score, and so on.

    Of equal scores the base's order stays, and so does the rank of every request that is in no slot. Where the base
    gave several the same rank, theirs become different by as little as can be.

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
        if k + 1 == filled:  # before those of the same rank that are in no slot
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
    """Stands for the base scheduler, or for the part of it that ranks."""


@scheduler
def nothing(context, ranks, limits):
    """Stands for what it does then."""


then = nothing
PARAMETERS = 0  # stands for how many the base has


@scheduler
def scored_scheduler(context, ranks, limits):
    """Its numbers: the base's parameters, how many slots there are; memory: their scores, whether the ranks by which
    the slots are filled are only to be shown, and the positions in the queue."""
    base(context, ranks, limits)
    parameters = context.parameters
    slots, at = int(parameters[PARAMETERS]), PARAMETERS + 1
    scores, shown, order = parameters[at : at + slots], at + slots, parameters[at + slots + 1 :].view(np.int32)
    if parameters[shown] == 1.0:
        return
    for k in range(slots):
        if scores[k] != 0.0:
            rerank(ranks, order, fill_slots(context.requests, context.queue, ranks, slots, order), scores)
            break
    then(context, ranks, limits)


@scheduler
def ranked_scheduler(context, ranks, limits):
    """Its numbers: the base's parameters, the network; memory: its room, what is kept of the last decision, the
    scores, the positions in the queue, the observation."""
    base(context, ranks, limits)
    parameters, now_s, engine = context.parameters, context.now_s, context.engine
    requests, queue = context.requests, context.queue
    network = parameters[PARAMETERS:]
    slots, at = int(network[SLOTS]), PARAMETERS + int(network[COUNT]) + int(network[ROOM])
    memory, scores = parameters[at : at + KEPT], parameters[at + KEPT : at + KEPT + slots]
    at += KEPT + slots
    order, observation = parameters[at:].view(np.int32), parameters[at + (slots + 1) // 2 :].view(np.float32)
    if is_same_decision(memory, now_s, engine):
        filled = fill_slots(requests, queue, ranks, slots, order)
    else:
        filled = observe_queue(context, ranks, order, slots, observation)
        forward(network, observation, filled, scores)
    rerank(ranks, order, filled, scores)
    then(context, ranks, limits)


def ranks_of(base: Policy) -> Compiled:
    """What writes the ranks by which the slots are filled: the scheduler, or the part of it that ranks."""
    return base.rank_then_filter[0] if base.rank_then_filter else base.function


def specialised_on(template: Compiled, base: Policy, **more: object) -> Compiled:
    after = base.rank_then_filter[1] if base.rank_then_filter else nothing
    return specialised(template, base=ranks_of(base), then=after, PARAMETERS=len(base.parameters), **more)


def check_repeatable(base: Policy) -> None:
    """Raise PolicyError for a base that cannot be asked twice in one decision."""
    keeps = base.state.request + base.state.engine + base.state.client
    if keeps and not base.state.repeatable:
        raise PolicyError(
            f"{base.name} keeps numbers of its own ({', '.join(keeps)}), which being asked twice would change; "
            "the base should keep none"
        )


def scored(base: Policy, slots: int) -> LearnedPolicy:
    """The base scheduler with scores for the requests in its first slots, which the stepper of the simulation writes to
    `run.parameters[e, first_score(base):]`, float64[slots]. With all scores 0 it is the base.

    What the slots hold is seen by asking it once before: with 1 in the number behind the scores, and 0 there again
    afterwards. Then it writes the ranks by which they are filled, and nothing is left out yet by a base that ranks
    first (`Policy.rank_then_filter`). Raises PolicyError for a base that cannot be asked twice in one decision.
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
    """Where the scores begin among the numbers of a `scored` scheduler."""
    return len(base.parameters) + 1


def ranked(base: Policy, network: Network, slots: int | None = None, name: str = "") -> LearnedPolicy:
    """The base scheduler with its first requests ranked anew by a shared network, from `queue_layout(slots)`: one
    output for each slot, its score.

    slots: None: as many as the network has. With all weights 0 it decides as the base does. Raises PolicyError if these
    do not fit each other.
    """
    check_base(base, "scheduler")
    layout = queue_layout(network.shape.slots if slots is None else slots)
    check_network(network, layout, 1, f"a ranking of {base.name}", "shared")
    function = specialised_on(ranked_scheduler, base)
    memory = network.shape.room + KEPT + layout.slots + half(layout.slots) + half(layout.size)
    return derived(
        "ranking", base, name, function, network.numbers, memory, network=network, layout=layout, urgent_tier=None
    )
