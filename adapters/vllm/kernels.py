"""The kernels of the plug-in: the simulator's scheduler call and packer on a mirror of one vLLM engine.

`plan_batch` forms, on a scratch copy of the mirror, the batch that the simulator would form from the same state.
`settle_batch` and `deliver_tokens` update the mirror with what vLLM then did. All take the address at which the
mirror's arrays are parked (mirror_arrays.py), as passing the arrays took a quarter of a decision's time.
"""

from servegym.adapters.vllm.mirror_arrays import restore_mirror
from servegym.simulator.batching.packer import FORMED as PACKED
from servegym.simulator.batching.packer import REFUSED as PACKING_REFUSED
from servegym.simulator.batching.packer import WAITING, pack
from servegym.simulator.batching.ranking import decider_of, rank_queue
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.features.disturbances import correct, correct_estimator
from servegym.simulator.memory.kv_memory import blocks_for, grow, release
from servegym.simulator.records import batches
from servegym.simulator.records.requests import next_deadline_s
from servegym.simulator.records.signatures import QUEUE
from servegym.simulator.records.statistics import count_admitted, count_departed, count_emitted, count_finished
from servegym.simulator.records.types import MISFIT_STOP

FORMED, NOTHING, REFUSED, BAD_CORRECTION = range(4)


@kernel
def prepare(mirror, free_blocks, under_way):
    """Copy the engine, its queue and the requests that may be scheduled into the scratch copy.

    These are all but requests whose last token is under way, requests preempted with tokens under way (vLLM waits for
    those), and barred ones. Rows of other requests are not copied, since planning does not read them.

    free_blocks: as vLLM counts them. under_way: whether a step is.
    """
    run, scratch = mirror.run, mirror.scratch
    scratch.status[0] = run.status[0]
    scratch.engines[0] = run.engines[0]
    engine = scratch.engines[0]
    waiting = 0
    for position in range(engine.queue_length):
        r = run.queues[0][position]
        request = run.requests[r]
        run.outcomes[r].under_way = request.num_output_tokens - mirror.delivered[r]
        if request.num_output_tokens >= mirror.most_output_tokens[r] or mirror.barred[r]:
            continue
        if request.blocks == 0 and request.num_output_tokens > mirror.delivered[r]:
            continue
        scratch.requests[r] = request
        scratch.queues[0][waiting] = r
        waiting += 1
    engine.queue_length = waiting
    engine.ahead.forming = under_way
    engine.free_blocks = free_blocks
    engine.total_blocks = mirror.total_blocks


plan_signature = types.int64(
    types.int64, types.float64, types.int64, types.int64, types.int64, types.int64, types.boolean
)


@compiled(plan_signature)
def plan_batch(mirror_at, now_s, free_blocks, most_tokens, most_chunk_tokens, max_num_seqs, under_way):
    """Form the policy's batch within vLLM's limits, in scratch.entries[0].

    Returns FORMED; NOTHING: no request can run; REFUSED: the policy wrote invalid limits or ranks; BAD_CORRECTION: the
    factor on the estimator is not a positive number.
    The steps are those of the simulator's `form_batch`, with vLLM's limits added. Without chunked prefill
    (mirror.chunks) prompts run whole, and no request runs before one of a better rank that does not fit, which would
    starve.
    """
    mirror = restore_mirror(mirror_at)
    prepare(mirror, free_blocks, under_way)
    run = mirror.scratch
    run.engine_limits[0].max_num_batched_tokens, run.engine_limits[0].max_num_seqs = most_tokens, max_num_seqs
    engine, packing, limits = run.engines[0], run.packing[0], run.limits[0]
    packing.length = 0
    engine.batch_length = 0
    if engine.queue_length == 0:
        return NOTHING
    if run.correction[0].window_iterations > 0 and not correct_estimator(run, 0):
        return BAD_CORRECTION
    decider = decider_of(run, mirror.functions, 0)
    while True:
        if not rank_queue(run, decider, 0, now_s):
            return REFUSED
        limits.chunk_tokens = min(limits.chunk_tokens, most_chunk_tokens)
        if not mirror.chunks:
            limits.whole_prompts = 1
            limits.misfit = MISFIT_STOP
        attempted = pack(run, decider, 0, now_s)
        if attempted == PACKING_REFUSED:
            return REFUSED
        if attempted == WAITING:
            return NOTHING
        if attempted == PACKED:
            break
    engine.batch_length = packing.length
    return FORMED


@kernel
def forget_blocks(run, request):
    """Set a request's blocks to none. With prefix caching, the freeing itself is replayed (block_kernels.py)."""
    engine = run.engines[0]
    if engine.cache.on == 0:
        release(request, engine)
    elif request.blocks > 0:
        engine.running -= 1
        request.blocks = 0


settle_signature = types.void(types.int64, QUEUE, QUEUE, QUEUE, QUEUE, QUEUE, types.float64)
# mirror's address; evicted rows; scheduled rows, their tokens, computed and output tokens after the step; now_s


@compiled(settle_signature)
def settle_batch(mirror_at, evicted, rows, tokens, computed, emitted, now_s):
    """Update the mirror with what vLLM scheduled, and write the estimated time of that batch to batch_estimate_s.

    A request in both `evicted` and `rows` was evicted first.
    """
    mirror = restore_mirror(mirror_at)
    run = mirror.run
    engine, status, sums = run.engines[0], run.status[0], run.sums[0]
    for k in range(evicted.shape[0]):
        request = run.requests[evicted[k]]
        forget_blocks(run, request)
        request.computed_tokens = 0
        request.admitted = 0
        status.evictions += 1
        request.evicted = status.evictions
        engine.totals.evictions += 1
    batches.clear(sums)
    for k in range(rows.shape[0]):
        request = run.requests[rows[k]]
        before = computed[k] - tokens[k]
        context = request.prompt_tokens + request.num_output_tokens
        batches.add(sums, tokens[k], before, request.num_output_tokens > 0 and before >= context - 1)
        if request.blocks == 0:
            status.admissions += 1
            request.admitted = status.admissions
            if run.outcomes[rows[k]].counted == 0:
                run.outcomes[rows[k]].counted = 1
                count_admitted(run.state, 0, request)
        request.computed_tokens = computed[k]
        request.num_output_tokens = emitted[k]
        need = blocks_for(request.computed_tokens, engine.block_tokens) - request.blocks
        if need > 0 and engine.cache.on == 0:  # with prefix caching, blocks are replayed (block_kernels.py)
            grow(request, engine, need)
        engine.scheduled_tokens += tokens[k]
    engine.iterations += 1
    engine.rounds += 1
    engine.batch_start_s = now_s
    engine.last_batch_length = rows.shape[0]
    estimator = decider_of(run, mirror.functions, 0).estimator
    engine.batch_estimate_s = estimator.batch_s(sums, estimator.coefficients)
    engine.correction.batch_scale = engine.estimate_scale


deliver_signature = types.void(types.int64, QUEUE, QUEUE, QUEUE, types.float64)
# mirror's address; rows, their new tokens, their output tokens with those under way; now_s
GAIN, IDEAL_GAIN, ON_TIME, DELIVERED = range(4)  # indices of the sums


@compiled(deliver_signature)
def deliver_tokens(mirror_at, rows, new_tokens, emitted, now_s):
    """Count tokens that are delivered now, and add their gain to the sums."""
    mirror = restore_mirror(mirror_at)
    run, sums, delivered = mirror.run, mirror.sums, mirror.delivered
    engine = run.engines[0]
    for k in range(rows.shape[0]):
        request, outcome = run.requests[rows[k]], run.outcomes[rows[k]]
        for _ in range(new_tokens[k]):
            request.num_output_tokens = delivered[rows[k]]
            if request.num_output_tokens == 0:
                request.first_token_s = now_s
            on_time = now_s < next_deadline_s(request)
            sums[GAIN] += mirror.functions.gain(request, outcome, now_s)
            sums[IDEAL_GAIN] += (
                request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain
            )
            sums[ON_TIME] += 1.0 if on_time else 0.0
            sums[DELIVERED] += 1.0
            delivered[rows[k]] += 1
            engine.totals.num_output_tokens += 1
            count_emitted(run.state, 0, request)
        request.num_output_tokens = emitted[k]


correct_signature = types.void(types.int64, types.float64, types.float64, types.float64)


@compiled(correct_signature)
def correct_by_step(mirror_at, estimate_s, scale, real_s):
    """Update the engine's times and the correction of the estimator with a step that took real_s seconds.

    estimate_s, scale: the step's estimate, and the factor that it included.
    """
    run = restore_mirror(mirror_at).run
    engine = run.engines[0]
    engine.busy_s += real_s
    engine.batch_estimate_s = estimate_s
    engine.correction.batch_scale = scale
    if run.correction[0].window_iterations > 0:
        correct(engine, run.correction[0], real_s)


leave_signature = types.void(types.int64, QUEUE, types.boolean)


@compiled(leave_signature)
def leave(mirror_at, rows, finished):
    """Remove requests from the engine. finished: they finished; else they were aborted."""
    mirror = restore_mirror(mirror_at)
    run = mirror.run
    engine, queue = run.engines[0], run.queues[0]
    for k in range(rows.shape[0]):
        request = run.requests[rows[k]]
        forget_blocks(run, request)
        if finished:
            request.num_output_tokens = mirror.delivered[rows[k]]
            count_finished(run.state, 0, request)
        else:
            count_departed(run.state, 0, request)
        request.engine = -1
    kept = 0
    for position in range(engine.queue_length):
        if run.requests[queue[position]].engine >= 0:
            queue[kept] = queue[position]
            kept += 1
    engine.queue_length = kept
