"""The scenarios of a panel, drawn once for all policies, and the runs of its baselines."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.panels.part import Part
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import slo_classes

BEST_RUNS = Path(__file__).with_name("best_found.csv")  # written by python -m experiments.best_found
# The baselines and the panel for a policy, by its kind.
BASELINES = {"scheduler": ("slide-batching", "expected-gain"), "router": ("min-load", "gorouting")}
PANELS = {"scheduler": "score", "router": "score_routers"}
QUICK, FULL = "quick", "full"
SLO_OF_CLASS = {True: ("ttlt",), False: ("ttft", "tpot")}  # by whether the class has a TTLT SLO
FIGURES = (
    "tdg_ratio", "slo_attainment", "starved", "fairness_by_client", "fairness_by_length", "evictions",
)  # fmt: skip


def best_rows() -> list[dict[str, str]]:
    """Return the rows of `BEST_RUNS`: panel, trace, device, rate, seed, workload (its digest), runs, tdg_ratio."""
    with BEST_RUNS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def best_found() -> dict[str, float]:
    """Return the TDG ratio of the best run that a search found, by the digest of its workload, which no two share."""
    return {row["workload"]: float(row["tdg_ratio"]) for row in best_rows()}


class Place(NamedTuple):
    """A scenario of a panel. replicate: index of the seed in its cell. stage: `QUICK` or `FULL`."""

    part: Part
    load: float
    seed: int
    replicate: int
    stage: str


class Cases:
    """The scenarios of a panel. kind: of the judged policies. baselines: two or more policies of that kind.

    Raises ExperimentError, SpecError for an unknown panel, or one on which such policies cannot be judged.
    """

    def __init__(self, panel: str | None, kind: str, baselines: tuple[str, ...] | None):
        if kind not in PANELS:
            raise ExperimentError(f"a {kind} is not scored; schedulers and routers are")
        self.panel, self.kind = load_panel(panel or PANELS[kind]), kind
        evaluation = Evaluation(self.panel, baselines or BASELINES[kind], kind)
        self.notes = evaluation.notes
        self.places = [place for part in evaluation.parts for place in places_of(part)]
        self.baselines = [
            run_of(place, Simulation(self.scenario(place, getattr(candidate, kind))), label, judged=False)
            for place in self.places for label, candidate in place.part.candidates.items()
        ]  # fmt: skip

    def scenario(self, place: Place, policy: Policy) -> Scenario:
        """Return the scenario of a place under a policy of the judged kind."""
        candidate = next(iter(place.part.candidates.values()))._replace(**{self.kind: policy})
        return place.part.scenario(place.load, place.seed, candidate)


def places_of(part: Part) -> Iterator[Place]:
    """Yield the places of a part. Quick: the first seed of the highest load; full: all others."""
    for load in part.loads:
        for replicate, seed in enumerate(part.seeds_of(load)):
            quick = load == max(part.loads) and replicate == 0
            yield Place(part, load, seed, replicate, QUICK if quick else FULL)


def run_of(place: Place, simulation: Simulation, label: str, judged: bool) -> dict[str, Any]:
    """Run a simulation, and return its figures. Raises as `Simulation.run`."""
    part, result = place.part, simulation.run()
    summary, rounds = result.summary, int(result.summary["scheduling_rounds"])
    return {
        "trace": part.trace_name, "device": part.profile.name, "load": place.load, "seed": place.seed,
        "replicate": place.replicate, "policy": label, "judged": judged, "stage": place.stage,
        "best_found": best_found().get(simulation.scenario.workload.digest), "ttft_p99_s": summary["ttft_s"]["p99"],
        "missed": missed_by_class(result), "rounds": rounds, "round_us": 1e6 * summary["wall_s"] / max(1, rounds),
        **{name: summary[name] for name in FIGURES},
    }  # fmt: skip


def missed_by_class(result: Result) -> dict[str, float]:
    """Return the share of requests that missed an SLO, for each SLO of each class (of equal priority and SLOs).

    Names are such as "TTFT of priority 1 (TTFT 1 s, TPOT 50 ms)". Tokens that were never emitted count as missed.
    """
    columns, missed = result.columns, {}
    classes = slo_classes(result.scenario.workload.table[result.arrived])
    for words, in_class in (classes or {"SLOs of their own": np.ones(len(columns["priority"]), bool)}).items():
        for priority, has_it in result.priorities.items():
            those = in_class & has_it
            for slo in SLO_OF_CLASS[bool(np.isfinite(columns["ttlt_slo_s"][those]).any())] if those.any() else ():
                late = ~(columns[f"{slo}_s"][those] < columns[f"{slo}_slo_s"][those])
                if slo == "tpot":
                    late &= columns["output_tokens"][those] > 1
                missed[f"{slo.upper()} of priority {priority} ({words})"] = float(late.mean())
    return missed
