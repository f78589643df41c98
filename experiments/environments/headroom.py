"""What there is to win in an environment: random actions, its base, the best rule that ships, the best run found.

    python -m experiments.environments.headroom [ENVIRONMENT ...] [--preset NAME]  # measures; writes envs/headroom.json
    python -m experiments.environments.headroom --page docs/results/environments.md  # writes the tables

Each preset, and what is drawn without one, on the same held-out episodes for all (split `test`). The best rule is
chosen on other episodes (split `validation`). The best run found is, in each episode, the best of those that anybody
here made; where schedulers decide, those of a search that knows the future are among them.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console

from experiments.environments.rules import rules_of
from servegym.envs.agents import BaseAgent, RandomAgent, play
from servegym.envs.env import ServingEnv
from servegym.envs.registration import DEFAULT, ENVIRONMENTS, FILE
from servegym.errors import ServegymError
from servegym.evaluation.headroom.search import rounds, score_of
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.presets import PRESETS, presets_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import AT_CHECKS, AT_ROUTES
from servegym.simulator.runs.simulation import Simulation

EPISODES, BUDGET = 8, 100  # of each preset; runs of a search in each
SCHEDULER = "scheduler"
ROLES = {AT_ROUTES: "router", AT_CHECKS: "scaler"}  # whose decisions an environment has; else the scheduler's
BEGIN, END = "<!-- headroom: written by experiments.environments.headroom -->", "<!-- end of headroom -->"


def measured_presets(name: str) -> list[str]:
    """Those of an environment in which there is a TDG ratio to win."""
    return [preset for preset, said in presets_of(name).items() if said.gain_alone]


def ratios_of(scenarios: list[Scenario], role: str, policy: Policy) -> np.ndarray | None:
    """TDG ratios of a policy in a role; None: it cannot serve these."""
    try:
        runs = [Simulation(dataclasses.replace(one, **{role: policy})).run() for one in scenarios]  # type: ignore[arg-type]
    except ServegymError:
        return None
    return np.array([float(run.summary["tdg_ratio"]) for run in runs])


def searched(scenario: Scenario, budget: int) -> float:
    """The TDG ratio of the best run that a search of schedulers finds."""
    search = rounds(scenario)
    points, best, tried = next(search), 0.0, 0
    while tried < budget:
        gains = [score_of(scenario, point) for point in points]
        best, tried = max(best, *gains), tried + len(points)
        points = search.send(gains)
    return best / float(scenario.gain.ideal(scenario.workload).sum())


class Rules:
    """What the rules of a role gain in the episodes of a source: asked for several environments, run once."""

    def __init__(self, episodes: int, budget: int):
        self.episodes, self.budget = episodes, budget
        self._known: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}

    def measured(self, source: Any, role: str) -> tuple[str, np.ndarray, np.ndarray]:
        """The best rule, its TDG ratios, and those of the best run of each episode."""
        key = json.dumps([source.to_json(), role])
        if key not in self._known:
            self._known[key] = self._measure(source, role)
        return self._known[key]

    def _measure(self, source: Any, role: str) -> tuple[str, np.ndarray, np.ndarray]:
        drawn = {}
        for split in ("validation", "test"):
            of_split = source.with_overrides({"split": split})
            drawn[split] = [of_split(np.random.default_rng(seed)) for seed in range(self.episodes)]
        chosen, tested = {}, {}
        for name, policy in rules_of(role).items():
            validation, test = (ratios_of(drawn[split], role, policy) for split in ("validation", "test"))
            if validation is not None and test is not None:
                chosen[name], tested[name] = float(validation.mean()), test
        best = max(chosen, key=chosen.__getitem__)
        found = np.max(list(tested.values()), axis=0)
        if role == SCHEDULER:
            found = np.maximum(found, [searched(one, self.budget) for one in drawn["test"]])
        return best, tested[best], found


def measured(name: str, preset: str, rules: Rules) -> dict[str, Any]:
    words: dict[str, Any] = {} if preset == DEFAULT else {"preset": preset}
    env = gym.make(f"servegym:{name}", disable_env_checker=True, split="test", **words).unwrapped
    assert isinstance(env, ServingEnv)
    best, rule, found = rules.measured(env.source, ROLES.get(env.interface.stop_at, SCHEDULER))
    seeds = range(rules.episodes)
    random = np.array([play(env, RandomAgent(env.action_space, seed), seed) for seed in seeds])
    base = np.array([play(env, BaseAgent(), seed) for seed in seeds])
    ratios = {"random": random, "base": base, "rule": rule, "found": np.max([found, random, base], axis=0)}
    return {
        "best_rule": best,
        **{policy: round(float(values.mean()), 4) for policy, values in ratios.items()},
        **{
            f"{policy}_minus_base": [round(number, 4) for number in student_interval(values - base)]
            for policy, values in ratios.items()
            if policy != "base"
        },
    }


def tables(document: dict[str, Any]) -> str:
    """The tables of the page, one an environment."""
    lines = []
    for name, rooms in document["environments"].items():
        rows = [
            [
                f"`{preset}`" if preset != DEFAULT else preset, f"{room['random']:.3f}", f"{room['base']:.3f}",
                f"{room['rule']:.3f}", f"`{room['best_rule']}`", f"{room['found']:.3f}",
                Interval(*room["found_minus_base"]).in_words("+.3f"),
            ]
            for preset, room in rooms.items()
        ]  # fmt: skip
        heads = ("preset", "random", "base", "best rule", "which", "best found", "minus the base (95 %)")
        lines += [f"**{name}**", "", table(heads, rows)]
    return "\n".join(lines)


def write_page(page: Path, document: dict[str, Any]) -> None:
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables(document)}\n{END}{rest.partition(END)[2]}", "utf-8")


def main() -> None:
    known = [name for name, _, _ in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help="none: all")
    parser.add_argument("--preset", action="append", choices=(DEFAULT, *PRESETS), help="none: all; repeatable")
    parser.add_argument("--page", type=Path, help="write the tables of this page, and measure nothing")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--budget", type=int, default=BUDGET, help="runs of a search, in each episode")
    options = parser.parse_args()
    document = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"environments": {}}
    if options.page is None:
        rules, console = Rules(options.episodes, options.budget), Console(stderr=True)
        for preset in options.preset or (DEFAULT, *PRESETS):
            for name in options.environments or known:
                if preset != DEFAULT and preset not in measured_presets(name):
                    continue
                room = measured(name, preset, rules)
                console.print(name, preset, room, highlight=False)
                document["environments"].setdefault(name, {})[preset] = room
                document |= {"episodes": options.episodes, "budget": options.budget}
                FILE.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    else:
        write_page(options.page, document)


if __name__ == "__main__":
    main()
