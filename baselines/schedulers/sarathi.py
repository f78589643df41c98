"""Sarathi-Serve's stall-free batching, and ProServe's extension by priority (its section 5.1)."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Fact, Parameter, Policy, register
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import scheduler

DECODES = -(2**40)  # tier before every priority

PARAMETERS = (
    Parameter("token_budget", Fact("profiled_token_budget"), "tokens in a batch", 1, 2**20, "tokens",
              integer=True, log=True, source="Sarathi-Serve, section 4: a full batch meets the TBT SLO"),
    Parameter("max_sequences", 128, "requests that may hold memory", 1, 2**20, "requests",
              integer=True, log=True, source="Sarathi-Serve"),
)  # fmt: skip


@kernel
def set_budgets(parameters, limits):
    """The limits of PARAMETERS, which are a policy's first."""
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])


@kernel
def rank_after_decodes(request, line, tier, key):
    """Decodes before all others, by arrival; a prefill by (tier, key)."""
    if is_decoding(request):
        line.tier = DECODES
        line.key = request.arrival_s
    else:
        line.tier = tier
        line.key = key


@scheduler
def sarathi_fcfs(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], 0, request.arrival_s)


@scheduler
def sarathi_priority(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], request.priority, request.arrival_s)


register(
    Policy(
        "sarathi-fcfs",
        "scheduler",
        "Decodes first, then prefill chunks in order of arrival, under a static token budget.",
        "Sarathi-Serve; ProServe, section 5.1",
        sarathi_fcfs,
        parameters=PARAMETERS,
    )
)
register(
    Policy(
        "sarathi-priority",
        "scheduler",
        "Decodes first, then prefill chunks by priority, then arrival, under a static token budget.",
        "ProServe, section 5.1",
        sarathi_priority,
        parameters=PARAMETERS,
    )
)
