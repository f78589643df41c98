"""Which trainings of MaskablePPO upon two routers are compared, and how each differs from the recipe that ships."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from servegym.evaluation.intervals import Interval, student_interval
from servegym.tuners import evolution
from servegym.tuners.config import TrainingConfig, load_config
from servegym.tuners.training import train

CONFIG = "maskable-ppo-session-fleet"
SESSIONS, MIXED = "session-fleet", "mixed-fleet"
TRIED = 100
HORIZON = "a horizon of 200 s"
EVOLUTION, EPISODES = "by CMA-ES", 432  # on session-fleet
EVOLUTION_CONFIGS = {SESSIONS: "cma-session-fleet", MIXED: "cma-mixed-fleet"}
STEPS, LONG, TIMES = 96_000, "ten times the decisions", 10  # LONG: as the recipe that ships
AFFINITY, COST = "prefix-affinity", "predicted-cost"
ON_MIXED = {"n_steps": 400, "batch_size": 1600}  # an episode of the mixed fleet has 400 requests
MIXED_ENVIRONMENTS, MIXED_STEPS = 32, 64_000
LONG_SEEDS = 3  # of trainings with ten times the decisions or another horizon, and of CMA-ES on mixed-fleet


class Arm(NamedTuple):
    """What is trained: the fleet, the base router, and what differs from the configuration.

    bias: `network.base_bias`. hyperparameters: those that differ. change: what it tries, empty: `STEPS` decisions.
    A change was tried from the seed `TRIED`, `repeats` times; one of them is another algorithm.
    """

    place: str
    base: str
    bias: float
    hyperparameters: Mapping[str, Any] = {}
    change: str = ""
    repeats: int = 1

    @property
    def name(self) -> str:
        """Of its trainings' folders."""
        return "-".join(filter(None, (self.place, self.base, self.change.replace(" ", "-"))))


ARMS = (
    Arm(SESSIONS, AFFINITY, 3.0),
    Arm(SESSIONS, COST, 6.0),
    Arm(SESSIONS, COST, 6.0, {"trace_s": 20.0, "horizon_s": 200.0}, "rewards of others"),
    Arm(SESSIONS, COST, 20.0, {"learning_rate": 0.02, "learning_rate_end": 0.002}, "small residuals"),
    Arm(SESSIONS, COST, 1.0, {}, EVOLUTION),
    Arm(SESSIONS, AFFINITY, 3.0, {"horizon_s": 200.0}, HORIZON, LONG_SEEDS),
    Arm(SESSIONS, AFFINITY, 3.0, {}, LONG, LONG_SEEDS),
    Arm(SESSIONS, COST, 6.0, {}, LONG),
    Arm(MIXED, AFFINITY, 1.0, ON_MIXED),
    Arm(MIXED, COST, 6.0, ON_MIXED),
    Arm(MIXED, COST, 1.0, {}, EVOLUTION, LONG_SEEDS),
    Arm(MIXED, AFFINITY, 1.0, ON_MIXED, LONG, LONG_SEEDS),
    Arm(MIXED, COST, 6.0, ON_MIXED, LONG, LONG_SEEDS),
)


class Trained(NamedTuple):
    """An arm's trainings. curves: of each seed, its validations, oldest first. minutes: of processors, of each."""

    arm: Arm
    curves: Sequence[Sequence[Mapping[str, Any]]]
    minutes: Sequence[float]
    policies: Sequence[Path]

    def over_steps(self, figure: str) -> tuple[list[int], list[Interval]]:
        """A figure of validations less the base's, over seeds: at which steps, and its interval there."""
        steps = [row["steps"] for row in self.curves[0]]
        values = np.array([[row[figure] for row in curve] for curve in self.curves])
        return steps, [student_interval(column) for column in values.T]


def evolution_of(arm: Arm, seed: int) -> TrainingConfig:
    """The training of an arm by CMA-ES, upon the defaults of its base; on mixed-fleet else as it ships."""
    config = load_config(EVOLUTION_CONFIGS[arm.place])
    scenarios = {**config.scenarios, "router": arm.base}
    config = dataclasses.replace(config, name=arm.name, seed=seed, scenarios=scenarios)
    if arm.place == MIXED:
        return config
    return dataclasses.replace(
        config,
        validation=dataclasses.replace(load_config(CONFIG).validation, every_steps=EPISODES // 4),
    ).replaced(steps=EPISODES)


def config_of(arm: Arm, seed: int, steps: int | None) -> TrainingConfig:
    """The training of an arm. steps: decisions, but by CMA-ES, which has its own number of episodes."""
    if arm.change == EVOLUTION:
        return evolution_of(arm, seed)
    config = load_config(CONFIG)
    scenarios = {**config.scenarios, "router": arm.base}
    if arm.place == MIXED:
        del scenarios["rate_per_s"]
        config = dataclasses.replace(
            config,
            environments=MIXED_ENVIRONMENTS,
            validation=dataclasses.replace(config.validation, every_steps=MIXED_STEPS // 5),
        )
    decisions = (steps or (MIXED_STEPS if arm.place == MIXED else STEPS)) * (TIMES if arm.change == LONG else 1)
    return dataclasses.replace(
        config,
        name=arm.name,
        arguments={**config.arguments, "preset": arm.place},
        scenarios=scenarios,
        network=dataclasses.replace(config.network, base_bias=arm.bias),
        hyperparameters={**config.hyperparameters, **arm.hyperparameters},
        seed=seed,
    ).replaced(steps=decisions)


def trained(arms: Sequence[Arm], folder: Path, seeds: int, steps: int | None) -> Iterator[Trained]:
    """Train what is not there yet, and read all."""
    for arm in arms:
        of_arm = [TRIED + k for k in range(arm.repeats)] if arm.change else list(range(seeds))
        runs = [folder / f"{arm.name}-{seed}" for seed in of_arm]
        for seed, run in zip(of_arm, runs, strict=True):
            if not (run / "summary.json").is_file():
                (evolution.train if arm.change == EVOLUTION else train)(config_of(arm, seed, steps), run)
                print(f"{run.name}: trained", flush=True)
        curves = [[json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()] for run in runs]
        minutes = [json.loads((run / "summary.json").read_text())["cpu_minutes"] for run in runs]
        yield Trained(arm, curves, minutes, [run / "policy.json" for run in runs])
