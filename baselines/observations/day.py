"""Observation of a cluster's tiers, as in tiers.py, with the time of day and the number of engines that the base wants.

The base writes both to adjacent numbers of its state: `wanted`, not rounded, and `phase` (baselines/scalers/
forecast.py). For a base without them, these numbers are 0.
"""

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import share, squash
from servegym.baselines.observations.tiers import CLUSTER_FIELDS, SCALED_FIELDS, SLOT, WHOLE, write_tiers
from servegym.policy import POOL, kernel

DAY_FIELDS = (
    *CLUSTER_FIELDS,
    Field("day_sine", -1, 1, "sine of the time of day, a day being 2 pi"),
    Field("day_cosine", -1, 1, "its cosine; both 0: the base has no time of day"),
)
DAY_SINE, DAY_COSINE = WHOLE, WHOLE + 1
DAY_WHOLE = len(DAY_FIELDS)

DAY_SCALED_FIELDS = (
    *SCALED_FIELDS,
    Field("rank", 0, 1, "share of the engines before it: those that the base has open, then the others, by index"),
    Field("need", -1, 1, "engines that the base wants, not rounded, less the number before it, x: x / (1 + |x|)"),
)
RANK, NEED = SLOT, SLOT + 1
DAY_SLOT = len(DAY_SCALED_FIELDS)


def day_layout(slots: int) -> Layout:
    """Return the layout of `observe_day`: float32[54 + 37 slots]."""
    return Layout("cluster", DAY_FIELDS, "engine", DAY_SCALED_FIELDS, slots)


@kernel
def observe_day(context, moves, wanted, slots, out):
    """Write `day_layout(slots)` into out, float32.

    context, moves: as for `observe_tiers`. wanted: index, in the first engine's row of the base's state, of the number
    of engines that it wants; the next number is its time of day, 0 to 1. -1: it has neither.
    """
    write_tiers(context, moves, slots, DAY_WHOLE, DAY_SLOT, out)
    if wanted >= 0:
        angle = 2.0 * np.pi * context.state[0, wanted + 1]
        out[DAY_SINE], out[DAY_COSINE] = np.sin(angle), np.cos(angle)
    n, opened = moves.shape[0], 0
    for e in range(n):
        opened += is_open(moves[e])
    before_open, before_other = 0, opened
    for e in range(n):
        rank = before_open if is_open(moves[e]) else before_other
        before_open, before_other = before_open + is_open(moves[e]), before_other + (not is_open(moves[e]))
        if e < slots:
            at = DAY_WHOLE + e * DAY_SLOT
            out[at + RANK] = share(rank, n)
            out[at + NEED] = squash(context.state[0, wanted] - rank, 1.0) if wanted >= 0 else 0.0


@kernel
def is_open(move):
    """Return whether the base has an engine open in a tier."""
    return move.tier != POOL and move.closed == 0
