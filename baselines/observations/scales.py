"""How quantities of any size become numbers within fixed bounds, whatever their unit. All of them take inf."""

import numpy as np

from servegym.policy import kernel

LARGEST, SMALLEST = 1e30, 1e-30  # quantities are clipped to these, so that no quotient is 0 / 0 or inf / inf
AHEAD = 8.0  # TPOT SLOs: decodes run ahead of their deadlines, and a batch with a prompt in it takes several
ONE_BITS = np.float64(1.0).view(np.int64)
TOKENS_BITS, COUNT_BITS = 20.0, 12.0  # log2 of the largest number of tokens, and of requests, on the scale


@kernel
def squash(x, unit):
    """x / (unit + |x|), from -1 to 1: 0 at 0, 0.5 at one unit (which is above 0)."""
    x = min(max(x, -LARGEST), LARGEST)
    return x / (max(unit, SMALLEST) + abs(x))


@kernel
def log_share(x, bits):
    """log2(1 + x) / bits, from 0 to 1; 0 for x below 0. Linear between powers of two: up to 0.09 / bits too small.

    The bits of a float64 read as an integer are this logarithm in fixed point: the exponent, then the fraction. They
    are the same on every machine; library logarithms differ in the last bit.
    """
    x = min(max(float(x), 0.0), LARGEST)
    return min(1.0, (np.float64(1.0 + x).view(np.int64) - ONE_BITS) * (2.0**-52 / bits))


@kernel
def root_ratio(part, whole):
    """The square root of part / whole for 0 <= part <= whole, from 0 to 1: a ratio of 1 : 100 stays visible."""
    return np.sqrt(min(1.0, min(max(part, SMALLEST), LARGEST) / min(max(whole, SMALLEST), LARGEST)))


@kernel
def share(part, whole):
    """part / whole, from 0 to 1; 0 if the whole is 0."""
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else 0.0


@kernel
def log_known(tokens):
    """`log_share` of a predicted number of tokens; 0 where nothing is known (nan)."""
    return 0.0 if np.isnan(tokens) else log_share(tokens, TOKENS_BITS)


@kernel
def span_of(request):
    """The time that a request's slack is divided by, s: TTFT or TTLT SLO; AHEAD TPOT SLOs once it has a token."""
    if request.num_output_tokens > 0 and request.token_interval_s > 0.0:
        return AHEAD * request.token_interval_s
    return request.first_deadline_s - request.arrival_s


@kernel
def next_gain(request):
    """Worth of the next token."""
    return request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain


@kernel
def write_zeros(out, first, count):
    """Write `count` zeros from out[first] on, with indices that Numba need not check for negative values."""
    rest = out[first:]
    for i in range(count):
        rest[i] = 0.0
