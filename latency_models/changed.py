"""Changes to profiles that are given after their names (`CHANGES`)."""

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
    """Set `cpu_overhead_s` of a profile, in its device model and in its estimator.

    Raises ProfileError unless the value is a number of 0 or more, and if the estimator's constant part would be
    negative.
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


def with_kv_groups(profile: Profile, how: str) -> Profile:
    """Count all tokens of a request alike, with as many a block as in the mean of requests of 4,096 tokens.

    Raises ProfileError for any word but mean, and for a profile without KV cache groups.
    """
    if how != "mean":
        raise ProfileError(f"kv_groups={how}: it should be mean, which counts tokens alike in all layers")
    if not profile.kv.groups:
        raise ProfileError(f"kv_groups=mean: {profile.name} has no KV cache groups; leave it out")
    return dataclasses.replace(
        profile, name=f"{profile.name}:kv_groups=mean", kv=dataclasses.replace(profile.kv, groups=())
    )


CHANGES: dict[str, Callable[[Profile, str], Profile]] = {
    "estimator": with_estimator,
    "cpu_overhead_ms": with_cpu_overhead,
    "kv_groups": with_kv_groups,
}
