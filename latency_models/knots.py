"""Interpolates in tables of one and two axes with rising knots; knots and tables are packed as in forms."""

from servegym.simulator.compilation.kernels import kernel


@kernel
def segment(x, numbers, first_knot, count):
    """Index, 0 to count - 2, of the segment between `count` knots at numbers[first_knot:] in which x lies.

    It is the first segment for an x before all knots, the last one for an x past them.
    """
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if numbers[first_knot + middle] <= x:
            low = middle
        else:
            high = middle
    return low


@kernel
def place(x, coefficients, first, count):
    """The segment in which x lies, and the share of it; the share is 0 before all knots, above 1 past the last one."""
    x = max(x, coefficients[first])
    at = segment(x, coefficients, first, count)
    low = coefficients[first + at]
    return at, (x - low) / (coefficients[first + at + 1] - low)


@kernel
def along(coefficients, at, share):
    """Interpolate between the number at `at` and the next one."""
    return coefficients[at] * (1.0 - share) + coefficients[at + 1] * share


@kernel
def on_plane(coefficients, corner, columns, down, right):
    """Interpolate bilinearly in the cell whose first corner is at `corner` of a table with `columns` columns."""
    above = along(coefficients, corner, right)
    return above * (1.0 - down) + along(coefficients, corner + columns, right) * down
