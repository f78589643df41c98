"""Policies that mean harm: compiled once each, with parameters that say what they do wrong, how much and when."""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import gain, router, scaler, scheduler, victims

LIMITS = (
    "max_num_batched_tokens", "chunk_tokens", "sequence_budget", "max_num_seqs", "smallest_chunk_tokens",
    "untimed_prefill_tokens", "watermark_blocks", "most_drafts", "step_tokens",
)  # fmt: skip
FLAGS = ("phase", "misfit", "evict_for", "preemptible")
WAYS = (
    *LIMITS, *FLAGS, "time_budget_s", "slice_s", "key", "headroom_blocks", "victim_key", "keep_tokens", "raise",
    "assert", "raise_in_helper", "raise_in_victims", "leave_out", "listed",
)  # fmt: skip
(
    TOKENS, CHUNK, SEQUENCES, HOLDERS, SMALLEST, UNTIMED, WATERMARK, DRAFTS, STEP, PHASE, MISFIT, EVICT_FOR,
    PREEMPTIBLE, TIME, SLICE, KEY, HEADROOM, VICTIM_KEY, KEEP, RAISE, ASSERT, HELPER, VICTIMS, LEAVE, LISTED,
) = range(len(WAYS))  # fmt: skip
WAY, VALUE, NUMBER, SINCE = range(4)  # of the parameters: a whole number, any number, and the iteration of the first


@kernel
def refuse(parameters):
    if parameters[WAY] == HELPER:
        raise ValueError("a helper had enough")


@kernel
def set_limit(limits, way, value, number):
    """Write a limit that is none, or huge."""
    if way == TOKENS:
        limits.max_num_batched_tokens = value
    elif way == CHUNK:
        limits.chunk_tokens = value
    elif way == SEQUENCES:
        limits.sequence_budget = value
    elif way == HOLDERS:
        limits.max_num_seqs = value
    elif way == SMALLEST:
        limits.smallest_chunk_tokens = value
    elif way == UNTIMED:
        limits.untimed_prefill_tokens = value
    elif way == WATERMARK:
        limits.watermark_blocks = value
    elif way == DRAFTS:
        limits.most_drafts = value
    elif way == STEP:
        limits.step_tokens = value
    elif way == PHASE:
        limits.phase = value
    elif way == MISFIT:
        limits.misfit = value
    elif way == EVICT_FOR:
        limits.evict_for = value
    elif way == PREEMPTIBLE:
        limits.preemptible = value
    elif way == TIME:
        limits.time_budget_s = number
    elif way == SLICE:
        limits.slice_s = number
    elif way == LISTED:
        limits.listed = value


@scheduler
def hostile(context, ranks, limits):
    engine, queue, parameters = context.engine, context.queue, context.parameters
    way, value, number = int(parameters[WAY]), int(parameters[VALUE]), parameters[NUMBER]
    limits.evict_for = 2
    for position in range(queue.shape[0]):
        ranks[position].tier, ranks[position].headroom_blocks = 0, 0
        ranks[position].key = float(-position) if position % 2 else float(position)
    if engine.iterations < parameters[SINCE] or queue.shape[0] == 0:
        return
    last = queue.shape[0] - 1
    if way == KEY:
        ranks[last].key = number
    elif way == HEADROOM:
        ranks[last].headroom_blocks = value
    elif way == RAISE:
        raise ValueError("had enough")
    elif way == ASSERT:
        assert way != ASSERT, "must not be"
    elif way == LEAVE:
        for position in range(queue.shape[0]):
            ranks[position].tier = value
    refuse(parameters)
    set_limit(limits, way, value, number)


@victims
def hostile_victims(context, ranks, limits):
    engine, queue, parameters = context.engine, context.queue, context.parameters
    way, value, number = int(parameters[WAY]), int(parameters[VALUE]), parameters[NUMBER]
    for position in range(queue.shape[0]):
        ranks[position].victim_tier, ranks[position].victim_key = ranks[position].tier, ranks[position].key
    if engine.iterations < parameters[SINCE]:
        return
    last = queue.shape[0] - 1
    if way == VICTIM_KEY:
        ranks[last].victim_key = number
    elif way == KEEP:
        ranks[last].keep_tokens = value
    elif way == VICTIMS:
        raise ValueError("nobody gives up anything")


def parameter(name: str) -> Parameter:
    return Parameter(name, 0, "of the harm", low=-float("inf"), high=float("inf"))


HOSTILE = Policy(
    "hostile", "scheduler", "Does harm.", "", hostile, victims=hostile_victims,
    parameters=(
        Parameter("way", "none", "what", choices=(*WAYS, "none")), *map(parameter, ("value", "number", "since")),
    ),
)  # fmt: skip

ROUTES = ("engine", "decode_engine", "held_queue", "tier", "raise")


@router
def hostile_router(context, request, route):
    requests, known, parameters = context.requests, context.known, context.parameters
    way, value = parameters[0], int(parameters[1])
    route.engine = -1
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        if snapshot.up and not snapshot.closed and (snapshot.role == 2) == (requests[request].computed_tokens > 0):
            route.engine = e
    if request < parameters[2]:
        return
    if way == 0:
        route.engine = value
    elif way == 1:
        route.decode_engine = value
    elif way == 2:
        route.engine, route.held_queue = -1, value
    elif way == 3:
        route.tier = value
    elif way == 4:
        raise ValueError("nowhere to go")


HOSTILE_ROUTER = Policy(
    "hostile-router", "router", "Does harm.", "", hostile_router, moves_engines=True,
    parameters=(Parameter("way", "none", "what", choices=(*ROUTES, "none")), parameter("value"), parameter("since")),
)  # fmt: skip


@scaler
def hostile_scaler(context, moves):
    now_s, parameters = context.now_s, context.parameters
    if now_s < parameters[2]:
        return
    if parameters[1] == -9.0:
        raise ValueError("no more scaling")
    moves[moves.shape[0] - 1].tier = int(parameters[1])


HOSTILE_SCALER = Policy(
    "hostile-scaler", "scaler", "Does harm.", "", hostile_scaler,
    parameters=(Parameter("interval_s", 1.0, "between checks", low=1e-3), parameter("tier"), parameter("since")),
)  # fmt: skip


@gain
def hostile_gain(request, outcome, now_s):
    if request.num_output_tokens == 3:
        raise ValueError("no more gains")
    return 1.0
