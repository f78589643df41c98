"""Random numbers for kernels: a function of (seed, stream, counter), so that a run gives the same bytes every time."""

import math

from servegym.simulator.compilation.kernels import kernel

_BITS_32 = 0xFFFFFFFF


@kernel
def mix(x):
    """A 32-bit integer hash (Ettinger's lowbias32); products stay below 2^63, compiled or not."""
    x = int(x) & _BITS_32
    x ^= x >> 16
    x = (x * 0x21F0AAAD) & _BITS_32
    x ^= x >> 15
    x = (x * 0x735A2D97) & _BITS_32
    return x ^ (x >> 15)


@kernel
def uniform(seed, stream, counter):
    """Return a uniform number in (0, 1)."""
    high = mix(mix(mix(seed) ^ int(stream)) ^ int(counter))
    low = mix(high ^ 0x9E3779B9)
    return ((high >> 6) * 67108864.0 + (low >> 6) + 0.5) / 4503599627370496.0


@kernel
def normal(seed, stream, counter):
    """Return a standard normal number (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(uniform(seed, stream, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * uniform(seed, stream, 2 * counter + 1))
