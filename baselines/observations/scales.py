"""Functions that map quantities of any size, inf included, to numbers within fixed bounds."""

import numpy as np

from servegym.policy import kernel

LARGEST, SMALLEST = 1e30, 1e-30  # quantities are clipped to these, so that no quotient is 0 / 0 or inf / inf
AHEAD = 8.0  # TPOT SLOs: decodes run ahead of deadlines, and a batch with a prompt takes several TPOT SLOs
ONE_BITS = np.float64(1.0).view(np.int64)
TOKENS_BITS, COUNT_BITS = 20.0, 12.0  # log2 of the largest number of tokens, and of requests, on the scale


@kernel
def squash(x, unit):
    """Return x / (unit + |x|), from -1 to 1: 0 at 0, 0.5 at one unit (> 0)."""
    x = min(max(x, -LARGEST), LARGEST)
    return x / (max(unit, SMALLEST) + abs(x))


@kernel
def log_share(x, bits):
    """Return log2(1 + x) / bits, from 0 to 1; 0 for x below 0. It is linear between powers of two, so up to 0.09 / bits
    too small.

    The bits of a float64, read as an integer, are this logarithm in fixed point: exponent, then fraction. They are
    equal on all machines, while library logarithms differ in the last bit.
    """
    x = min(max(float(x), 0.0), LARGEST)
    return min(1.0, (np.float64(1.0 + x).view(np.int64) - ONE_BITS) * (2.0**-52 / bits))


@kernel
def root_ratio(part, whole):
    """Return the square root of part / whole for 0 <= part <= whole, from 0 to 1, which keeps 1 : 100 visible."""
    return np.sqrt(min(1.0, min(max(part, SMALLEST), LARGEST) / min(max(whole, SMALLEST), LARGEST)))


@kernel
def share(part, whole):
    """Return part / whole, clipped to 0 to 1; 0 if the whole is 0."""
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else 0.0


@kernel
def log_known(tokens):
    """Return `log_share` of a predicted number of tokens; 0 for nan (no prediction)."""
    return 0.0 if np.isnan(tokens) else log_share(tokens, TOKENS_BITS)


@kernel
def span_of(request):
    """Return the span of a request, s, which divides its slack: TTFT or TTLT SLO; after token 1 AHEAD TPOT SLOs."""
    if request.num_output_tokens > 0 and request.token_interval_s > 0.0:
        return AHEAD * request.token_interval_s
    return request.first_deadline_s - request.arrival_s


@kernel
def next_gain(request):
    """Return the gain of the next token."""
    return request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain


@kernel
def write_zeros(out, first, count):
    """Write `count` zeros from out[first] on, with indices that need no check for negative values."""
    rest = out[first:]
    for i in range(count):
        rest[i] = 0.0
