"""Llumnix inside an engine: by priority, then arrival, with a reserve of KV memory for the highest priority."""

import numpy as np

from servegym.baselines.schedulers import vllm_fcfs
from servegym.policy import Parameter, Parameters, Policy, is_decoding, limits_kernel, register, scheduler

DECODES = np.int64(2**40)  # tier after every priority

P = Parameters(
    *vllm_fcfs.P,
    Parameter("reserve", 0.1, "share of the KV blocks kept for requests of priority 0, the most important", 0, 1),
)
set_limits = limits_kernel(vllm_fcfs.LIMITS, P)


@scheduler
def llumnix_reserve(context, ranks, limits):
    p = P.read(context)
    set_limits(limits, p)
    reserve_blocks = int(p.reserve * context.engine.total_blocks)
    for position in range(context.queue.shape[0]):
        request, rank = context.requests[context.queue[position]], ranks[position]
        rank.tier = request.priority + (DECODES if is_decoding(request) else np.int64(0))
        rank.key = request.arrival_s
        rank.headroom_blocks = reserve_blocks if request.priority > 0 else 0


register(
    Policy(
        "llumnix-reserve",
        "scheduler",
        "By priority, then arrival; lower priorities leave a reserve of KV memory to the highest.",
        "Llumnix; ProServe, sections 1 and 6",
        llumnix_reserve,
        parameters=P,
    )
)
