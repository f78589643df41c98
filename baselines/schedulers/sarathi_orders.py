"""Sarathi's batches with other orders of prefills: baselines of QoServe (its section 4).

Decodes run first; then prefills by earliest deadline (EDF), least prompt left (SRPF) or shortest prompt (SJF).
"""

from servegym.baselines.schedulers.sarathi import LIMITS, P
from servegym.policy import Policy, left_of, register, score


@score(P, limits=LIMITS, decodes="first")
def sarathi_edf(request, engine, now_s, estimates, p):
    return request.first_deadline_s


@score(P, limits=LIMITS, decodes="first")
def sarathi_srpf(request, engine, now_s, estimates, p):
    return left_of(request)


@score(P, limits=LIMITS, decodes="first")
def sarathi_sjf(request, engine, now_s, estimates, p):
    return request.prompt_tokens


register(
    Policy(
        "sarathi-edf",
        "scheduler",
        "Decodes first, then prefill chunks by the deadline of the first token or of the whole answer.",
        "QoServe, section 4; Sarathi-Serve",
        sarathi_edf,
        parameters=P,
    )
)
register(
    Policy(
        "sarathi-srpf",
        "scheduler",
        "Decodes first, then prefill chunks of the request with the least prompt left.",
        "QoServe, section 4.2; Sarathi-Serve",
        sarathi_srpf,
        parameters=P,
    )
)
register(
    Policy(
        "sarathi-sjf",
        "scheduler",
        "Decodes first, then prefill chunks of the request with the shortest prompt.",
        "QoServe, section 2.4; Sarathi-Serve",
        sarathi_sjf,
        parameters=P,
    )
)
