"""Consistent hashing: all turns of a session go to one engine, whatever the load. If an engine leaves, only its
sessions move.

A session goes to the engine with the highest hash of session and engine (rendezvous hashing, Thaler and Ravishankar).
As few sessions move as with Karger's ring, without a ring.
"""

import numpy as np

from servegym.policy import Parameter, Parameters, Policy, kernel, register, router, takes, uniform

# Random streams of engine 0 for sessions, for prefixes of prompts, and for requests; engine e has the e-th after it.
BY_SESSION, BY_BEGINNING, BY_REQUEST = 0x73650000, 0x73660000, 0x73670000
P = Parameters(Parameter("seed", 0, "seed of the hash", 0, 2**31 - 1, integer=True))


@kernel
def key_of(context, request):
    """Return (stream, number) to hash: of the session, else of the prompt's first chunk, else of the request."""
    prefixes, session = context.known.prefixes, context.requests[request].session
    if session >= 0:
        return BY_SESSION, np.int64(session)
    if prefixes.chunk_tokens > 0 and prefixes.offsets[request] < prefixes.offsets[request + 1]:
        return BY_BEGINNING, np.int64(prefixes.chunks[prefixes.offsets[request]])
    return BY_REQUEST, np.int64(request)


@router
def session_hash(context, request, route):
    snapshots, seed = context.known.snapshots, P.read(context).seed
    stream, number = key_of(context, request)
    highest = -1.0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], context.requests[request]):
            drawn = uniform(seed, stream + snapshots[e].index, number)
            if drawn > highest:
                highest, route.engine = drawn, e


register(
    Policy(
        "session-hash",
        "router",
        "The engine that a hash of the session names; when an engine leaves, only its sessions move.",
        "Karger et al., STOC 1997; Thaler and Ravishankar, 1998",
        session_hash,
        parameters=P,
    )
)
