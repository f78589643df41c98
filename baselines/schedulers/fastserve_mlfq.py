"""FastServe's multi-level feedback queue with skip-join: short work first, not knowing how long an answer will be.

The rule, step by step, is in docs/systems/fastserve.md.
"""

from servegym.simulator import batches
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Parameters, Policy, StateFields, register
from servegym.simulator.requests import cached_of, is_decoding, left_of
from servegym.simulator.signatures import scheduler, victims
from servegym.simulator.types import EVICT_FOR_ALL

LAST_LEVEL = 62  # 10 ms x 2^62 is longer than any run
KNOWN, LEVEL, USED_S, ENTERED_S, WAITING_SINCE_S, PROGRESS = range(6)  # of state.requests
REQUEST_FIELDS = ("known", "level", "used_s", "entered_s", "waiting_since_s", "progress")
BUSY_THEN_S = 0  # of state.engines

P = Parameters(
    Parameter("quantum_s", 0.01, "time a request may run in the top level; doubles level by level",
              0.0001, 10, "s", log=True, source="ours"),
    Parameter("promote_after_s", 3.0, "waiting time after which a request goes to the top", 0.001, 1e6, "s",
              log=True, source="ours"),
    Parameter("token_budget", 8192, "tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
              integer=True, log=True, source="as vllm-fcfs"),
    Parameter("batch_size", 256, "requests in a batch", 1, 2**20, "requests",
              integer=True, log=True, source="as vllm-fcfs"),
)  # fmt: skip


@kernel
def first_level(request, quantum_s, estimator):
    """Skip-join: the first level whose quantum holds all that the request has left, as a batch of its own."""
    scratch = estimator.scratch[0]
    time_s = batches.estimate_alone(scratch, left_of(request), cached_of(request), is_decoding(request), estimator)
    level = 0
    while quantum_s * float(1 << level) < time_s and level < LAST_LEVEL:
        level += 1
    return level


@kernel
def enter(own, level, now_s):
    """The request goes to the end of a level, with the whole quantum before it."""
    own[LEVEL] = level
    own[USED_S] = 0.0
    own[ENTERED_S] = now_s


@scheduler
def fastserve_mlfq(context, ranks, limits):
    p, now_s, engine, state = P.read(context), context.now_s, context.engine, context.state
    limits.token_budget = p.token_budget
    limits.sequence_budget = p.batch_size
    limits.whole_prompts = 1
    if engine.host_blocks > 0:
        limits.evict_for = EVICT_FOR_ALL  # swapping makes room for new work; to lose what is computed would not pay
    ran_s = engine.busy_s - state.engines[engine.index, BUSY_THEN_S]
    state.engines[engine.index, BUSY_THEN_S] = engine.busy_s
    for position in range(context.queue.shape[0]):
        r = context.queue[position]
        request, own = context.requests[r], state.requests[r]
        progress = float(cached_of(request) + request.emitted_tokens)
        if own[KNOWN] == 0.0:
            own[KNOWN] = 1.0
            enter(own, first_level(request, p.quantum_s, context.estimator), request.arrival_s)
            own[WAITING_SINCE_S] = request.arrival_s
        else:
            if progress > own[PROGRESS]:  # it was in the last iteration
                own[USED_S] += ran_s
                own[WAITING_SINCE_S] = now_s
            if own[USED_S] > 0.0 and own[USED_S] >= p.quantum_s * float(1 << int(own[LEVEL])):
                enter(own, min(own[LEVEL] + 1.0, float(LAST_LEVEL)), now_s)
            elif own[LEVEL] > 0.0 and now_s - own[WAITING_SINCE_S] >= p.promote_after_s:
                enter(own, 0.0, now_s)
        own[PROGRESS] = progress
        ranks[position].tier = int(own[LEVEL])
        ranks[position].key = own[ENTERED_S]


@victims
def fastserve_victims(context, ranks, limits):
    """What would run last gives up its memory first, and all of it is saved where there is host memory."""
    for position in range(context.queue.shape[0]):
        rank = ranks[position]
        rank.victim_tier = rank.tier
        rank.victim_key = rank.key
        rank.keep_tokens = context.requests[context.queue[position]].computed_tokens


register(
    Policy(
        "fastserve-mlfq",
        "scheduler",
        "Multi-level feedback queue: a request starts where its prefill fits, sinks as it runs, rises when it starves.",
        "FastServe, as ProServe and the semantic paper describe it",
        fastserve_mlfq,
        fastserve_victims,
        parameters=P,
        state=StateFields(request=REQUEST_FIELDS, engine=("busy_then_s",)),
    )
)  # fmt: skip
