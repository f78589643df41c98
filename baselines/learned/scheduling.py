"""Scheduling: an action changes all decisions of a base scheduler about a batch.

An action is CONTROLS numbers and a score for each slot, all from -1 to 1. If all are 0, the base's decisions stand.

budget      multiplies the batch's time budget by (7/6)^b for b above 0 and (9/5)^b below: from a base's shortest
            budget, 0.9 of the smallest TPOT SLO, to 0.5 to 1.05 of that SLO
giving up   above 0: requests worth less than this (`observations.worth`) are left out, if another is worth at least as
            much
chunk       above 0: caps the chunk of a prompt at 2^(-4c) of what could be computed in the time budget
victims     above 0: within a victim tier of the base, requests worth less than this are evicted first
scores      score s moves a request forward by s x slots places in the base's order of the requests in slots
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import SLOTS, forward
from servegym.baselines.learned.memory import KEPT, is_same_decision, split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.learned.ranking import check_repeatable, nothing, rerank, specialised_on
from servegym.baselines.observations.engine import constant_of, estimate
from servegym.baselines.observations.queue import fill_slots
from servegym.baselines.observations.scheduling import observe_scheduling, scheduling_layout
from servegym.baselines.observations.sessions import observe_scheduling_sessions, scheduling_sessions_layout
from servegym.baselines.observations.worth import BLOCK, IN_TIME, PROSPECTS, blocks_of, note_worth, tick_of, weigh_block
from servegym.policy import (
    LEAVE_OUT,
    Compiled,
    Policy,
    allocating_kernel,
    is_decoding,
    kernel,
    left_of,
    scheduler,
    specialised,
    victims,
)

NAMES = ("budget", "giving_up", "chunk", "victims")
BUDGET, GIVING_UP, CHUNK, VICTIMS = range(len(NAMES))
CONTROLS = len(NAMES)
REQUESTS, SESSIONS = "scheduling", "scheduling-sessions"
# What a learned scheduler can see.
LAYOUTS = {REQUESTS: scheduling_layout, SESSIONS: scheduling_sessions_layout}
LONGEST, SHORTEST = 7 / 6, 5 / 9  # factors on the time budget
HALVINGS = 4.0  # of a chunk
FARTHEST = np.int64(2**61 - 1)  # a tier; twice it still fits an int64


@kernel
def is_base(action):
    """Return whether all numbers of the action are 0, so that the base's decision stands."""
    same = True
    for number in action:
        same = same and number == 0.0
    return same


@kernel
def clipped(number):
    """Return the number, clipped to [-1, 1]."""
    return min(max(number, -1.0), 1.0)


@allocating_kernel
def move(ranks, order, filled, slots, scores):
    """Permute the base's ranks of the requests in slots: each moves forward by its score times `slots` places."""
    same, places = True, np.empty(filled)
    for k in range(filled):
        same = same and scores[k] == scores[0]
        places[k] = slots * clipped(scores[k]) - k
    if not same:
        rerank(ranks, order, filled, places)


@kernel
def leave_out(ranks, n, least):
    """Leave out requests worth less than `least`, if another remains. ranks[i].victim_key: worth."""
    if least <= 0.0:
        return
    others, position = False, 0
    while position < n and not others:
        others = ranks[position].victim_key >= least and ranks[position].tier < LEAVE_OUT
        position += 1
    if others:
        for position in range(n):
            if ranks[position].victim_key < least and ranks[position].tier < LEAVE_OUT:
                ranks[position].tier = LEAVE_OUT


@kernel
def set_limits(limits, action, prefill_tokens, prefill_s):
    """Change the base's limits by an action. prefill_tokens, prefill_s: tokens left and exec_s of all prefills."""
    budget = clipped(action[BUDGET])
    if budget != 0.0 and 0.0 < limits.time_budget_s < np.inf:
        limits.time_budget_s *= LONGEST**budget if budget > 0.0 else SHORTEST**-budget
    if action[CHUNK] > 0.0 and limits.time_budget_s < np.inf and prefill_s > 0.0:
        share = 2.0 ** (-HALVINGS * clipped(action[CHUNK]))
        most = max(1.0, share * limits.time_budget_s * prefill_tokens / prefill_s)
        if most < limits.chunk_tokens:
            limits.chunk_tokens = int(most)


@kernel
def prefills_of(context, ranks):
    """Return sums over all prefills: tokens left, exec_s."""
    tokens, work_s = 0.0, 0.0
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        if not is_decoding(request):
            tokens += left_of(request)
            work_s += ranks[position].exec_s
    return tokens, work_s


@scheduler
def base(context, ranks, limits):
    """Placeholder for the base scheduler, or for the part of it that ranks."""


@victims
def base_victims(context, ranks, limits):
    """Placeholder for the base's ranking of victims."""


then = nothing
observe = observe_scheduling  # placeholder: or `observe_scheduling_sessions`
estimated = estimate  # placeholder: or `constant_of`, if the base has called the estimator (`Policy.estimates`)
PARAMETERS = 0  # placeholder: number of the base's parameters


@scheduler
def steered_scheduler(context, ranks, limits):
    """Change the base's decisions by an action that a caller writes: a template.

    Its numbers: the base's parameters, the offset of the action, the number of slots. Memory: the action, a flag to
    only write the base's ranks, the positions in the queue.
    """
    base(context, ranks, limits)
    numbers, requests, queue = context.parameters[PARAMETERS:], context.requests, context.queue
    slots = int(numbers[1])
    action, rest = split(numbers[int(numbers[0]) :], CONTROLS + slots)
    shown, positions = split(rest, 1)
    if shown[0] == 1.0:
        return
    if is_base(action):
        then(context, ranks, limits)
        return
    order = positions.view(np.int32)
    note_worth(context, ranks, estimated(context, ranks), tick_of(requests, queue))
    filled = fill_slots(True, requests, queue, ranks, slots, order)
    move(ranks, order, filled, slots, action[CONTROLS:])
    leave_out(ranks, queue.shape[0], action[GIVING_UP])
    tokens, work_s = prefills_of(context, ranks) if action[CHUNK] > 0.0 else (0.0, 0.0)
    then(context, ranks, limits)
    set_limits(limits, action, tokens, work_s)


@scheduler
def scheduling_scheduler(context, ranks, limits):
    """Change the base's decisions by an action of a network: a template.

    Its numbers: the base's parameters, the offset of the action, the network. Memory: the network's room, the last
    decision's key, the action, the positions in the queue, the observation.
    """
    base(context, ranks, limits)
    queue = context.queue
    network, rest = split_network(context.parameters[PARAMETERS + 1 :])
    slots = int(network[SLOTS])
    memory, rest = split(rest, KEPT)
    action, rest = split(rest, CONTROLS + slots)
    positions, seen = split(rest, (slots + 1) // 2)
    order, observation = positions.view(np.int32), seen.view(np.float32)
    # The observation also writes the worth of requests, so it is repeated when a batch is formed anew.
    filled, work = observe(context, ranks, estimated(context, ranks), order, slots, observation)
    if not is_same_decision(memory, context.now_s, context.engine):
        forward(network, observation, filled, action)
    if is_base(action):
        then(context, ranks, limits)
        return
    move(ranks, order, filled, slots, action[CONTROLS:])
    leave_out(ranks, queue.shape[0], action[GIVING_UP])
    then(context, ranks, limits)
    set_limits(limits, action, float(work.tokens), work.prefill_s)


@victims
def steered_victims(context, ranks, limits):
    """Within each victim tier of the base, evict requests worth less than the action's `victims` first.

    The base's victim tiers stay, as they decide what waiting requests may evict: otherwise requests would evict each
    other in turn.
    """
    base_victims(context, ranks, limits)
    numbers = context.parameters[PARAMETERS:]
    least = numbers[int(numbers[0]) + VICTIMS]
    if least > 0.0:
        hopeless_first(context, ranks, least, constant_of(context, ranks), tick_of(context.requests, context.queue))


@allocating_kernel
def hopeless_first(context, ranks, least, constant_s, tick_s):
    """Within each tier of victims, put requests worth less than `least` first."""
    prospects = np.empty((PROSPECTS, BLOCK))
    for block in range(blocks_of(context.queue.shape[0])):
        for k in range(weigh_block(context, ranks, block, constant_s, tick_s, prospects)):
            rank = ranks[block * BLOCK + k]
            tier = min(max(rank.victim_tier, -FARTHEST), FARTHEST)
            rank.victim_tier = 2 * tier + (prospects[IN_TIME, k] < least)


def made_of(
    base: Policy, template: Compiled, name: str, weights: np.ndarray, memory: int, sees: str = REQUESTS, **more: object
) -> LearnedPolicy:
    """Return a template with this base. Raises PolicyError for a base that cannot be called twice in one decision."""
    check_base(base, "scheduler")
    check_repeatable(base)
    seen = {"observe": observe_scheduling_sessions} if sees == SESSIONS else {}
    function = specialised_on(template, base, estimated=constant_of if base.estimates else estimate, **seen)
    victims = specialised(steered_victims, base_victims=base.victims, PARAMETERS=len(base.parameters))
    state = dataclasses.replace(base.state, by_application=True)
    return derived(
        "scheduling", base, name, function, weights, memory, victims=victims, state=state, urgent_tier=None, **more
    )


def steered(base: Policy, slots: int) -> LearnedPolicy:
    """Return the base scheduler with an action that a caller writes.

    It is float64[CONTROLS + slots] at `run.parameters[e, first_of_action(base):]`. With all 0 it decides as the base.

    To see which requests are in slots, set the number after the action to 1, call it once, and reset the number to 0.
    Raises PolicyError for a base that cannot be called twice in one decision.
    """
    memory = CONTROLS + slots + 1 + half(slots)
    return made_of(base, steered_scheduler, f"steered:{base.name}", np.array([2.0, slots]), memory)


def kind_of(slots: int) -> str:
    """Return the kind of network for this many slots: joint, or dense without slots."""
    return "joint" if slots else "dense"


def first_of_action(base: Policy) -> int:
    """Return the index of the action's first number among the numbers of a `steered` scheduler."""
    return len(base.parameters) + 2


def scheduled(
    base: Policy, network: Network, slots: int | None = None, name: str = "", sees: str = REQUESTS
) -> LearnedPolicy:
    """Return the base scheduler with an action of a network in each decision.

    With slots the network is joint and has CONTROLS + 1 outputs: a score for each slot, and the controls; without slots
    it is dense and has the controls.

    slots: None: as many as the network has. sees: the observation, a key of `LAYOUTS`. With all weights 0 it decides as
    the base does. Raises PolicyError if base and network do not match.
    """
    layout = LAYOUTS[sees](network.shape.slots if slots is None else slots)
    outputs, kind = CONTROLS + (layout.slots > 0), kind_of(layout.slots)
    check_network(network, layout, outputs, f"scheduling upon {base.name}", kind)
    numbers = network.numbers
    action = 1 + len(numbers) + network.shape.room + KEPT
    memory = network.shape.room + KEPT + CONTROLS + layout.slots + half(layout.slots) + half(layout.size)
    return made_of(
        base, scheduling_scheduler, name, np.concatenate([[action], numbers]), memory, sees, network=network,
        layout=layout,
    )  # fmt: skip
