"""Sarathi's batches with other orders of the prefills: what QoServe compares with (its section 4).

Decodes run first; of the prefills EDF takes the earliest deadline, SRPF the least prompt left, SJF the shortest prompt.
"""

from servegym.baselines.schedulers.sarathi import DECODES, PARAMETERS
from servegym.simulator.policies import Policy, register
from servegym.simulator.requests import is_decoding, left_of
from servegym.simulator.signatures import scheduler


@scheduler
def sarathi_edf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        decoding = is_decoding(request)
        plan[place].tier = DECODES if decoding else 0
        plan[place].key = request.arrival_s if decoding else request.first_deadline_s


@scheduler
def sarathi_srpf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        decoding = is_decoding(request)
        plan[place].tier = DECODES if decoding else 0
        plan[place].key = request.arrival_s if decoding else float(left_of(request))


@scheduler
def sarathi_sjf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        decoding = is_decoding(request)
        plan[place].tier = DECODES if decoding else 0
        plan[place].key = request.arrival_s if decoding else float(request.prompt_tokens)


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
