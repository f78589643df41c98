"""Evolution: CMA-ES over the weights of a network, in generations (generations.py); its result is the mean.

Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", 2001; with many weights Ros
and Hansen, "A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity", 2008; both implemented by the
library cmaes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servegym.baselines.artifact.files import load_policy
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.observations.fields import Layout
from servegym.errors import TrainingError
from servegym.evaluation.running import Runner
from servegym.tuners.config import TrainingConfig, errors_of, from_plain
from servegym.tuners.decision_head import BaseBias, follow_base
from servegym.tuners.generations import evolve
from servegym.tuners.outcome import Progress
from servegym.tuners.problem import Problem, problem_of
from servegym.tuners.runs import RunFolder

ALL, SLOT = "all", "slot"
FULL_COVARIANCE = 300  # most weights with a full covariance; with more, a diagonal one
SMALLEST_STEP = 1e-4  # step size (weights are about 1) below which no progress is expected


@dataclasses.dataclass(frozen=True)
class EvolutionConfig:
    """`hyperparameters` of the algorithm cma.

    step: standard deviation of the candidates' weights in the first generation. population: candidates of a generation;
    None: 4 + 3 ln(weights). scenarios: number for each candidate. separable: use a diagonal covariance; None: with more
    than 300 weights. inputs: which of a shared network's weights are searched: "slot", those for the numbers of slots;
    names such as "need, rank", those for these numbers, in slots and outside. outputs: "all", or indices such as "2, 6"
    of the outputs (of each slot) whose weights and biases are searched; of a network without hidden layers. The other
    weights keep their first values.
    """

    step: float = 0.3
    population: int | None = None
    scenarios: int = 32
    separable: bool | None = None
    inputs: str = ALL
    outputs: str = ALL

    @staticmethod
    def of(config: TrainingConfig) -> EvolutionConfig:
        """Read and check the hyperparameters. Raises TrainingError for invalid ones."""
        settings: EvolutionConfig = from_plain(EvolutionConfig, config.hyperparameters, "hyperparameters")
        checks = [
            ("step", 0 < settings.step < np.inf, "above 0"),
            ("population", settings.population is None or settings.population >= 4, "4 or more"),
            ("scenarios", settings.scenarios >= 1, "1 or more"),
            ("inputs", settings.inputs.strip() != "", f"{ALL}, {SLOT}, or names of numbers"),
            ("outputs", settings.outputs.strip() != "", f"{ALL}, or indices of outputs"),
        ]
        for name, holds, right in checks:
            if not holds:
                raise TrainingError(f"hyperparameters.{name} is {getattr(settings, name)!r}; it should be {right}")
        return settings


class Search:
    """The searched weights and the state of the search. Pickled and loaded, it continues unchanged."""

    def __init__(self, start: Network, settings: EvolutionConfig, seed: int, inputs: Sequence[str] = ()):
        from cmaes import CMA, SepCMA

        self.shape, self.start = start.shape, start.weights.values
        of_outputs = with_outputs(start.shape, settings.outputs)
        self.free = np.intersect1d(searched(start.shape, settings.inputs, inputs), of_outputs)
        n = len(self.free)
        separable = n > FULL_COVARIANCE if settings.separable is None else settings.separable
        population = settings.population or 4 + int(3 * np.log(n))
        kind = SepCMA if separable else CMA
        self.optimizer = kind(self.start[self.free], settings.step, seed=seed, population_size=population)
        self.asked: list[np.ndarray] = []

    def __getstate__(self) -> dict[str, Any]:
        # The library does not pickle its random generator, nor both halves of the covariances, which rounding makes
        # unequal.
        return {**self.__dict__, "generator": self.optimizer._rng.get_state(), "covariances": self.optimizer._C}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator, covariances = state.pop("generator"), state.pop("covariances")
        self.__dict__.update(state)
        self.optimizer._rng.set_state(generator)
        self.optimizer._C = covariances

    def candidates(self) -> list[Network]:
        """The networks of the next generation."""
        self.asked = [self.optimizer.ask() for _ in range(self.optimizer.population_size)]
        return [self._network(numbers) for numbers in self.asked]

    def learn(self, scores: np.ndarray) -> None:
        """Tell the search the scores of the candidates, float64[population]; higher is better."""
        self.optimizer.tell([(numbers, -float(score)) for numbers, score in zip(self.asked, scores, strict=True)])

    @property
    def population(self) -> int:
        """Candidates of a generation."""
        return int(self.optimizer.population_size)

    @property
    def best(self) -> Network:
        """The mean of the search."""
        return self._network(self.optimizer.mean)

    @property
    def step(self) -> float:
        return float(self.optimizer._sigma)

    @property
    def has_ended(self) -> bool:
        return self.step < SMALLEST_STEP

    def said(self) -> dict[str, Any]:
        """Figures of the search for a row of the curve."""
        return {"step_size": self.step}

    def _network(self, numbers: np.ndarray) -> Network:
        weights = self.start.copy()
        weights[self.free] = numbers
        return Network(self.shape, weights)  # type: ignore[arg-type]


def searched(shape: Shape, wanted: str, inputs: Sequence[str] = ()) -> np.ndarray:
    """int64[...]: indices of the searched weights. wanted: `inputs` of `EvolutionConfig`. inputs: names of the
    network's inputs, in order. Raises TrainingError for unknown names.
    """
    if wanted == ALL:
        return np.arange(shape.count)
    first = shape.layers[0][1]  # the first layer is stored input by input
    if wanted == SLOT:
        if not shape.has_slots:
            raise TrainingError(
                f"hyperparameters.inputs is {SLOT!r}; a {shape.kind} network has no slots, it should be {ALL!r}"
            )
        return np.arange(shape.whole * first, shape.count)
    names = [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in inputs]:
        raise TrainingError(
            f"hyperparameters.inputs: there is no number {unknown[0]!r}; it should be {ALL}, {SLOT}, or some of "
            f"{', '.join(inputs)}"
        )
    kept = [place for place, name in enumerate(inputs) if name not in names]
    fixed = [place * first + output for place in kept for output in range(first)]
    return np.setdiff1d(np.arange(shape.count), fixed)


def with_outputs(shape: Shape, wanted: str) -> np.ndarray:
    """int64[...]: indices of the weights and biases of some outputs. wanted: `outputs` of `EvolutionConfig`. Raises
    TrainingError for anything but indices of outputs, and for some outputs of a network with hidden layers.
    """
    if wanted == ALL:
        return np.arange(shape.count)
    last = shape.outputs - 1
    names = [name.strip() for name in wanted.split(",")]
    if shape.hidden or any(not name.isdecimal() or int(name) > last for name in names):
        right = f"{ALL} with hidden layers" if shape.hidden else f"{ALL}, or some of 0 to {last}"
        raise TrainingError(f"hyperparameters.outputs is {wanted!r}; it should be {right}")
    # Input by input, each with the weights of all outputs; the biases come last, as if of one more input.
    rows = np.arange(shape.count // shape.outputs) * shape.outputs
    return np.sort(np.concatenate([rows + int(name) for name in names]))


def inputs_of(layout: Layout, shape: Shape) -> list[str]:
    """Names of a network's inputs: all numbers of its observation; for a shared network, those outside of slots and of
    one slot."""
    if not shape.has_slots:
        return [name for name, _ in layout]
    return [field.name for field in (*layout.whole_fields, *layout.slot_fields)]


def first_network(shape: Shape, base_bias: BaseBias | None, rng: np.random.Generator) -> Network:
    """Make a network that decides as the base policy does (`follow_base`)."""
    layers = [
        (rng.normal(0.0, 1.0 / np.sqrt(inputs), (outputs, inputs)), np.zeros(outputs))
        for inputs, outputs in shape.layers[:-1]
    ]
    inputs, outputs = shape.layers[-1]
    layers.append((np.zeros((outputs, inputs)), np.zeros(outputs)))
    follow_base(layers, np.tanh if shape.activation == "tanh" else np.positive, base_bias)
    return Network.from_layers(shape, layers)


def start_of(problem: Problem) -> Network:
    """The network with which training starts: that of the policy `start`, or one that follows the base.

    Raises TrainingError if that policy has another shape, PolicyError if it cannot be read.
    """
    config, head = problem.config, problem.head
    if config.start is None:
        base_bias = head.base_bias and head.base_bias.times(config.network.base_bias)
        return first_network(problem.shape, base_bias, np.random.default_rng(config.seed))
    with errors_of("start"):
        policy = load_policy(config.start)
    network = policy.network if isinstance(policy, LearnedPolicy) else None
    if network is None or network.shape != problem.shape:
        found = "no network" if network is None else f"a network of {network.shape}"
        raise TrainingError(f"start: {config.start} has {found}; it should be of {problem.shape}")
    return network


def train(
    config: TrainingConfig,
    out: str | Path,
    resume: bool = False,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> LearnedPolicy:
    """Train as configured in the folder `out`; returns the policy that was best in validation.

    resume: continue from the last generation there; with a budget of steps, the result has the same bytes as that of an
    uninterrupted training. A step is a simulated scenario. progress: called after each generation. runner: runs
    scenarios; None: threads, one a core; the result does not depend on it. Raises TrainingError for a configuration
    that cannot be trained, PolicyError for a start policy that cannot be read, Stopped after Ctrl-C.
    """
    with errors_of(config.file):
        settings, problem = EvolutionConfig.of(config), problem_of(config)

    def search() -> Search:
        with errors_of(config.file):
            return Search(start_of(problem), settings, config.seed, inputs_of(problem.head.layout, problem.shape))

    return evolve(
        problem, search, problem.head.policy, settings.scenarios, RunFolder(out), resume, progress, runner
    )  # fmt: skip
