"""EDF and SJF under a fixed token budget or a fixed batch size (ProServe, section 3.2, Figures 3 and 4)."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.signatures import scheduler

PARAMETERS = (
    Parameter("token_budget", 512, "tokens in a batch", 1, 2**20, "tokens", integer=True, log=True, source="ours"),
    Parameter("batch_size", 0, "requests in a batch, whole; 0: the token budget counts instead", 0, 2**20,
              "requests", integer=True, source="ours"),
)  # fmt: skip


@kernel
def fix_budget(parameters, limits):
    """A fixed batch size where one is given, else a fixed token budget."""
    if parameters[1] > 0:
        limits.sequence_budget = int(parameters[1])
    else:
        limits.token_budget = int(parameters[0])


@scheduler
def edf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    fix_budget(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = 0
        plan[place].key = next_deadline_s(request)


@scheduler
def sjf(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    fix_budget(parameters, limits)
    estimator.exec_s(requests, queue, estimator.coefficients, plan)
    for place in range(queue.shape[0]):
        plan[place].tier = 0
        plan[place].key = plan[place].exec_s


register(
    Policy(
        "edf",
        "scheduler",
        "Earliest deadline of the next token first, under a fixed token budget or batch size.",
        "ProServe, section 3.2",
        edf,
        parameters=PARAMETERS,
    )
)
register(
    Policy(
        "sjf",
        "scheduler",
        "Shortest job first: least estimated time for what is left to compute, fixed token budget or batch size.",
        "ProServe, section 3.2",
        sjf,
        parameters=PARAMETERS,
    )
)
