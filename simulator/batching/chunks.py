"""The chunk of a request in a batch, within token and time budgets (docs/simulation.md, rules 3 and 6)."""

import numpy as np

from servegym.simulator.batching.admission import blocks_lacking
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.packing_hooks import gives_memory_to_decode
from servegym.simulator.features.speculation import counted_tokens
from servegym.simulator.memory.kv_memory import grow, load_time_s
from servegym.simulator.records import batches
from servegym.simulator.records.requests import cached_of, is_decoding, left_of


@kernel
def take_decodes(run, estimator, e, visited, n, now_s):
    """Put the leading decodes of order[visited:n] into the batch and return their number.

    It stops at the first request that is not a running decode, lacks memory, or exceeds the time budget of decodes.

    It is a fast path of `fill`, as most batches are mostly decodes: sums in local variables avoid memory stalls.
    """
    engine, packing, limits, sums = run.engines[e], run.packing[0], run.limits[0], run.sums[0]
    queue, order, requests, entries = run.queues[e], run.order[0], run.requests, run.entries[e]
    length, with_next, budget_s = packing.length, run.sums[1], limits.time_budget_s - engine.moving_s
    most = min(n - visited, limits.sequence_budget - length, limits.max_num_batched_tokens - packing.tokens)
    timed = limits.time_budget_s < np.inf and limits.untimed_decodes == 0
    taken, cached_tokens, longest = 0, 0.0, 0.0
    if timed:
        batches.copy(with_next, sums)
    while taken < most:
        r = queue[order[visited + taken]]
        request = requests[r]
        if request.blocks == 0 or not is_decoding(request):
            break
        need = blocks_lacking(request, 1, engine)
        if need > engine.free_blocks:
            break
        if timed:
            batches.add(with_next, 1, request.computed_tokens, True)
            if not estimator.batch_s(with_next, estimator.coefficients) <= budget_s:
                break
        if not gives_memory_to_decode(run, e, r, now_s) and need != 0:
            grow(request, engine, need)
        entries[length + taken].request, entries[length + taken].tokens = r, 1
        taken += 1
        cached_tokens += request.computed_tokens
        longest = max(longest, float(request.computed_tokens))
    if taken > 0:
        if length == 0:
            packing.decoding = 1
        packing.length += taken
        packing.tokens += taken
        packing.visited = visited + taken
        sums.decode_requests += taken
        sums.decode_cached_tokens += cached_tokens
        sums.longest_decode_cached = max(sums.longest_decode_cached, longest)
    return taken


@kernel
def update_fits(packing, engine, limits, sums, scratch, estimator):
    """Set packing.decodes_fit and prefills_fit: whether the cheapest request, one token with nothing cached, fits."""
    budget_s = limits.time_budget_s - engine.moving_s
    if limits.untimed_decodes == 0:
        packing.decodes_fit = batches.estimate_with(sums, scratch, 1, 0, True, estimator) <= budget_s
    if sums.prefill_tokens >= limits.untimed_prefill_tokens:
        packing.prefills_fit = batches.estimate_with(sums, scratch, 1, 0, False, estimator) <= budget_s


@kernel
def chunk_of(request, decoding, limits, packing):
    """Return the chunk of the request within the token budgets; 0: it does not fit (rule 3)."""
    if decoding:
        return 1
    left = left_of(request)
    if limits.whole_prompts == 0:
        return min(left, limits.chunk_tokens, limits.max_num_batched_tokens - packing.tokens)
    if packing.length == 0 or left <= limits.max_num_batched_tokens - packing.tokens:
        return left
    return 0


@kernel
def cut_to_time(request, decoding, chunk, engine, packing, limits, both_sums, estimator):
    """Return the part of the chunk that fits the time budget; 0: it does not fit (rule 3).

    both_sums: the sums of the batch, and a scratch copy.
    """
    sums, scratch = both_sums[0], both_sums[1]
    budget_s = limits.time_budget_s - engine.moving_s - load_time_s(request, engine)
    cut = batches.largest_chunk(sums, scratch, chunk, cached_of(request), decoding, budget_s, estimator)
    if decoding:
        return cut
    if limits.step_tokens > 0 and cut > 0 and limits.whole_prompts == 0:
        cut = cut_to_step(cached_of(request), cut, budget_s, packing, limits, sums, scratch, estimator)
    cut = max(cut, min(chunk, limits.untimed_prefill_tokens - int(sums.prefill_tokens)))
    if cut < chunk and (limits.whole_prompts or cut < limits.smallest_chunk_tokens):
        return 0
    return cut


@kernel
def cut_to_step(cached, chunk, budget_s, packing, limits, sums, scratch, estimator):
    """Return the chunk, or its part up to the last multiple of step_tokens if time per token is lower there (rule 3).

    A batch that exceeds a step takes as long as one that fills the next step, which may not fit the time budget.
    """
    before = packing.tokens
    step = (before + chunk) // limits.step_tokens * limits.step_tokens
    if step == 0 or step < before:
        return chunk
    to_next = step + limits.step_tokens - before
    most = batches.largest_chunk(sums, scratch, to_next, cached, False, budget_s, estimator)
    if most == to_next:
        return chunk
    step_s = batches.estimate_with(sums, scratch, step - before, cached, False, estimator)
    next_s = batches.estimate_with(sums, scratch, to_next, cached, False, estimator)
    if step_s / step >= next_s / (before + most):
        return chunk
    limits.max_num_batched_tokens = step
    return step - before


@inlined_kernel
def take(request, r, entry, chunk, decoding, engine, packing, sums):
    """Put request r, which has its blocks, into the batch with its chunk (rule 6)."""
    if packing.length == 0:
        packing.decoding = decoding
    entry.request = r
    entry.tokens = chunk
    packing.length += 1
    packing.tokens += counted_tokens(chunk, decoding, engine)
    batches.add(sums, chunk, request.computed_tokens, decoding)
