"""Llumnix's dispatch: where each request has most free memory, less what is promised to prompts that wait."""

import numpy as np

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.simulator.compilation import kernel
from servegym.simulator.memory import blocks_for
from servegym.simulator.policies import Policy, StateFields, register
from servegym.simulator.signatures import router


@kernel
def freeness(requests, view, record):
    """(free blocks - blocks of the prompts of the queue record) / requests; infinite without requests."""
    if view.requests == 0:
        return np.inf
    waiting_blocks = 0
    for k in range(view.prefills):
        waiting_blocks += blocks_for(requests[record[k]].prompt_tokens, view.block_tokens)
    return (view.free_blocks - waiting_blocks) / view.requests


@router
def llumnix(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views = known.views
    for e in range(views.shape[0]):
        state[e, MEASURE] = -freeness(requests, views[e], known.records[e])
    send_to_least(views, requests[r], state, route)


register(
    Policy(
        "llumnix",
        "router",
        "The engine with most free memory a request, memory for waiting prompts taken off.",
        "Llumnix (freeness), as its code has it for dispatch",
        llumnix,
        state=StateFields(engine=FIELDS),
    )
)
