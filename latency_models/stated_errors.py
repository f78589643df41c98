"""The reference of a profile's errors: the composed times that its form was fitted to, or measurements."""

from __future__ import annotations

from servegym.latency_models.profile import Profile, error_class

FIT = "device_vs_composition"
MEASURED = ("device_vs_measured", "device_vs_serving")
NEVER = "never measured"
# By error class, of whole runs and of tables: docs/results/measured.md, docs/latency_models.md#of-any-model.
EXPECTED = {
    "tables": "in 14 measured runs such profiles were off by 4 % (time between tokens) and 19 % (TTFT) in the median",
    "roofline": "such profiles are 8 to 33 % off against tables of kernels",
}


def fit_percent(profile: Profile) -> float | None:
    """Mean absolute error of the device form against the composed times it was fitted to; None: there are none."""
    return profile.error[FIT]["mape_percent"] if FIT in profile.error else None


def measured_percent(profile: Profile) -> float | None:
    """Mean absolute error against measurements; None: there are none."""
    return next((profile.error[what]["mape_percent"] for what in MEASURED if what in profile.error), None)


def expected(profile: Profile) -> str:
    """The error to expect of a profile that was never measured."""
    note = EXPECTED.get(error_class(profile))
    return f"{NEVER}; {note}" if note else NEVER
