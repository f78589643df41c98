"""Engine and router trained together: does one vector with the weights of both find more than either alone?

    python -m experiments.tuning.together docs/results/engine-and-router.md

Hypothesis: together.md.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments.claims.harness.page import header, row
from servegym.baselines.learned.network import Network
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.running import ThreadRunner, results_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.tuners.config import TrainingConfig, from_plain
from servegym.tuners.evolution import ALL, SLOT, first_network, searched
from servegym.tuners.generations import scenarios_of
from servegym.tuners.problem import Problem, problem_of
from servegym.tuners.serving import outcome_of
from servegym.tuners.validation import Judge

WORDS = Path(__file__).with_name("together.md")
ENGINES = 4
SCENARIOS = {
    "trace": ["azure-conv", "sharegpt"],
    "device": [
        "a100-llama3-8b", "h100-llama3-8b", "a6000-llama3.1-8b", "a100-qwen1.5-7b", "a5000-qwen1.5-7b",
        "ascend910b-qwen2-7b", "a100-llama3-70b-tp8",
    ],
    "load": {"low": 0.7, "high": 1.6}, "requests": {"low": 300, "high": 800}, "load_profile": [[[1.0, 1.0]]],
    "engines": ENGINES, "scheduler": "slide-batching:steps=ignore", "router": "min-load",
}  # fmt: skip
COMMON = {"algorithm": "cma", "scenarios": SCENARIOS, "environments": 1, "validation": {"scenarios": 64}}
TRAININGS: dict[str, dict[str, Any]] = {
    "engine": COMMON | {
        "environment": "EngineBatching-v0",
        "arguments": {"scheduler": "slide-batching:steps=ignore", "controls": ["eta"]},
        "network": {"hidden": []}, "hyperparameters": {"step": 0.05, "inputs": ALL},
    },
    "router": COMMON | {
        "environment": "ClusterRouting-v0", "arguments": {"engines": ENGINES},
        "network": {"hidden": [], "base_bias": 1.0}, "hyperparameters": {"step": 0.3, "inputs": SLOT},
    },
}  # fmt: skip
ARMS = {"engine alone": ("engine",), "router alone": ("router",), "together": ("engine", "router")}
POPULATION, PER_GENERATION = 12, 16  # candidates, and scenarios that each of them serves
FIGURES = ("TDG ratio", "SLO attainment", "wait, s")


class Part(NamedTuple):
    """A network of the vector. free: which weights are searched. step: their deviation in the first generation."""

    problem: Problem
    start: Network
    free: np.ndarray
    step: float

    def policy(self, numbers: np.ndarray | None) -> Policy:
        """With these in the place of the free weights, in steps from where they were; None: the base."""
        if numbers is None:
            return self.problem.head.base
        weights = self.start.weights.values.copy()
        weights[self.free] += self.step * numbers
        return self.problem.head.policy(Network(self.start.shape, weights))  # type: ignore[arg-type]


def part_of(training: Mapping[str, Any]) -> Part:
    problem = problem_of(from_plain(TrainingConfig, {**training, "budget": {"steps": 1}}, ""))
    head, config = problem.head, problem.config
    base_bias = head.base_bias and head.base_bias.times(config.network.base_bias)
    start = first_network(problem.shape, base_bias, np.random.default_rng(0))
    return Part(problem, start, searched(start.shape, config.hyperparameters["inputs"]), config.hyperparameters["step"])


class Vector(NamedTuple):
    """The parts of which some are searched, one after the other in a vector; the others stay at their bases."""

    parts: Mapping[str, Part]
    searched: Sequence[str]

    @property
    def size(self) -> int:
        return sum(len(self.parts[name].free) for name in self.searched)

    def with_parameters(self, scenario: Scenario, vector: np.ndarray) -> Scenario:
        """The scenario with the policies of a vector in it."""
        policies, first = {}, 0
        for name, part in self.parts.items():
            numbers = None
            if name in self.searched:
                numbers, first = vector[first : first + len(part.free)], first + len(part.free)
            policies[part.problem.head.part] = part.policy(numbers)
        return dataclasses.replace(scenario, **policies)  # type: ignore[arg-type]


def outcomes(runs: Sequence[Scenario]) -> np.ndarray:
    """float64[runs, FIGURES]."""
    return np.array(results_of(ThreadRunner(), functools.partial(outcome_of, runs), range(len(runs))))


def search(vector: Vector, generations: int, say: Any) -> np.ndarray:
    """The mean of a CMA-ES after so many generations."""
    from cmaes import CMA

    optimizer = CMA(np.zeros(vector.size), 1.0, seed=0, population_size=POPULATION)
    problem = vector.parts["router"].problem
    for generation in range(generations):
        drawn, asked = scenarios_of(problem, generation, PER_GENERATION), [optimizer.ask() for _ in range(POPULATION)]
        ratios = outcomes([vector.with_parameters(scenario, numbers) for numbers in asked for scenario in drawn])[:, 0]
        scores = ratios.reshape(POPULATION, PER_GENERATION).mean(axis=1)
        optimizer.tell([(numbers, -score) for numbers, score in zip(asked, scores, strict=True)])
        say(f"generation {generation}: {scores.mean():.4f}")
    return optimizer.mean


def measure(generations: int, say: Any) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """By arm, of the base too: float64[scenarios, FIGURES] in validation; and minutes of processor time of a search."""
    parts = {name: part_of(training) for name, training in TRAININGS.items()}
    problem = parts["router"].problem
    judged = Judge(problem.head, problem.validation_source, problem.config.validation).scenarios
    base = Vector(parts, ())
    found = {"base": outcomes([base.with_parameters(scenario, np.zeros(0)) for scenario in judged])}
    minutes = {}
    for arm, names in ARMS.items():
        vector, begun_s = Vector(parts, names), time.process_time()
        best = search(vector, generations, lambda text, arm=arm: say(f"{arm}, {text}"))
        minutes[arm] = (time.process_time() - begun_s) / 60
        found[arm] = outcomes([vector.with_parameters(scenario, best) for scenario in judged])
        say(f"{arm}: {found[arm].mean(axis=0)}")
    return found, minutes


def page(found: Mapping[str, np.ndarray], minutes: Mapping[str, float], generations: int) -> str:
    served = generations * POPULATION * PER_GENERATION
    lines = [
        "# Engine and router trained together\n", WORDS.read_text(encoding="utf-8"),
        f"Measured by `python -m experiments.tuning.together docs/results/engine-and-router.md`: {served:,} "
        f"scenarios served by each search, {generations} generations of {POPULATION} candidates; seven devices, loads "
        f"0.7 to 1.6. Validation: {len(found['base'])} scenarios of other requests, the last mean of each search; "
        "means, and differences with their 95 % intervals. Wait: p99 of the time to a first token.\n",
        *header("", *FIGURES, "TDG ratio less the base's", "together less it", "minutes of processor time"),
    ]  # fmt: skip
    for arm, outcome in found.items():
        means = outcome.mean(axis=0)
        less = ["" if arm == other else in_words(found[a][:, 0] - found[b][:, 0])
                for other, a, b in (("base", arm, "base"), ("together", "together", arm))]  # fmt: skip
        spent = f"{minutes[arm]:.1f}" if arm in minutes else ""
        lines.append(row(arm, f"{means[0]:.4f}", f"{means[1]:.3f}", f"{means[2]:.1f}", *less, spent))
    holds = all(
        student_interval(found["together"][:, 0] - found[arm][:, 0]).low > 0 for arm in ("engine alone", "router alone")
    )
    lines.append(f"\n**Verdict**: {'holds' if holds else 'refuted'}.")
    return "\n".join(lines) + "\n"


def in_words(differences: np.ndarray) -> str:
    return student_interval(differences).text("+.4f")


def main(path: Path, generations: int = 20) -> None:
    console = Console(stderr=True)
    path.write_text(page(*measure(generations, console.print), generations), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
