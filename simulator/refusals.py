"""What a policy may write, and what is refused: limits at once after each call, ranks where they are read.

The kernels only say that something is wrong; what it was is looked up afterwards, in the arrays that are still there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.types import (
    AT_LAYERS,
    EVICT_FOR_ALL,
    HOLD,
    MISFIT_STOP,
    PHASE_FIRST_DECIDES,
    ROLE_DECODE,
    ROLES,
)

AT_LEAST_0 = (
    "token_budget", "chunk_tokens", "sequence_budget", "holder_budget", "smallest_chunk_tokens",
    "untimed_prefill_tokens", "watermark_blocks",
)  # fmt: skip
HIGHEST = {"phase": PHASE_FIRST_DECIDES, "misfit": MISFIT_STOP, "evict_for": EVICT_FOR_ALL, "preemptible": AT_LAYERS}


@kernel
def are_legal_limits(limits):
    """Whether the limits of a batch are what the packer can work with."""
    signs = limits.token_budget | limits.chunk_tokens | limits.sequence_budget | limits.holder_budget
    signs |= limits.smallest_chunk_tokens | limits.untimed_prefill_tokens | limits.watermark_blocks
    # Differences of what is allowed and what there is, and what there is, all have the sign of 0 or more.
    signs |= limits.phase | (PHASE_FIRST_DECIDES - limits.phase) | limits.misfit | (MISFIT_STOP - limits.misfit)
    signs |= (
        limits.evict_for | (EVICT_FOR_ALL - limits.evict_for) | limits.preemptible | (AT_LAYERS - limits.preemptible)
    )
    return signs >= 0 and limits.time_budget_s == limits.time_budget_s and limits.slice_s >= 0.0


@kernel
def are_numbers(plan, length):
    """Whether all keys are numbers (infinite ones are)."""
    for place in range(length):  # noqa: SIM110 (kernels have no generators)
        if plan[place].key != plan[place].key:
            return False
    return True


@kernel
def are_legal_victims(plan, length):
    """Whether a policy has written victim ranks that are numbers, and keeps no fewer than 0 tokens."""
    for place in range(length):
        if plan[place].victim_key != plan[place].victim_key or plan[place].keep_tokens < 0:
            return False
    return True


def what_is_wrong(limits: Any, plan: np.ndarray, queue: np.ndarray) -> str:
    """Of a scheduler's limits, PLAN[queue] and the requests it is about: what it wrote that is refused, and what would
    be right."""
    for name in AT_LEAST_0:
        if limits[name] < 0:
            return f"set {name} to {limits[name]}; it should be 0 or more"
    for name, highest in HIGHEST.items():
        if not 0 <= limits[name] <= highest:
            return f"set {name} to {limits[name]}; it should be 0 to {highest} (simulator/types.py has their names)"
    if np.isnan(limits.time_budget_s):
        return "set time_budget_s to nan; it should be a number of seconds"
    if not limits.slice_s >= 0:
        return f"set slice_s to {limits.slice_s}; it should be 0 s or more"
    for line, request in zip(plan, queue, strict=True):
        if np.isnan(line.key):
            return f"ranked request {request} by a key of nan; keys should be numbers"
        for name in ("headroom_blocks", "keep_tokens"):
            if line[name] < 0:
                return f"set {name} of request {request} to {line[name]}; it should be 0 or more"
        if np.isnan(line.victim_key):
            return f"ranked request {request} by a victim_key of nan; keys should be numbers"
    return "wrote a plan that the packer cannot work with"


def why_not(route: Any, views: np.ndarray, request: Any, tiers: int) -> str:
    """What is wrong with a router's decision about a request. views: VIEW[engines]; tiers: how many there are."""
    engines = len(views)
    if route.engine == HOLD:
        return f"there are lines 0 to {tiers}"
    for name in ("engine", "decode_engine"):
        e = route[name]
        if name == "decode_engine" and e == HOLD:
            continue
        if not 0 <= e < engines:
            return f"there are engines 0 to {engines - 1}"
        if not views[e].up or views[e].closed:
            return f"engine {e} {'is closed' if views[e].up else 'has failed'}"
        if (views[e].role == ROLE_DECODE) != (name == "decode_engine" or request.computed_tokens > 0):
            return f"engine {e} is a {ROLES[views[e].role]} engine" if views[e].role else f"engine {e} does both phases"
    return f"there are tiers 0 to {tiers - 1}, or it moves none"
