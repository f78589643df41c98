"""Llumnix's dispatch: the engine with most free memory per request, less the memory that waiting prompts need."""

import numpy as np

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.policy import Policy, StateFields, blocks_for, kernel, register, router


@kernel
def freeness(context, e):
    """Return (free blocks - blocks of the prompts without a token) / requests of engine e; inf without requests."""
    snapshot, prefilling = context.known.snapshots[e], context.known.prefilling[e]
    if snapshot.requests == 0:
        return np.inf
    waiting_blocks = 0
    for k in range(snapshot.prefills):
        waiting_blocks += blocks_for(context.requests[prefilling[k]].prompt_tokens, snapshot.block_tokens)
    return (snapshot.free_blocks - waiting_blocks) / snapshot.requests


@router
def llumnix(context, request, route):
    for e in range(context.known.snapshots.shape[0]):
        context.state[e, MEASURE] = -freeness(context, e)
    send_to_least(context, request, route)


register(
    Policy(
        "llumnix",
        "router",
        "The engine with most free memory per request, less the memory that waiting prompts need.",
        "Llumnix (freeness), as its code has it for dispatch",
        llumnix,
        state=StateFields(engine=FIELDS),
    )
)
