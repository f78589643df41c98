"""Sarathi's batches with other orders of the prefills: what QoServe compares with (its section 4).

Decodes run first; of the prefills EDF takes the earliest deadline, SRPF the least prompt left, SJF the shortest prompt.
"""

from servegym.baselines.schedulers.sarathi import PARAMETERS, rank_after_decodes, set_budgets
from servegym.simulator.policies import Policy, register
from servegym.simulator.requests import left_of
from servegym.simulator.signatures import scheduler


@scheduler
def sarathi_edf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], 0, request.first_deadline_s)


@scheduler
def sarathi_srpf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], 0, float(left_of(request)))


@scheduler
def sarathi_sjf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], 0, float(request.prompt_tokens))


register(
    Policy(
        "sarathi-edf",
        "scheduler",
        "Decodes first, then prefill chunks by the deadline of the first token or of the whole answer.",
        "QoServe, section 4; Sarathi-Serve",
        sarathi_edf,
        parameters=PARAMETERS,
    )
)
register(
    Policy(
        "sarathi-srpf",
        "scheduler",
        "Decodes first, then prefill chunks of the request with the least prompt left.",
        "QoServe, section 4.2; Sarathi-Serve",
        sarathi_srpf,
        parameters=PARAMETERS,
    )
)
register(
    Policy(
        "sarathi-sjf",
        "scheduler",
        "Decodes first, then prefill chunks of the request with the shortest prompt.",
        "QoServe, section 2.4; Sarathi-Serve",
        sarathi_sjf,
        parameters=PARAMETERS,
    )
)
