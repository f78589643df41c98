"""The sums of a batch that latency models read, and the largest chunk that fits a time budget."""

import numpy as np

from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.records.types import BATCH

EMPTY_BATCH = np.zeros(1, BATCH)  # its estimated time is the constant part of every batch


@kernel
def clear(sums):
    """Set `sums` to those of an empty batch."""
    sums.prefill_requests = 0.0
    sums.prefill_tokens = 0.0
    sums.prefill_tokens_squared = 0.0
    sums.prefill_tokens_cached = 0.0
    sums.prefill_cached_tokens = 0.0
    sums.longest_prefill_tokens = 0.0
    sums.decode_requests = 0.0
    sums.decode_cached_tokens = 0.0
    sums.longest_decode_cached = 0.0
    sums.drafts.known = 0.0


@kernel
def begin(sums, engine):
    """Clear `sums` for the packer, which counts the drafts of each decode where the engine speculates."""
    clear(sums)
    if engine.speculation.k > 0:
        sums.drafts.known = 1.0
        sums.drafts.requests = 0.0
        sums.drafts.tokens = 0.0
        sums.drafts.tokens_squared = 0.0
        sums.drafts.tokens_cached = 0.0
        sums.drafts.longest = 0.0


@kernel
def copy(sums, source):
    sums.prefill_requests = source.prefill_requests
    sums.prefill_tokens = source.prefill_tokens
    sums.prefill_tokens_squared = source.prefill_tokens_squared
    sums.prefill_tokens_cached = source.prefill_tokens_cached
    sums.prefill_cached_tokens = source.prefill_cached_tokens
    sums.longest_prefill_tokens = source.longest_prefill_tokens
    sums.decode_requests = source.decode_requests
    sums.decode_cached_tokens = source.decode_cached_tokens
    sums.longest_decode_cached = source.longest_decode_cached
    sums.drafts.known = source.drafts.known
    if source.drafts.known != 0.0:
        sums.drafts.requests = source.drafts.requests
        sums.drafts.tokens = source.drafts.tokens
        sums.drafts.tokens_squared = source.drafts.tokens_squared
        sums.drafts.tokens_cached = source.drafts.tokens_cached
        sums.drafts.longest = source.drafts.longest


@kernel
def add(sums, tokens, cached, decoding):
    """Add a request that computes `tokens` after `cached` tokens; all but the first token of a decode are drafts."""
    lq, lkv = float(tokens), float(cached)
    if decoding:
        sums.decode_requests += 1.0
        sums.decode_cached_tokens += lkv
        sums.longest_decode_cached = max(sums.longest_decode_cached, lkv)
        if tokens > 1:
            drafted = lq - 1.0
            sums.drafts.requests += 1.0
            sums.drafts.tokens += drafted
            sums.drafts.tokens_squared += drafted * drafted
            sums.drafts.tokens_cached += drafted * (lkv + 1.0)
            sums.drafts.longest = max(sums.drafts.longest, drafted)
    else:
        sums.prefill_requests += 1.0
        sums.prefill_tokens += lq
        sums.prefill_tokens_squared += lq * lq
        sums.prefill_tokens_cached += lq * lkv
        sums.prefill_cached_tokens += lkv
        sums.longest_prefill_tokens = max(sums.longest_prefill_tokens, lq)


@kernel
def set_decodes(sums, n, tokens):
    """Set `sums` to those of n decodes with `tokens` cached tokens in all, each with the mean."""
    clear(sums)
    sums.decode_requests = n
    if n > 0:
        sums.decode_cached_tokens = tokens
        sums.longest_decode_cached = tokens / n


@kernel
def estimate_alone(scratch, tokens, cached, decoding, estimator):
    """Return the estimated time of a batch of this request alone, in s, the constant part included."""
    clear(scratch)
    add(scratch, tokens, cached, decoding)
    return estimator.batch_s(scratch, estimator.coefficients)


@inlined_kernel
def estimate_with(sums, scratch, tokens, cached, decoding, estimator):
    """Return the estimated time of the batch with one request more, in s; `sums` is not changed."""
    copy(scratch, sums)
    add(scratch, tokens, cached, decoding)
    return estimator.batch_s(scratch, estimator.coefficients)


@kernel
def largest_chunk(sums, scratch, most, cached, decoding, time_budget_s, estimator):
    """Return the largest chunk, at most `most` tokens, with which the batch is estimated to fit the budget; 0: none."""
    if estimate_with(sums, scratch, most, cached, decoding, estimator) <= time_budget_s:
        return most
    if estimate_with(sums, scratch, 1, cached, decoding, estimator) > time_budget_s:
        return 0
    fits, too_much = 1, most
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if estimate_with(sums, scratch, middle, cached, decoding, estimator) <= time_budget_s:
            fits = middle
        else:
            too_much = middle
    return fits
