"""Highest priority first, and first come first served, in slots: what semantic scheduling is compared with."""

from servegym.baselines.slots import LEVELS, PARAMETERS, STATE, fill_slots, level_of, note_eviction
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.signatures import scheduler, victims

LEVEL = 3  # after the parameters of the slots


@scheduler
def hpjf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0]):
        r = queue[place]
        request = requests[r]
        note_eviction(request, state.requests[r])
        plan[place].tier = level_of(request, parameters[LEVEL])
        plan[place].key = request.arrival_s
    fill_slots(requests, queue, state, parameters, plan, limits)


@victims
def hpjf_victims(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    """The least important, latest first."""
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].victim_tier = level_of(request, parameters[LEVEL])
        plan[place].victim_key = request.arrival_s


@scheduler
def slots_fcfs(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0]):
        r = queue[place]
        note_eviction(requests[r], state.requests[r])
        plan[place].tier = 0
        plan[place].key = requests[r].arrival_s
    fill_slots(requests, queue, state, parameters, plan, limits)


@victims
def latest_first(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    for place in range(queue.shape[0]):
        plan[place].victim_tier = 0
        plan[place].victim_key = requests[queue[place]].arrival_s


register(
    Policy(
        "hpjf",
        "scheduler",
        "Highest priority first, then first come first served, in slots.",
        "semantic scheduling, section 4.1",
        hpjf,
        hpjf_victims,
        parameters=(
            *PARAMETERS,
            Parameter("level", "priority", "what the order goes by before the arrival", choices=LEVELS,
                      source="semantic scheduling, section 4.1"),
        ),
        state=StateFields(request=STATE),
    )
)  # fmt: skip
register(
    Policy(
        "slots-fcfs",
        "scheduler",
        "First come first served, in slots.",
        "semantic scheduling, section 4.1",
        slots_fcfs,
        latest_first,
        parameters=PARAMETERS,
        state=StateFields(request=STATE),
    )
)
