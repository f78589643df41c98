"""Formats of names, times and numbers, and the scale of deadlines, the same in texts and pictures."""

from __future__ import annotations

import math

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import POOL

SHORTEST_S, LONGEST_S = 0.01, 10.0  # ends of the scale of deadlines


def duration(seconds: float) -> str:
    """Write a time with three digits and its unit: 12.3 ms, 1.25 s, 340 s; "-" if it is not finite."""
    if not math.isfinite(seconds):
        return "-"
    size = abs(seconds)
    if size < 0.9995:
        return f"{seconds * 1e3:.1f} ms" if size < 0.0995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if size < 9.995 else f"{seconds:.1f} s" if size < 99.95 else f"{seconds:.0f} s"


def remaining(remain_s: float) -> str:
    """Write the time left to a deadline, or the lateness: "late 12 ms"."""
    return f"late {duration(abs(remain_s))}" if remain_s <= 0 else duration(remain_s)


def share(part: float) -> str:
    return "-" if math.isnan(part) else f"{100 * part:.1f} %"


def ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def deadline_place(remain_s: float) -> float:
    """Map a time to a deadline to -1 to 1, logarithmically on both sides of 0, so that milliseconds and seconds can
    both be seen: 0 at 0, 1 from LONGEST_S on."""
    if not math.isfinite(remain_s):
        return 1.0
    place = math.log1p(abs(remain_s) / SHORTEST_S) / math.log1p(LONGEST_S / SHORTEST_S)
    return math.copysign(min(1.0, place), remain_s)


def tier_names(tier: int) -> str:
    """A tier's number, or "pool" for the common pool."""
    return "pool" if tier == POOL else str(tier)


def policy_name(policy: Policy) -> str:
    """A policy's name and settings as a user writes them: of one that an environment's actions change, its base's."""
    if isinstance(policy, LearnedPolicy) and policy.network is None and policy.base is not None:
        policy = policy.base
    return policy.label
