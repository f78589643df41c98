"""The least of something that is enough, found by bisection: how much the SLOs have to be scaled, for one."""

import math
from collections.abc import Callable

PRECISION = 1.02  # the least found to be enough over the most found not to be
STEP = 1.5  # from the first value, up or down to one on the other side


def least(is_enough: Callable[[float], bool], first: float, low: float, high: float) -> float | None:
    """The least value from `low` to `high` that was found to be enough; None where it is not within them.

    What is enough is taken to stay enough when there is more of it.
    """
    enough: float | None = None
    too_little: float | None = None
    value = first
    while enough is None or too_little is None or enough > PRECISION * too_little:
        if is_enough(value):
            enough = value
        else:
            too_little = value
        if enough is None:
            if value >= high:
                return None
            value = min(high, value * STEP)
        elif too_little is None:
            if value <= low:
                return None
            value = max(low, value / STEP)
        else:
            value = math.sqrt(enough * too_little)
    return enough
