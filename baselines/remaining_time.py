"""Estimated times of a prefill, a decode, and all that a request has left (semantic scheduling, Eq. 4)."""

import numpy as np

from servegym.policy import batches, cached_of, is_decoding, kernel, left_of


@kernel
def prefill_s(tokens, cached, estimator):
    """Return the estimated time of a batch of one prefill of `tokens` with `cached` tokens before them, s."""
    return batches.estimate_alone(estimator.scratch[0], tokens, cached, False, estimator)


@kernel
def decode_s(cached, estimator):
    """Return the estimated time of a batch of one decode with `cached` tokens, which may be fractional (a mean), s."""
    return batches.estimate_alone(estimator.scratch[0], 1, cached, True, estimator)


@kernel
def remaining_s(request, engine, estimator):
    """Return the time that the request still takes alone, s: loading, prefill and decodes; inf: no predicted length.

    Eq. 4 sums over the decodes. As a decode's time is linear in its cached tokens, the sum is the number of decodes
    times the time at their mean. A request past its predicted length counts as having one token left.
    """
    predicted = float(request.predicted_output_tokens)
    if np.isnan(predicted):
        return np.inf
    to_come = max(predicted - request.num_output_tokens, 1.0)
    cached, left = cached_of(request), left_of(request)
    total_s = engine.load_s_per_token * request.offloaded_tokens
    if is_decoding(request):
        steps, first = to_come, float(cached)
    else:
        steps, first = to_come - 1.0, float(cached + left)
        total_s += prefill_s(left, cached, estimator)
    if steps > 0.0:
        total_s += steps * decode_s(first + (steps - 1.0) / 2.0, estimator)
    return total_s


@kernel
def prefill_alone_s(tokens, cached, budget, batch, batch_s, coefficients):
    """Return the estimated time of a prefill of `tokens` after `cached` ones in chunks of `budget` tokens, s.

    It is the number of chunks times the time of the middle one. The number is not rounded up: a remainder runs with the
    chunk before it. batch: working memory.
    """
    chunk = min(tokens, budget)
    batches.clear(batch)
    batches.add(batch, chunk, cached + (tokens - chunk) / 2, False)
    return max(1.0, tokens / budget) * batch_s(batch, coefficients)
