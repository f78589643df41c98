"""Semantic scheduling: the most urgent first, within a level the shortest; KV is saved where that is cheaper."""

from servegym.baselines.keeping import ACCOUNTINGS, tokens_to_keep
from servegym.baselines.slots import (
    LEVELS,
    PARAMETERS,
    REMAINING_S,
    STATE,
    fill_slots,
    level_of,
    note_remaining_time,
)
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.signatures import scheduler, victims

REMAINING_TIME, LEVEL, ACCOUNTING, TRANSFER_COST = range(3, 7)  # after the parameters of the slots
REMAINING_TIME_PARAMETER = Parameter(
    "remaining_time", "at-eviction", "when the remaining time is estimated again: after an eviction, or (code) a token",
    choices=("at-eviction", "current"), source="semantic scheduling, Alg. 4 line 11",
)  # fmt: skip
CURRENT = 1
LOAD_ONLY = 1


@scheduler
def semantic(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    current = parameters[REMAINING_TIME] == CURRENT
    for place in range(queue.shape[0]):
        r = queue[place]
        note_remaining_time(requests[r], state.requests[r], engine, estimator, current)
        plan[place].tier = level_of(requests[r], parameters[LEVEL])
        plan[place].key = state.requests[r, REMAINING_S]
    fill_slots(requests, queue, state, parameters, plan, limits)


@victims
def semantic_victims(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    """Algorithms 3 and 4: the least urgent, longest first; Eq. 3 to 6 say what of it is saved."""
    move_s_per_token = engine.load_s_per_token
    if parameters[TRANSFER_COST] != LOAD_ONLY:
        move_s_per_token += engine.save_s_per_token
    for place in range(queue.shape[0]):
        r = queue[place]
        plan[place].victim_tier = level_of(requests[r], parameters[LEVEL])
        plan[place].victim_key = state.requests[r, REMAINING_S]
        if requests[r].blocks > 0:
            plan[place].keep_tokens = tokens_to_keep(
                requests[r], engine, int(parameters[ACCOUNTING]), move_s_per_token, estimator
            )


@scheduler
def slots_sjf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    current = parameters[REMAINING_TIME] == CURRENT
    for place in range(queue.shape[0]):
        r = queue[place]
        note_remaining_time(requests[r], state.requests[r], engine, estimator, current)
        plan[place].tier = 0
        plan[place].key = state.requests[r, REMAINING_S]
    fill_slots(requests, queue, state, parameters, plan, limits)


@victims
def longest_first(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0]):
        plan[place].victim_tier = 0
        plan[place].victim_key = state.requests[queue[place], REMAINING_S]


register(
    Policy(
        "semantic",
        "scheduler",
        "The most urgent first, within a level the shortest, in slots; saves KV where loading it is cheaper.",
        "semantic scheduling, Algorithms 1 to 5",
        semantic,
        semantic_victims,
        parameters=(
            *PARAMETERS,
            REMAINING_TIME_PARAMETER,
            Parameter("level", "urgency", "what the order goes by before the remaining time", choices=LEVELS,
                      source="semantic scheduling, Alg. 1"),
            Parameter("accounting", "decode", "what recomputing a victim's decoded tokens is taken to cost",
                      choices=ACCOUNTINGS, source="semantic scheduling, Eq. 3-6"),
            Parameter("transfer_cost", "save-and-load", "what moving a token to host memory and back is taken to cost",
                      choices=("save-and-load", "load"), source="ours; load: semantic scheduling, Eq. 3"),
        ),
        state=StateFields(request=STATE),
    )
)  # fmt: skip
register(
    Policy(
        "slots-sjf",
        "scheduler",
        "Shortest predicted job first, in slots.",
        "semantic scheduling, section 4.1",
        slots_sjf,
        longest_first,
        parameters=(*PARAMETERS, REMAINING_TIME_PARAMETER),
        state=StateFields(request=STATE),
    )
)
