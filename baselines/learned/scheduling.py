"""Scheduling: everything about a batch in one action, as changes of what a base scheduler decides.

An action is CONTROLS numbers and a score for each slot, all from -1 to 1; all 0 is the base.

budget      the time budget of the batch, times (7/6)^b above 0 and (9/5)^b below: where time is short a base with an
            eta of 0.9 of the smallest TPOT SLO has 0.5 to 1.05 of it
giving up   above 0: requests worth less than that (`observations.worth`) are left out, as long as another is worth as
            much
chunk       above 0: of one prompt at most 2^(-4c) of what could be computed in the time budget
victims     above 0: of requests that the base would take memory from alike, those worth less than that come first
scores      a request moves forward by s slots' worth of places in the base's order among those in slots
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import SLOTS, forward
from servegym.baselines.learned.memory import KEPT, is_same_decision
from servegym.baselines.learned.network import Network
from servegym.baselines.learned.ranking import check_repeatable, nothing, rerank, specialised_on
from servegym.baselines.observations.engine import constant_of, estimate
from servegym.baselines.observations.scheduling import observe_scheduling, scheduling_layout
from servegym.baselines.observations.worth import (
    BLOCK,
    IN_TIME,
    PROSPECTS,
    blocks_of,
    fill_with_worthy,
    note_worth,
    tick_of,
    weigh_block,
)
from servegym.simulator.compilation import Compiled, allocating_kernel, kernel, specialised
from servegym.simulator.policies import Policy
from servegym.simulator.requests import is_decoding, left_of
from servegym.simulator.signatures import scheduler, victims
from servegym.simulator.types import LEAVE_OUT

NAMES = ("budget", "giving_up", "chunk", "victims")
BUDGET, GIVING_UP, CHUNK, VICTIMS = range(len(NAMES))
CONTROLS = len(NAMES)
LONGEST, SHORTEST = 7 / 6, 5 / 9  # factors on the time budget
HALVINGS = 4.0  # of a chunk
FARTHEST = np.int64(2**61 - 1)  # tier, so that twice that is a number yet


@kernel
def is_base(action):
    """Whether the base's decision stands."""
    same = True
    for number in action:
        same = same and number == 0.0
    return same


@kernel
def clipped(number):
    return min(max(number, -1.0), 1.0)


@allocating_kernel
def move(ranks, order, filled, slots, scores):
    """Give the requests in slots the base's ranks anew, each moved forward by its score times `slots` places."""
    same, places = True, np.empty(filled)
    for k in range(filled):
        same = same and scores[k] == scores[0]
        places[k] = slots * clipped(scores[k]) - k
    if not same:
        rerank(ranks, order, filled, places)


@kernel
def leave_out(ranks, n, least):
    """Requests worth less do not run, as long as there is another that does. ranks[i].victim_key: worth."""
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
    """Change the limits of the base. Of all prefills: tokens left, and their exec_s by the estimator."""
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
    """Of all prefills: tokens left, and their exec_s."""
    tokens, work_s = 0.0, 0.0
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        if not is_decoding(request):
            tokens += left_of(request)
            work_s += ranks[position].exec_s
    return tokens, work_s


@scheduler
def base(context, ranks, limits):
    """Stands for the base scheduler, or for the part of it that ranks."""


@victims
def base_victims(context, ranks, limits):
    """Stands for what ranks the base's victims."""


then = nothing
estimated = estimate  # stands for `constant_of` upon a base that leaves the estimator's exec_s
PARAMETERS = 0  # stands for how many the base has


@scheduler
def steered_scheduler(context, ranks, limits):
    """Its numbers: the base's parameters, where the action is from here, how many slots there are; memory: the action,
    whether the base's ranks are only to be shown, and the positions in the queue."""
    base(context, ranks, limits)
    numbers, requests, queue = context.parameters[PARAMETERS:], context.requests, context.queue
    at, slots = int(numbers[0]), int(numbers[1])
    action, shown = numbers[at : at + CONTROLS + slots], at + CONTROLS + slots
    if numbers[shown] == 1.0:
        return
    if is_base(action):
        then(context, ranks, limits)
        return
    order = numbers[shown + 1 :].view(np.int32)
    note_worth(context, ranks, estimated(context, ranks), tick_of(requests, queue))
    filled = fill_with_worthy(requests, queue, ranks, slots, order)
    move(ranks, order, filled, slots, action[CONTROLS:])
    leave_out(ranks, queue.shape[0], action[GIVING_UP])
    tokens, work_s = prefills_of(context, ranks) if action[CHUNK] > 0.0 else (0.0, 0.0)
    then(context, ranks, limits)
    set_limits(limits, action, tokens, work_s)


@scheduler
def scheduling_scheduler(context, ranks, limits):
    """Its numbers: the base's parameters, where the action is from here, the network; memory: its room, what is kept of
    the last decision, the action, the positions in the queue, the observation."""
    base(context, ranks, limits)
    numbers, queue = context.parameters[PARAMETERS:], context.queue
    network, at = numbers[1:], int(numbers[0])
    slots = int(network[SLOTS])
    memory, action = numbers[at - KEPT : at], numbers[at : at + CONTROLS + slots]
    at += CONTROLS + slots
    order, observation = numbers[at:].view(np.int32), numbers[at + (slots + 1) // 2 :].view(np.float32)
    # What is observed is what ranks are weighed by, so a batch that is formed anew is looked at anew.
    filled, work = observe_scheduling(context, ranks, estimated(context, ranks), order, slots, observation)
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
    """In each of the base's tiers requests worth less than the action says give up their memory first.

    Only there: what newcomers may evict stays as it is. Where an action could change that, requests would
    take it from each other in turns.
    """
    base_victims(context, ranks, limits)
    numbers, requests, queue = context.parameters[PARAMETERS:], context.requests, context.queue
    least = numbers[int(numbers[0]) + VICTIMS]
    if least > 0.0:
        hopeless_first(context, ranks, least, constant_of(context, ranks), tick_of(requests, queue))


@allocating_kernel
def hopeless_first(context, ranks, least, constant_s, tick_s):
    """In each tier of victims put those first that are worth less."""
    prospects = np.empty((PROSPECTS, BLOCK))
    for block in range(blocks_of(context.queue.shape[0])):
        for k in range(weigh_block(context, ranks, block, constant_s, tick_s, prospects)):
            rank = ranks[block * BLOCK + k]
            tier = min(max(rank.victim_tier, -FARTHEST), FARTHEST)
            rank.victim_tier = 2 * tier + (prospects[IN_TIME, k] < least)


def made_of(
    base: Policy, template: Compiled, name: str, weights: np.ndarray, memory: int, **more: object
) -> LearnedPolicy:
    """The base with one of the templates above. Raises PolicyError for a base that cannot be asked twice."""
    check_base(base, "scheduler")
    check_repeatable(base)
    function = specialised_on(template, base, estimated=constant_of if base.estimates else estimate)
    victims = specialised(steered_victims, base_victims=base.victims, PARAMETERS=len(base.parameters))
    state = dataclasses.replace(base.state, by_application=True)
    return derived(
        "scheduling", base, name, function, weights, memory, victims=victims, state=state, urgent_tier=None, **more
    )


def steered(base: Policy, slots: int) -> LearnedPolicy:
    """The base scheduler with an action, which the stepper of the simulation writes to
    `run.parameters[e, first_of_action(base):]`, float64[CONTROLS + slots]. All 0: the base.

    What the slots hold is seen by asking it once before, with 1 in the number behind the action, and 0 there again
    afterwards. Raises PolicyError for a base that cannot be asked twice in one decision.
    """
    memory = CONTROLS + slots + 1 + half(slots)
    return made_of(base, steered_scheduler, f"steered:{base.name}", np.array([2.0, slots]), memory)


def kind_of(slots: int) -> str:
    """Of the network that steers: without slots there is nothing to share."""
    return "joint" if slots else "dense"


def first_of_action(base: Policy) -> int:
    """Where the action begins among the numbers of a `steered` scheduler."""
    return len(base.parameters) + 2


def scheduled(base: Policy, network: Network, slots: int | None = None, name: str = "") -> LearnedPolicy:
    """The base scheduler steered by a joint network, from `scheduling_layout(slots)`: CONTROLS + 1 outputs, of each
    slot its score, and of the whole the controls; without slots by a dense one that says the controls.

    slots: None: as many as the network has. With all weights 0 it decides as the base does. Raises PolicyError if these
    do not fit each other.
    """
    layout = scheduling_layout(network.shape.slots if slots is None else slots)
    outputs, kind = CONTROLS + (layout.slots > 0), kind_of(layout.slots)
    check_network(network, layout, outputs, f"scheduling upon {base.name}", kind)
    numbers = network.numbers
    action = 1 + len(numbers) + network.shape.room + KEPT
    memory = network.shape.room + KEPT + CONTROLS + layout.slots + half(layout.slots) + half(layout.size)
    return made_of(
        base, scheduling_scheduler, name, np.concatenate([[action], numbers]), memory, network=network, layout=layout
    )
