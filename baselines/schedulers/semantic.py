"""Semantic scheduling: the most urgent first, within a level the shortest; KV is saved if that is cheaper."""

from servegym.baselines.keeping import ACCOUNTINGS, tokens_to_keep
from servegym.baselines.slots import (
    LEVELS,
    PARAMETERS,
    REMAINING_S,
    SCRATCH,
    STATE,
    fill_slots,
    level_of,
    note_remaining_time,
)
from servegym.policy import Parameter, Parameters, Policy, StateFields, register, scheduler, victims

REMAINING_TIME_PARAMETER = Parameter("remaining_time", "at-eviction", "when the remaining time is estimated again: "
                                     "after an eviction (at-eviction); or after each token too (current)",
                                     choices=("at-eviction", "current"),
                                     source="semantic scheduling, Alg. 4 line 11")  # fmt: skip
CURRENT = 1
LOAD_ONLY = 1
P = Parameters(
    *PARAMETERS,
    REMAINING_TIME_PARAMETER,
    Parameter("level", "urgency", "order of requests: by this level, then by remaining time", choices=LEVELS,
              source="semantic scheduling, Alg. 1"),
    Parameter("accounting", "decode", "how the cost of recomputing an evicted request's decoded tokens is estimated: "
              "as decode iterations (decode), as one prefill with its prompt (prefill), or by the paper's equations "
              "(as-printed)", choices=ACCOUNTINGS, source="semantic scheduling, Eq. 3-6"),
    Parameter("transfer_cost", "save-and-load", "assumed cost of saving a token to host memory: the time to save and "
              "load it, or to load it (load)", choices=("save-and-load", "load"),
              source="ours; load: semantic scheduling, Eq. 3"),
)  # fmt: skip
P_SJF = Parameters(*PARAMETERS, REMAINING_TIME_PARAMETER)


@scheduler
def semantic(context, ranks, limits):
    p = P.read(context)
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        request, own = context.requests[r], context.state.requests[r]
        note_remaining_time(request, own, context.engine, context.estimator, p.remaining_time == CURRENT)
        ranks[position].tier = level_of(request, p.level)
        ranks[position].key = own[REMAINING_S]
    fill_slots(context, p, ranks, limits)


@victims
def semantic_victims(context, ranks, limits):
    """Evict the least urgent first, of these the longest (Algorithms 3 and 4); Eq. 3 to 6 give what is saved."""
    p, engine = P.read(context), context.engine
    move_s_per_token = engine.load_s_per_token
    if p.transfer_cost != LOAD_ONLY:
        move_s_per_token += engine.save_s_per_token
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        request, rank = context.requests[r], ranks[position]
        rank.victim_tier = level_of(request, p.level)
        rank.victim_key = context.state.requests[r, REMAINING_S]
        if request.blocks > 0:
            rank.keep_tokens = tokens_to_keep(request, engine, p.accounting, move_s_per_token, context.estimator)


@scheduler
def slots_sjf(context, ranks, limits):
    p = P_SJF.read(context)
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        own = context.state.requests[r]
        current = p.remaining_time == CURRENT
        note_remaining_time(context.requests[r], own, context.engine, context.estimator, current)
        ranks[position].tier = 0
        ranks[position].key = own[REMAINING_S]
    fill_slots(context, p, ranks, limits)


@victims
def longest_first(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        ranks[position].victim_tier = 0
        ranks[position].victim_key = context.state.requests[context.queue[position], REMAINING_S]


register(
    Policy(
        "semantic",
        "scheduler",
        "The most urgent first, within a level the shortest, in slots; saves KV if loading it is cheaper.",
        "semantic scheduling, Algorithms 1 to 5",
        semantic,
        semantic_victims,
        parameters=P,
        state=StateFields(request=STATE),
        scratch=SCRATCH,
    )
)
register(
    Policy(
        "slots-sjf",
        "scheduler",
        "Shortest predicted job first, in slots.",
        "semantic scheduling, section 4.1",
        slots_sjf,
        longest_first,
        parameters=P_SJF,
        state=StateFields(request=STATE),
        scratch=SCRATCH,
    )
)
