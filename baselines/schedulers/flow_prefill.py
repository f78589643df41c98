"""FlowPrefill (section 5.2, Algorithms 1 and 2): prefills by slack, batched within it, suspended for more urgent ones.

The steps are those of "Rule, exactly" in docs/systems/flowprefill.md. Ranking is in `flow_prefill_ranking`, batching in
`flow_prefill_batching`.
"""

import numpy as np

from servegym.baselines.schedulers.flow_prefill_batching import MISFITS, choose_batch, may_be_joined, rank_candidates
from servegym.baselines.schedulers.flow_prefill_ranking import (
    DECODES,
    DUE,
    LATE_ORDERS,
    NO_POSITION,
    PRIORITIES,
    SCRATCH,
    first_of_all,
    has_free_blocks,
    look_through,
    rank_in_one_order,
    rank_tasks,
)
from servegym.policy import (
    LEAVE_OUT,
    PHASE_FIRST_DECIDES,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    batches,
    cached_of,
    first_ranked,
    is_decoding,
    kernel,
    register,
    scheduler,
)

BOUNDARIES = ("none", "operator", "layer")  # as NOT_PREEMPTIBLE, AT_OPERATORS, AT_LAYERS
STARTED, ENDED = range(2)  # of the engine's last decode iteration; the second as estimated

P = Parameters(
    Parameter("priority", "s-edf", "which prompts count as late: those without time to spare (s-edf, Eq. 3), past "
              "their deadline (d-edf), or none (edf)", choices=PRIORITIES, source="FlowPrefill, Eq. 3 and section 6.3"),
    Parameter("late_order", "latest-first", "order of late prompts: latest deadline first, as printed, or earliest "
              "first (edf)", choices=LATE_ORDERS, source="FlowPrefill, Eq. 3; edf: ours"),
    Parameter("batch_token_budget", 4096, "a batch of several prompts has fewer tokens than this (G); 0: one prompt a "
              "batch", 0, 2**20, "tokens", integer=True, source="FlowPrefill, Alg. 1; value: ours"),
    Parameter("margin", 0.0, "least share of its TTFT SLO that the first prompt of a batch has left at the end of the "
              "batch; 0.1 in the public code", 0, 1, source="FlowPrefill, Alg. 1; code"),
    Parameter("longest_batched_tokens", 2**20, "longer prompts share no batch; 2048 in the public code",
              1, 2**20, "tokens", integer=True, log=True, source="FlowPrefill, Alg. 1; code"),
    Parameter("misfit", "pass-over", "when a prompt does not fit the batch: try the next ones (pass-over), or end the "
              "batch (stop: the code)", choices=MISFITS, source="FlowPrefill, Alg. 1; code"),
    Parameter("boundary", "operator", "where a prefill can be suspended", choices=BOUNDARIES,
              source="FlowPrefill, section 5.1"),
    Parameter("chunk_tokens", 0, "tokens of a request in a task; 0: whole prompts", 0, 2**20, "tokens",
              integer=True, source="FlowPrefill, section 6.5"),
    Parameter("tbt_share", 0.9, "share of the smallest TPOT SLO that a slice of prefill and the decodes after it take "
              "together", 0, 10, source="ours"),
    Parameter("least_slice_s", 0.005, "shortest slice of prefill", 0.0001, 10, "s", log=True, source="ours"),
)  # fmt: skip


@kernel
def is_their_turn(context, ranks, limits, positions, p):
    """Return whether the decodes among these positions run now, and their estimated time, s.

    If they do not, limits.slice_s is set to how long a prefill may delay them.
    A slice and a decode iteration take `tbt_share` of the smallest TPOT SLO together (equation of the page).
    """
    now_s, estimator = context.now_s, context.estimator
    memory, sums, tpot_s = context.state.engines[context.engine.index], estimator.scratch[1], np.inf
    batches.clear(sums)
    for position in positions:
        if ranks[position].tier == DECODES:
            request = context.requests[context.queue[position]]
            batches.add(sums, 1, cached_of(request), True)
            tpot_s = min(tpot_s, request.tpot_slo_s)
    if sums.decode_requests == 0.0:
        return False, 0.0
    decode_s = estimator.batch_s(sums, estimator.coefficients)
    next_s = memory[ENDED] + max(p.least_slice_s, p.tbt_share * tpot_s - decode_s)
    if memory[ENDED] == 0.0 or memory[STARTED] == now_s or now_s >= next_s:
        for position in positions:
            if ranks[position].tier == DECODES:
                ranks[position].tier = DUE
        return True, decode_s
    limits.slice_s = max(p.least_slice_s, next_s - now_s)
    return False, decode_s


@kernel
def note_decodes(context, decode_s):
    """Keep start and end of a decode iteration, which an idle engine runs now."""
    if context.engine.running_task < 0:
        memory = context.state.engines[context.engine.index]
        memory[STARTED], memory[ENDED] = context.now_s, context.now_s + decode_s


@kernel
def set_limits(limits, p):
    """Set the limits of a batch from the parameters."""
    limits.preemptible = p.boundary
    limits.phase = PHASE_FIRST_DECIDES
    if p.chunk_tokens > 0:
        limits.chunk_tokens = p.chunk_tokens
    else:
        limits.whole_prompts = 1


@kernel
def list_with(first, positions, ranks, limits):
    """List these ascending positions, and `first` if it is not among them; NO_POSITION: none."""
    k = 0
    for position in positions:
        if NO_POSITION < first < position:
            ranks[k].listed, first = first, NO_POSITION
            k += 1
        if position == first:
            first = NO_POSITION
        ranks[k].listed = position
        k += 1
    if first != NO_POSITION:
        ranks[k].listed = first
        k += 1
    limits.listed = k


@kernel
def rank_for_batch(context, ranks, limits, p):
    """Rank all requests (Alg. 2, lines 7-11), and decide whether decodes run."""
    decodes = SCRATCH.read(context).order[: rank_in_one_order(context, ranks, limits, p)]
    due, decode_s = is_their_turn(context, ranks, limits, decodes, p)
    if due or ranks[first_ranked(ranks, context.queue.shape[0])].tier == DECODES:
        note_decodes(context, decode_s)


@scheduler
def rank_all(context, ranks, limits):
    p = P.read(context)
    set_limits(limits, p)
    rank_tasks(context, p)
    rank_for_batch(context, ranks, limits, p)


@scheduler
def leave_out_others(context, ranks, limits):
    """Leave out requests that do not join the first one (Alg. 2, lines 12-15), after any ranking.

    While a task runs, only the first request matters.
    """
    requests, queue, engine, n = context.requests, context.queue, context.engine, context.queue.shape[0]
    order, first, waiting = SCRATCH.read(context).order, first_ranked(ranks, n), 0
    head = requests[queue[first]]
    if engine.running_task >= 0 or head.task >= 0 or is_decoding(head) or not has_free_blocks(head, engine, limits):
        return
    for position in range(n):
        request = requests[queue[position]]
        if position == first or request.task >= 0 or is_decoding(request):
            continue
        if has_free_blocks(request, engine, limits):
            order[waiting] = position
            waiting += 1
        else:
            ranks[position].tier = LEAVE_OUT
    choose_batch(first, waiting, context, ranks, P.read(context))


@scheduler
def flow_prefill(context, ranks, limits):
    """Rank for the batch and leave out the others, without ranks that cannot change the outcome.

    If a task ranks first, it goes on; if a waiting request with room does, it runs, and the order of the others matters
    only if they may join it. Decodes come before requests without room. If a decode is running, the batch has decodes
    only: requests in tasks and waiting requests neither get nor lose memory.
    """
    p, s, n = P.read(context), SCRATCH.read(context), context.queue.shape[0]
    requests, queue = context.requests, context.queue
    set_limits(limits, p)
    index, tied = rank_tasks(context, p)
    found, running, first, tier, key = look_through(context, ranks, limits, p)
    first, tier, key = first_of_all(index, tied, first, tier, key, context)
    served = s.order[n - found : n]
    due, decode_s = is_their_turn(context, ranks, limits, served, p)
    if due or first == NO_POSITION:
        if running == 0:
            rank_for_batch(context, ranks, limits, p)
        else:
            note_decodes(context, decode_s)
            list_with(NO_POSITION, served, ranks, limits)
        return
    if context.engine.running_task >= 0 or requests[queue[first]].task >= 0:
        served = served[:0]
    elif may_be_joined(requests[queue[first]], context, p):
        candidates = rank_candidates(first, context, ranks, limits, p)
        ranks[first].tier, ranks[first].key = tier, key
        choose_batch(first, candidates, context, ranks, p)
        return
    for position in served:
        if ranks[position].tier != DECODES:
            ranks[position].tier = LEAVE_OUT
    ranks[first].tier, ranks[first].key = tier, key
    list_with(first, served, ranks, limits)


register(
    Policy(
        "flow-prefill",
        "scheduler",
        "Prompts by deadline, late ones last, in batches that are suspended for a request that ranks before them.",
        "FlowPrefill, section 5, Algorithms 1 and 2",
        flow_prefill,
        rank_then_filter=(rank_all, leave_out_others),
        state=StateFields(engine=("decodes_started_s", "decodes_ended_s"), tasks=True, repeatable=True),
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
