"""Sarathi-Serve's stall-free batching, and ProServe's extension by priority (its section 5.1)."""

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


@scheduler
def sarathi_fcfs(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = DECODES if is_decoding(request) else 0
        plan[place].key = request.arrival_s


@scheduler
def sarathi_priority(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = DECODES if is_decoding(request) else request.priority
        plan[place].key = request.arrival_s


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
