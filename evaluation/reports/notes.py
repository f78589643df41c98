"""Notes on what a report's figures mean and do not mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from servegym.latency_models.profile import Profile
from servegym.latency_models.stated_errors import FIT, expected, measured_percent, statement
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.results import Result

GAINS = {
    "tdg": "Gain is the token-level deadline-aware gain (TDG): a token earns its weight if it is out strictly before "
    "its deadline, arrival + TTFT SLO + (i - 1) x TPOT SLO for token i.",
    "ta-slo": "Gain is TA-SLO: a first token earns its weight within the TTFT SLO, a later one if it follows the one "
    "before within the TPOT SLO.",
    "tempo": "Gain is Tempo's service gain: 1 for each token of the prompt, with the first token, and 8 for each token "
    "of the answer, less in proportion as they are late; with a TTLT SLO, all of it with the last token.",
    "weighted-slo": "Gain is the weight of each request that met its SLOs, earned with its last token.",
    "vanilla-slo": "Gain is 1 for each request that met its SLOs, earned with its last token.",
    "session-slo": "Gain is the weight of each session that ended by when it would if its requests just met their "
    "SLOs, earned with its last token; a request that is in no session counts as one.",
}


ERRORS = {
    FIT: "The device form against the composed times that it was fitted to, not against an engine",
    "estimator_vs_device": "The policies' estimator against the device form",
}


def profile_notes(profile: Profile | None) -> list[str]:
    """Return notes on the origin and error of the times. None: the device model is not from a profile."""
    if profile is None:
        return ["Nothing was run on a device. Times are those of a device model whose error is unknown."]
    valid = ", ".join(f"{name.replace('_', ' ')} {low:,} to {high:,}" for name, (low, high) in profile.valid.items())
    return [
        f"Nothing was run on a device. Times are those of the profile {profile.name} ({profile.title}), which rests on "
        f"{profile.basis}.",
        statement(profile),
        *(
            f"{ERRORS.get(what, what.replace('_', ' '))}: {errors['mape_percent']:.1f} % off on average."
            for what, errors in profile.error.items()
            if isinstance(errors, Mapping) and "mape_percent" in errors
        ),
        *([] if measured_percent(profile) is not None else [f"Against an engine: {expected(profile)}."]),
        f"These errors are of: {valid}.",
    ]


def fleet_notes(profiles: Iterable[Profile]) -> list[str]:
    """Return the notes on each device of a fleet."""
    return [note for profile in profiles for note in profile_notes(profile)]


def run_notes(result: Result) -> list[str]:
    summary, gain = result.summary, result.scenario.gain
    unfinished = summary["requests"] - summary["finished"]
    return [
        gain_note(gain),
        "A request attains its SLO if it has finished and was strictly within its TTFT and TPOT SLOs (with a TTLT SLO: "
        "within that). An answer of one token has no TPOT.",
        *([f"{unfinished:,} requests had not finished when the run stopped; they count as not attained and are left "
           "out of the quantiles of what they had not reached."] if unfinished else []),
        "TBT, the time between two tokens, is read off a histogram: its quantiles are within 1.6 %.",
        "This is one run with one seed: whether another scheduler is better is a question for a comparison over seeds.",
    ]  # fmt: skip


def gain_note(gain: Gain) -> str:
    weight = "mean prompt / mean output tokens" if gain.first_weight is None else f"{gain.first_weight:g}"
    weights = f" Weights: the request's, x {weight} for its first token, x {gain.decode_weight:g} for later ones."
    return GAINS[gain.name] + (weights if gain.name in ("tdg", "ta-slo") else "")


COMPARISON_NOTES = [
    "In a run all schedulers serve the same requests, so differences are taken run by run.",
    "Intervals are 95 % intervals of means over runs (Student's t). Of other traces and devices they say nothing.",
    "They are not corrected for the number of schedulers, nor for the best having been chosen from the same runs.",
]
LOAD_NOTE = (
    "Load is the arrival rate over the saturation rate: the requests per second of sarathi-fcfs when all requests are "
    "there from the start."
)
CLOSED_LOOP_NOTE = (
    "In a closed loop a slow system is asked less often: a TDG ratio is to be read beside the requests/s, and says "
    "nothing of requests that come by themselves."
)
