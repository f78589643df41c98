"""Checks of what a policy writes: limits after each call, ranks where they are read.

The kernels only return whether all is valid; the error message is made afterwards, from the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.types import (
    AT_LAYERS,
    EVICT_FOR_ALL,
    HOLD,
    MISFIT_STOP,
    NO_LIMIT,
    PHASE_FIRST_DECIDES,
    ROLE_DECODE,
    ROLES,
)

AT_LEAST_0 = (
    "max_num_batched_tokens", "sequence_budget", "max_num_seqs", "smallest_chunk_tokens", "untimed_prefill_tokens",
    "watermark_blocks", "most_drafts", "step_tokens",
)  # fmt: skip
HIGHEST = {"phase": PHASE_FIRST_DECIDES, "misfit": MISFIT_STOP, "evict_for": EVICT_FOR_ALL, "preemptible": AT_LAYERS}


@kernel
def are_legal_limits(limits):
    """Return whether the limits of a batch are valid."""
    signs = limits.max_num_batched_tokens | limits.chunk_tokens | limits.sequence_budget | limits.max_num_seqs
    signs |= limits.smallest_chunk_tokens | limits.untimed_prefill_tokens | limits.watermark_blocks
    signs |= limits.most_drafts | limits.step_tokens
    # All values, and their differences from the highest allowed ones, must be >= 0: one sign bit for all.
    signs |= limits.chunk_tokens - 1
    signs |= limits.phase | (PHASE_FIRST_DECIDES - limits.phase) | limits.misfit | (MISFIT_STOP - limits.misfit)
    signs |= (
        limits.evict_for | (EVICT_FOR_ALL - limits.evict_for) | limits.preemptible | (AT_LAYERS - limits.preemptible)
    )
    return signs >= 0 and limits.time_budget_s == limits.time_budget_s and limits.slice_s >= 0.0


@kernel
def are_legal_listed(ranks, limits, length):
    """Return whether the listed positions are in the queue, ascending, and at least one."""
    if limits.listed >= NO_LIMIT:
        return True
    before = -1
    for k in range(min(limits.listed, length)):
        if ranks[k].listed <= before:
            return False
        before = ranks[k].listed
    return 0 < limits.listed <= length and before < length


@kernel
def are_numbers(ranks, listed, length):
    """Return whether no key of a listed request is nan."""
    for k in range(min(listed, length)):
        position = k if listed >= NO_LIMIT else ranks[k].listed
        if ranks[position].key != ranks[position].key:
            return False
    return True


@kernel
def are_legal_victims(ranks, length):
    """Return whether no victim key is nan and no keep_tokens negative."""
    for position in range(length):
        if ranks[position].victim_key != ranks[position].victim_key or ranks[position].keep_tokens < 0:
            return False
    return True


def what_is_wrong(limits: Any, ranks: np.ndarray, queue: np.ndarray) -> str:
    """Return which of a scheduler's limits or ranks is not valid, and what would be. ranks: RANK[queue]."""
    for name in AT_LEAST_0:
        if limits[name] < 0:
            return f"set {name} to {limits[name]}; it should be 0 or more"
    if limits.chunk_tokens < 1:
        return (
            f"set chunk_tokens to {limits.chunk_tokens}; it should be 1 or more (requests whose rank has the tier "
            "LEAVE_OUT do not run in a batch)"
        )
    for name, highest in HIGHEST.items():
        if not 0 <= limits[name] <= highest:
            return f"set {name} to {limits[name]}; it should be 0 to {highest} (names: simulator/records/types.py)"
    if np.isnan(limits.time_budget_s):
        return "set time_budget_s to nan; it should be a number of seconds"
    if not limits.slice_s >= 0:
        return f"set slice_s to {limits.slice_s}; it should be 0 s or more"
    if limits["listed"] < NO_LIMIT:
        if not 0 < limits["listed"] <= len(queue):
            return f"listed {limits['listed']} of {len(queue)} requests; it should be 1 or more, each once"
        listed = ranks["listed"][: limits["listed"]]
        if listed[0] < 0 or listed[-1] >= len(queue) or (np.diff(listed) <= 0).any():
            return f"listed positions that should be in ascending order, from 0 to {len(queue) - 1}"
    for rank, request in zip(ranks, queue, strict=True):
        if np.isnan(rank.key):
            return f"ranked request {request} by a key of nan; keys should be numbers"
        for name in ("headroom_blocks", "keep_tokens"):
            if rank[name] < 0:
                return f"set {name} of request {request} to {rank[name]}; it should be 0 or more"
        if np.isnan(rank.victim_key):
            return f"ranked request {request} by a victim_key of nan; keys should be numbers"
    return "wrote ranks that the packer cannot work with"


def why_not(route: Any, snapshots: np.ndarray, request: Any, tiers: int) -> str:
    """Return why a router's decision for a request is not valid.

    snapshots: ENGINE_SNAPSHOT[engines]. tiers: number of tiers.
    """
    engines = len(snapshots)
    if route.engine == HOLD:
        return f"there are held queues 0 to {tiers}"
    for name in ("engine", "decode_engine"):
        e = route[name]
        if name == "decode_engine" and e == HOLD:
            continue
        if not 0 <= e < engines:
            return f"there are engines 0 to {engines - 1}"
        if not snapshots[e].up or snapshots[e].closed:
            return f"engine {e} {'is closed' if snapshots[e].up else 'has failed'}"
        if (snapshots[e].role == ROLE_DECODE) != (name == "decode_engine" or request.computed_tokens > 0):
            return (
                f"engine {e} is a {ROLES[snapshots[e].role]} engine"
                if snapshots[e].role
                else f"engine {e} does both phases"
            )
    return f"there are tiers 0 to {tiers - 1}, or it moves none"
