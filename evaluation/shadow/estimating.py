"""What other policies would have gained, simulated on a profile that is fitted to what was measured.

The first half of the requests calibrates: a factor of batch times, CPU time of a step and the time between client and
queue are fitted to their mean latencies. The second half judges: it is simulated under the policy that ran, which says
how far off the simulation is, and under the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.fitting import Fitted, fit
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import scenario_of
from servegym.evaluation.shadow.served import Served
from servegym.latency_models.profile import Profile
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation

NOTHING_BESIDE = EngineTerms("none", "the fitted profile has all")
GAIN = Gain(first_weight=1.0)  # TDG, a first token worth as much as any
BLOCKS = 10  # of requests that follow each other; each is one observation


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A scheduler of the engines and a router before them; None: those that run."""

    scheduler: str | None = None
    router: str | None = None

    def of(self, run: Run) -> Run:
        return dataclasses.replace(run, scheduler=self.scheduler or run.scheduler, router=self.router or run.router)

    @property
    def label(self) -> str:
        return " + ".join(part for part in (self.scheduler, self.router) if part) or "as it runs"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of the second half. tdg: its TDG ratio. against: mean difference to the policy that runs, by blocks.

    ttft_s, tpot_s: means. beyond_error: whether the whole interval is farther from 0 than the simulation was from what
    was measured.
    """

    label: str
    tdg: float
    ttft_s: float
    tpot_s: float
    against: Interval
    beyond_error: bool


@dataclasses.dataclass(frozen=True)
class Shadow:
    """measured: of what ran; simulated: the same on the fitted profile; error: simulated less measured, by blocks."""

    terms: Fitted
    requests: int
    measured: Estimate
    simulated: Estimate
    error: Interval
    others: tuple[Estimate, ...]


def calibrated(run: Run, profile: Profile) -> tuple[Fitted, Profile]:
    """Fit to the latencies of the first half; returns the fit and the profile with it."""
    terms = fit([(run, profile, NOTHING_BESIDE)], stages=["1"])
    return terms, terms.within(profile)


def shadow(served: Served, profile: Profile, candidates: Sequence[Candidate]) -> Shadow:
    """What each candidate would have gained. Raises ServegymError for policies there are not, and what `fit` raises."""
    run = served.run
    terms, fitted = calibrated(run, profile)
    judged = run.of_stage("2")
    blocks = np.arange(judged.sum()) * BLOCKS // judged.sum()
    weight = run.requests["weight"].to_numpy(float) if "weight" in run.requests else np.ones(len(judged))
    tokens = run.requests["output_tokens"].to_numpy(float)
    there = run.requests.assign(gain=weight * served.in_time, ideal_gain=weight * tokens, tpot_s=run.requests["itl_s"])

    def of(candidate: Candidate) -> pd.DataFrame:
        return Simulation(scenario_of(candidate.of(run), fitted, NOTHING_BESIDE, gain=GAIN)).run().requests[judged]

    measured, here = there[judged], of(Candidate())
    ratios, simulated = _by_block(measured, blocks), _by_block(here, blocks)
    error = student_interval(simulated - ratios)
    margin = abs(error.mean)

    def estimate(label: str, requests: pd.DataFrame, base: np.ndarray) -> Estimate:
        against = student_interval(_by_block(requests, blocks) - base)
        beyond = max(against.low, -against.high) > margin
        tdg = float(requests["gain"].sum() / requests["ideal_gain"].sum())
        return Estimate(label, tdg, float(requests["ttft_s"].mean()), float(requests["tpot_s"].mean()), against, beyond)

    others = tuple(estimate(candidate.label, of(candidate), simulated) for candidate in candidates)
    label = f"{run.scheduler} + {run.router}" if run.engines > 1 else run.scheduler
    return Shadow(
        terms, int(judged.sum()), estimate(f"{label}, measured", measured, ratios),
        estimate(f"{label}, simulated", here, simulated), error, others,
    )  # fmt: skip


def _by_block(requests: pd.DataFrame, blocks: np.ndarray) -> np.ndarray:
    """float64[blocks]: TDG ratio of each."""
    gain, ideal = (np.bincount(blocks, requests[name].to_numpy(float)) for name in ("gain", "ideal_gain"))
    return np.asarray(gain / ideal)
