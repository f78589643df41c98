"""Replaces the estimator of a profile by one of another form, fitted to its device model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from servegym.errors import ProfileError
from servegym.latency_models.documents import percent
from servegym.latency_models.fitting import fit
from servegym.latency_models.forms import estimator_forms, get_form
from servegym.latency_models.model import BATCH_COLUMNS
from servegym.latency_models.sampling import BatchRange, random_batches

if TYPE_CHECKING:
    from servegym.latency_models.profile import Profile

SEED, BATCHES = 0, 6000  # the same as for shipped profiles
ESTIMATOR = ":estimator="  # in the name of a profile whose estimator was replaced


def range_of(profile: Profile) -> BatchRange:
    """The range of batches on which a profile's errors were measured."""
    return BatchRange(
        batch_tokens=profile.valid["batch_tokens"][1],
        decode_requests=profile.valid["sequences"][1],
        cached_tokens=profile.valid["cached_tokens"][1],
        cached_tokens_in_batch=profile.valid["cached_tokens_in_batch"][1],
    )


def with_estimator(profile: Profile, form: str) -> Profile:
    """The profile with an estimator of another form, fitted to its device model on random batches within its ranges.

    Raises ProfileError for a form that is unknown, cannot be an estimator, or cannot be fitted to such batches.
    """
    import pandas as pd

    if get_form(form).core_s is None:
        raise ProfileError(f"form '{form}' cannot be an estimator; these can: {', '.join(estimator_forms())}")
    batches = random_batches(BATCHES, SEED, range_of(profile))
    table = pd.DataFrame({name: batches[name] for name in BATCH_COLUMNS})
    table["duration_s"] = profile.device.evaluate(batches)
    fitted = fit(form, table, SEED)
    return dataclasses.replace(
        profile,
        name=f"{profile.name}{ESTIMATOR}{form}",
        estimator=fitted.model,
        error={**profile.error, "estimator_vs_device": percent(fitted.error)},
    )
