"""Calling an engine's policy, which writes ranks of the queue and limits of the batch."""

import numpy as np

from servegym.simulator.compilation.kernels import hook, inlined_kernel, kernel
from servegym.simulator.policies.refusals import are_legal_limits, are_legal_listed
from servegym.simulator.records.signatures import Estimator, SchedulerContext, state_of
from servegym.simulator.records.state import Decider
from servegym.simulator.records.types import EVICT_FOR_DECODES, MISFIT_PASS_OVER, NO_LIMIT, NOT_PREEMPTIBLE, PHASE_MIXED


@kernel
def decider_of(run, functions, e):
    """Return the policy functions and the estimator of engine e."""
    pool = run.engines[e].pool
    estimator = Estimator(functions.batch_s[pool], functions.exec_s[pool], run.estimate[e], run.sums[2:])
    return Decider(functions.schedulers[pool], functions.victims[pool], estimator)


@inlined_kernel
def rank_queue(run, decider, e, now_s):
    """Let the scheduler rank the queue of engine e and set limits, and return whether they are valid."""
    engine, limits, own = run.engines[e], run.limits[0], run.engine_limits[e]
    reset_limits(limits, engine, own)
    if run.engines[run.engines.shape[0] - 1].pool > 0:  # ranks are shared with the schedulers of other pools
        for position in range(engine.queue_length):
            run.ranks[position].headroom_blocks = 0
    ask_scheduler(run, decider.scheduler, decider.estimator, e, now_s)
    legal = are_legal_limits(limits) and are_legal_listed(run.ranks, limits, engine.queue_length)
    run.packing[0].refused = run.status[0].failed == 1 or not legal
    limits.max_num_batched_tokens = min(limits.max_num_batched_tokens, own.max_num_batched_tokens)
    limits.max_num_seqs = min(limits.max_num_seqs, own.max_num_seqs)
    return run.packing[0].refused == 0


@kernel
def reset_limits(limits, engine, own):
    """Reset the limits to those of the engine."""
    limits.max_num_batched_tokens = own.max_num_batched_tokens
    limits.chunk_tokens = NO_LIMIT
    limits.sequence_budget = NO_LIMIT
    limits.max_num_seqs = own.max_num_seqs
    limits.time_budget_s = np.inf
    limits.smallest_chunk_tokens = 1
    limits.untimed_prefill_tokens = 0
    limits.step_tokens = 0
    limits.most_drafts = NO_LIMIT
    limits.untimed_decodes = 0
    limits.watermark_blocks = engine.watermark_blocks
    limits.whole_prompts = 0
    limits.reserve_context = 1
    limits.phase = PHASE_MIXED
    limits.misfit = MISFIT_PASS_OVER
    limits.evict_for = EVICT_FOR_DECODES
    limits.preemptible = NOT_PREEMPTIBLE
    limits.slice_s = np.inf
    limits.listed = NO_LIMIT


@hook  # no kernel returns a record, and here the engine is one
def scheduler_context_of(run, estimator, e, now_s):
    """Return the context of the scheduler, or of the victims function, of engine e."""
    engine = run.engines[e]
    return SchedulerContext(
        now_s, engine, run.requests, run.queues[e][: engine.queue_length], state_of(run.state, e), run.parameters[e],
        estimator, run.scratch,
    )  # fmt: skip


@inlined_kernel
def ask_scheduler(run, function, estimator, e, now_s):
    """Call the scheduler, or the victims function, of engine e, which writes ranks and limits."""
    function(scheduler_context_of(run, estimator, e, now_s), run.ranks, run.limits[0])
