"""Llumnix inside an engine: first come, first served within a priority, and a reserve of KV memory for the highest."""

import numpy as np

from servegym.baselines.schedulers import vllm_fcfs
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import scheduler

DECODES = np.int64(2**40)  # tier after every priority


@scheduler
def llumnix_reserve(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    vllm_fcfs.set_budgets(parameters, limits)
    reserve_blocks = int(parameters[2] * engine.total_blocks)
    for place in range(queue.shape[0]):
        request, line = requests[queue[place]], plan[place]
        line.tier = request.priority + (DECODES if is_decoding(request) else np.int64(0))
        line.key = request.arrival_s
        line.headroom_blocks = reserve_blocks if request.priority > 0 else 0


register(
    Policy(
        "llumnix-reserve",
        "scheduler",
        "By priority, then arrival; lower priorities leave a reserve of KV memory to the highest.",
        "Llumnix; ProServe, sections 1 and 6",
        llumnix_reserve,
        parameters=(
            *vllm_fcfs.PARAMETERS,
            Parameter("reserve", 0.1, "share of the KV blocks that only priority 0 is admitted to", 0, 1),
        ),
    )
)  # fmt: skip
