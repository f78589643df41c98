"""Finding the segment between rising knots in which a number lies; knots are packed as in forms."""

from servegym.simulator.compilation.kernels import kernel


@kernel
def segment(x, numbers, first_knot, count):
    """Index in 0..count-2 of the segment between `count` knots at numbers[first_knot:] that x lies in.

    The first segment for an x before all knots, the last one for an x past them.
    """
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if numbers[first_knot + middle] <= x:
            low = middle
        else:
            high = middle
    return low
