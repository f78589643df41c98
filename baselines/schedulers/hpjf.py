"""Highest priority first, and first come first served, in slots: baselines of semantic scheduling."""

from servegym.baselines.slots import LEVELS, PARAMETERS, SCRATCH, STATE, fill_slots, level_of, note_eviction
from servegym.policy import Parameter, Parameters, Policy, StateFields, register, scheduler, victims

P_FCFS = Parameters(*PARAMETERS)
P = Parameters(
    *PARAMETERS,
    Parameter("level", "priority", "order of requests: by this level, then by arrival", choices=LEVELS,
              source="semantic scheduling, section 4.1"),
)  # fmt: skip


@scheduler
def hpjf(context, ranks, limits):
    p = P.read(context)
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        request = context.requests[r]
        note_eviction(request, context.state.requests[r])
        ranks[position].tier = level_of(request, p.level)
        ranks[position].key = request.arrival_s
    fill_slots(context, p, ranks, limits)


@victims
def hpjf_victims(context, ranks, limits):
    """Evict the least important first, of these the latest."""
    level = P.read(context).level
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        ranks[position].victim_tier = level_of(request, level)
        ranks[position].victim_key = request.arrival_s


@scheduler
def slots_fcfs(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        note_eviction(context.requests[r], context.state.requests[r])
        ranks[position].tier = 0
        ranks[position].key = context.requests[r].arrival_s
    fill_slots(context, P_FCFS.read(context), ranks, limits)


@victims
def latest_first(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        ranks[position].victim_tier = 0
        ranks[position].victim_key = context.requests[context.queue[position]].arrival_s


register(
    Policy(
        "hpjf",
        "scheduler",
        "Highest priority first, then first come first served, in slots.",
        "semantic scheduling, section 4.1",
        hpjf,
        hpjf_victims,
        parameters=P,
        state=StateFields(request=STATE),
        scratch=SCRATCH,
    )
)
register(
    Policy(
        "slots-fcfs",
        "scheduler",
        "First come first served, in slots.",
        "semantic scheduling, section 4.1",
        slots_fcfs,
        latest_first,
        parameters=P_FCFS,
        state=StateFields(request=STATE),
        scratch=SCRATCH,
    )
)
