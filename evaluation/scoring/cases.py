"""The scenarios of a panel, made once, and what its baselines do there; each policy is then run on the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from servegym.errors import ExperimentError
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.panels.part import Part
from servegym.evaluation.scoring.best_found import best_found, key_of
from servegym.simulator.policies import Policy
from servegym.simulator.simulation import Simulation

# Whom a policy is held against, and on what, by its kind.
BASELINES = {"scheduler": ("slide-batching", "expected-gain"), "router": ("min-load", "gorouting")}
PANELS = {"scheduler": "score", "router": "score_routers"}
QUICK, FULL = "quick", "full"
FIGURES = (
    "tdg_ratio", "slo_attainment", "starved", "fairness_by_client", "fairness_by_length", "preemptions",
)  # fmt: skip


class Place(NamedTuple):
    """A scenario of a panel. replicate: which of its cell's seeds. stage: in which it is run, `QUICK` or `FULL`."""

    part: Part
    load: float
    seed: int
    replicate: int
    stage: str


class Cases:
    """kind: of the policies that are judged. baselines: two or more policies of that kind.

    Raises ExperimentError, SpecError for a panel there is not, or that such policies cannot be judged on.
    """

    def __init__(self, panel: str | None, kind: str, baselines: tuple[str, ...] | None):
        if kind not in PANELS:
            raise ExperimentError(f"a {kind} is not scored; schedulers and routers are")
        self.panel, self.kind = load_panel(panel or PANELS[kind]), kind
        evaluation = Evaluation(self.panel, baselines or BASELINES[kind], kind)
        self.places = [place for part in evaluation.parts for place in places_of(part)]
        self.baselines = [
            run for place in self.places for label, candidate in place.part.candidates.items()
            for run in [run_at(place, getattr(candidate, kind), kind, label, judged=False)]
        ]  # fmt: skip

    def runs(self, policy: Policy, stage: str) -> Iterator[dict[str, Any]]:
        """What a policy does in each scenario of a stage."""
        for place in self.places:
            if place.stage == stage:
                yield run_at(place, policy, self.kind, policy.label, judged=True)


def places_of(part: Part) -> Iterator[Place]:
    """Quick: the first seed of the highest load. What was run in it is not run again."""
    for load in part.loads:
        for replicate, seed in enumerate(part.seeds_of(load)):
            quick = load == max(part.loads) and replicate == 0
            yield Place(part, load, seed, replicate, QUICK if quick else FULL)


def run_at(place: Place, policy: Policy, kind: str, label: str, judged: bool) -> dict[str, Any]:
    """A run, as numbers and names."""
    part = place.part
    candidate = next(iter(part.candidates.values()))._replace(**{kind: policy})
    scenario = part.scenario(place.load, place.seed, candidate)
    summary = Simulation(scenario).run().summary
    return {
        "trace": part.trace_name, "device": part.profile.name, "load": place.load, "seed": place.seed,
        "replicate": place.replicate, "policy": label, "judged": judged, "stage": place.stage,
        "best_found": best_found().get(key_of(scenario)), "ttft_p99_s": summary["ttft_s"]["p99"],
        "round_us": 1e6 * summary["wall_s"] / max(1, summary["scheduling_rounds"]),
        **{name: summary[name] for name in FIGURES},
    }  # fmt: skip
