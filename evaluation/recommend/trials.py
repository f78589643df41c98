"""Runs of setups on windows of a recording, each done once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from servegym.evaluation.comparing import serve_two
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.running import Progress, Runner
from servegym.evaluation.targets import Target
from servegym.latency_models.profile import Profile
from servegym.scenarios.building import scenario_of
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import latencies_of

JUDGED_FROM = 0.1  # of a window's arrivals: before, engines that begin empty are filling
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Trial(NamedTuple):
    """So many engines, set up in this way, serve a window."""

    setup: Setup
    engines: int
    window: int


Row = dict[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """Trials on one device. Each is run once, however often it is asked for.

    base: what the runs have in common; its demand is not used. windows: by number. runner: where they are done.
    progress: called with the runs that are done and the runs known to be needed.
    """

    base: ServingSpec
    device: Profile
    windows: Sequence[Workload]
    target: Target
    runner: Runner
    progress: Progress = lambda done, known: None
    done: dict[Trial, Row] = dataclasses.field(default_factory=dict)
    specs: dict[tuple[Setup, int], ServingSpec] = dataclasses.field(default_factory=dict)

    def rows(self, trials: Iterable[Trial]) -> list[Row]:
        """Results of the trials, in their order."""
        trials = list(trials)
        missing = list(dict.fromkeys(trial for trial in trials if trial not in self.done))
        for trial in missing:
            self.spec_of(trial.setup, trial.engines)
        before = len(self.done)
        for place, row in self.runner.run(self.run, missing):
            self.done[missing[place]] = row
            self.progress(len(self.done), before + len(missing))
        return [self.done[trial] for trial in trials]

    def shares(self, setup: Setup, engines: int, windows: Sequence[int]) -> np.ndarray:
        """float64[windows]: the share of the requests of each that are served as the target says."""
        return np.array([row["share"] for row in self.rows(Trial(setup, engines, window) for window in windows)])

    def spec_of(self, setup: Setup, engines: int) -> ServingSpec:
        if (setup, engines) not in self.specs:
            self.specs[setup, engines] = setup.spec(self.base, self.device, engines)
        return self.specs[setup, engines]

    def run(self, trial: Trial) -> Row:
        """share: of the requests that hold the target; quantiles of TTFT, TPOT and TTLT; tokens of output a second."""
        spec, workload = self.spec_of(trial.setup, trial.engines), self.windows[trial.window]
        run = Simulation(scenario_of(spec, workload, deployment_of(spec), noise_seed=trial.window))
        run.run()
        table, outcomes, arrival_s = workload.table, run.arrays.outcomes, run.arrays.requests["arrival_s"]
        judged = judged_arrivals(arrival_s, workload.known)
        failed = self.target.failed(run.arrays, workload, np.inf)[judged & self.target.judges(workload)]
        times = latencies_of(table, arrival_s, outcomes["first_token_s"], outcomes["finish_s"])
        row = {"share": 1 - float(failed.mean()) if len(failed) else np.nan}
        for name, seconds in zip(("ttft", "tpot", "ttlt"), times, strict=True):
            of_judged = seconds[judged & ~np.isnan(seconds)]
            for quantile, q in QUANTILES.items():
                row[f"{name}_{quantile}_s"] = float(np.quantile(of_judged, q)) if len(of_judged) else np.nan
        span_s = float(np.nanmax(outcomes["finish_s"]) - arrival_s[0])
        return row | {"output_tokens_per_s": float(table["output_tokens"].sum() / span_s)}


def judged_arrivals(arrival_s: np.ndarray, known: int) -> np.ndarray:
    """bool[requests]: which of a window are judged. known: of how many the arrivals are known beforehand."""
    judged: np.ndarray = arrival_s >= arrival_s[0] + JUDGED_FROM * (arrival_s[known - 1] - arrival_s[0])
    return judged


def compile_policies(trials: Trials, setups: Iterable[Setup]) -> None:
    """Run each scheduler and router once on two requests: kernels are compiled here, in one thread, before the work."""
    seen = set[tuple[str, bool]]()
    for setup in setups:
        names = {(setup.scheduler, setup.prefill_share is None), (setup.router, setup.prefill_share is None)}
        if not names <= seen:
            seen |= names
            serve_two(trials.spec_of(setup, 2))
