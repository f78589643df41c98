"""Known errors of profiles: against the composed times to which their forms were fitted, or against measurements."""

from __future__ import annotations

from servegym.latency_models.profile import Profile, error_class

FIT = "device_vs_composition"
MEASURED = ("device_vs_measured", "device_vs_serving")
NEVER = "never measured"
NO_ITERATION = "No iteration of an engine was measured."
# Profiles composed from tables: mean absolute error, %, on batches that an engine ran on that device later, with
# nothing fitted to them. vLLM 0.26.0, 2,943 steps: docs/results/h100.md.
MEASURED_LATER, MEASURED_STEPS = {"h100-llama3-8b": 5.6}, "2,943"
# Errors by error class, of whole runs and of tables: docs/results/measured.md, docs/device_reference.md#of-any-model.
EXPECTED = {
    "tables": "in 14 measured runs such profiles were off by 4 % (time between tokens) and 19 % (TTFT) in the median",
    "roofline": "such profiles are 8 to 33 % off against tables of kernels",
}

STATES_ALONE = "no engine was measured with a model of states alone, and no table has their scan"


def fit_percent(profile: Profile) -> float | None:
    """Return the mean absolute error of the device form against the composed times of its fit, in percent, or None."""
    return profile.error[FIT]["mape_percent"] if FIT in profile.error else None


def measured_percent(profile: Profile) -> float | None:
    """Return the mean absolute error against measurements, in percent, or None."""
    later = MEASURED_LATER.get(profile.name)
    return next((profile.error[what]["mape_percent"] for what in MEASURED if what in profile.error), later)


def statement(profile: Profile) -> str:
    """Say what the errors of a profile's file are of, and what was measured after it was written."""
    said, later = str(profile.error["statement"]), MEASURED_LATER.get(profile.name)
    if later is None:
        return said
    return (
        said.replace(NO_ITERATION, "").strip()
        + f" Later {MEASURED_STEPS} steps of an engine were measured: {later:g} % off on average."
    )


def expected(profile: Profile) -> str:
    """Describe the error to expect of a profile that was never measured."""
    note = EXPECTED.get(error_class(profile))
    if profile.kv.groups and all(group.state for group in profile.kv.groups):
        note = STATES_ALONE
    return f"{NEVER}; {note}" if note else NEVER
