"""Profiles with one thing changed, by what is written after their names (`CHANGES`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from servegym.errors import ProfileError
from servegym.latency_models.estimators import with_estimator

if TYPE_CHECKING:
    from servegym.latency_models.profile import Profile


def with_cpu_overhead(profile: Profile, milliseconds: str) -> Profile:
    """The profile with another `cpu_overhead_s`, which its estimator knows of: both take so much longer or shorter.

    Raises ProfileError for what is no number of 0 or more, and where the estimator's constant part would be negative.
    """
    try:
        overhead_s = float(milliseconds) / 1e3
    except ValueError:
        overhead_s = math.nan
    if not (math.isfinite(overhead_s) and overhead_s >= 0):
        raise ProfileError(f"cpu_overhead_ms={milliseconds}: it should be a number of milliseconds, 0 or more")
    more_s = overhead_s - profile.cpu_overhead_s
    return dataclasses.replace(
        profile,
        name=f"{profile.name}:cpu_overhead_ms={milliseconds}",
        device=profile.device.plus_constant(more_s),
        estimator=profile.estimator.plus_constant(more_s),
        cpu_overhead_s=overhead_s,
    )


CHANGES: dict[str, Callable[[Profile, str], Profile]] = {
    "estimator": with_estimator,
    "cpu_overhead_ms": with_cpu_overhead,
}
