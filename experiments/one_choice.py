"""What one other choice of a router changes: for the request that it is about, and for all others.

In an episode under a base router one request goes to the engine that the base finds second best; all else is the
base's. What requests earn then, less what they earn under the base alone, is what learning has to tell from noise.
"""

from typing import NamedTuple

import numpy as np

from servegym.baselines.learned.routing import CACHES, caching_layout
from servegym.envs.cluster_routing import ClusterRoutingEnv, random_clusters
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.presets import spelled_out
from servegym.simulator.inputs.scenario import Scenario
from servegym.tuners.rewards import Episode

ENGINES = 4
EARLIER = 0.7  # of an episode's decisions, of which one is changed: later ones have few requests behind them


class Changed(NamedTuple):
    """In requests: 1 is what a request earns that is in time and attains. own: of the request itself; soon: of those
    decided on in the 20 s after it; others: of all but itself."""

    own: float
    soon: float
    others: float


def earned_by(scenario: Scenario, changed: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """float64[requests], twice, and a request: gain over the mean ideal gain plus attainment, arrivals, s, and the
    request of the decision that was changed.

    changed: which decision goes to the base's second best; None: all are the base's.
    """
    env = ClusterRoutingEnv(scenario, engines=ENGINES, sees=CACHES)
    observation, info = env.reset()
    gaps = [field.name for field in caching_layout(ENGINES).slot_fields].index("base_gap")
    over, step, request = False, 0, -1
    while not over:
        action = info["base_action"]
        if step == changed:
            gap = env.interface.layout.parts(observation)["engine"][:, gaps].copy()
            gap[action] = np.inf
            action, request = int(gap.argmin()), int(env.simulation.arrays.status[0].deciding_request)
        observation, _, terminated, truncated, info = env.step(action)
        over, step = terminated or truncated, step + 1
    run, workload = env.simulation.arrays, scenario.workload
    ideal = float(scenario.gain.ideal(workload).sum())
    earned = Episode(env.simulation, ideal, 1.0).earned(run) * len(workload) / 2
    return earned, run.requests["arrival_s"].copy(), request


def changes(preset: str, base: str, episodes: int, decisions: int) -> np.ndarray:
    """float64[episodes, decisions, 3]: `Changed` of some decisions of each episode, drawn at random."""
    source = random_clusters(ENGINES).with_overrides(spelled_out({"preset": preset, "split": "train", "router": base}))
    found = []
    for seed in range(episodes):
        scenario, random = source(np.random.default_rng(seed)), np.random.default_rng([seed, 1])
        before, _, _ = earned_by(scenario)
        for step in random.integers(int(EARLIER * len(scenario.workload)), size=decisions):
            after, arrival_s, request = earned_by(scenario, int(step))
            less = after - before
            since_s = arrival_s - arrival_s[request]
            soon = (since_s > 0) & (since_s <= 20.0)
            found.append(Changed(less[request], less[soon].sum(), less.sum() - less[request]))
    return np.array(found).reshape(episodes, decisions, -1)


def changes_table(preset: str, bases: tuple[str, ...], episodes: int, decisions: int) -> str:
    """A row a base: means with intervals over episodes, and standard deviations of one decision's, of `Changed`."""
    rows = []
    for base in bases:
        found, cells = changes(preset, base, episodes, decisions), []
        for figure in range(found.shape[-1]):
            by_episode = student_interval(found[..., figure].mean(axis=1))
            cells += [by_episode.text("+.2f"), f"{found[..., figure].std(ddof=1):.2f}"]
        rows.append((f"`{base}`", str(episodes * decisions), *cells))
    names = ("its own request", "deviation", "those of the next 20 s", "deviation", "all others", "deviation")
    return table(("base", "decisions", *names), rows)
