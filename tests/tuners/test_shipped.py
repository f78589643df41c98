"""The policies that ship: they say what they were trained on, and are ahead of the rule they correct."""

from __future__ import annotations

import dataclasses
import importlib.resources
from pathlib import Path

import numpy as np
import pytest

from servegym.baselines import registry
from servegym.baselines.artifact.document import read_document
from servegym.baselines.artifact.files import load_policy
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.panels.provenance import TrainedOn
from servegym.scenarios.demand import STEADY
from servegym.scenarios.presets import EPISODES, PRESETS, spelled_out
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.config import TrainingConfig, from_plain, load_config

FOLDER = Path(str(importlib.resources.files("servegym.baselines.learned.policies")))
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
# Of a policy trained when a scheduler had another default: where its configuration says so now, and what.
THEN = {"cma-engine-batching": ("arguments", ",steps=ignore"), "cma-cluster-routing": ("scenarios", ":steps=ignore")}
TUNED = {"session-fleet": "lost-gain"}  # by servegym tune, before the training
PANELS = {"scheduler": "held_out", "router": "held_out_routers"}


def test_there_is_one_for_batches_and_one_for_routes():
    assert {load_policy(FOLDER / f"{name}.json").kind for name in NAMES} == {"scheduler", "router"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_its_configuration_trains(name):
    document = read_document(FOLDER / f"{name}.json")
    provenance = document["provenance"]
    config = provenance["config"]
    if name in THEN:
        part, settings = THEN[name]
        config[part]["scheduler"] += settings
    config.pop("curriculum", None)  # keys of then, which were not used
    for key in ("attainment_floor", "wait_cap_s", "penalty"):
        config.get("objective", {}).pop(key, None)
    assert from_plain(TrainingConfig, config, "") == load_config(provenance["training"])
    assert provenance.get("cpu_minutes", provenance["minutes"]) < 20  # the first ones say only minutes by the clock


@pytest.mark.parametrize("name", NAMES)
def test_it_was_trained_on_nothing_it_is_judged_on(name):
    path = FOLDER / f"{name}.json"
    trained_on = TrainedOn.from_json(read_document(path)["provenance"]["trained_on"], str(path))
    panel = load_panel(PANELS[load_policy(path).kind])
    assert not set(trained_on.traces) & set(panel.traces)
    assert all(last < panel.first_seed for _, last in trained_on.seeds)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_ahead_of_the_rule_that_it_corrects(name):
    """Compare what its training sought with that of its base, or of the same rule at its defaults if that was tuned."""
    document = read_document(FOLDER / f"{name}.json")
    policy = load_policy(FOLDER / f"{name}.json")
    rule = registry.router(TUNED[name]) if name in TUNED else policy.base
    attainment = document["provenance"]["config"].get("objective", {}).get("attainment", 0.0)
    engines = {"engines": 4, "router": "min-load"} if policy.kind == "router" else {}
    source = EPISODES.replaced(load=1.4, requests=400, load_profile=(STEADY,), **engines)
    if name in PRESETS:
        source = EPISODES.with_overrides(spelled_out({"preset": name, "split": "test"}))
    differences = []
    for seed in range(970_000, 970_006):
        scenario = source(np.random.default_rng(seed))
        runs = (Simulation(dataclasses.replace(scenario, **{policy.kind: one})).run() for one in (policy, rule))
        ours, its = (run.summary["tdg_ratio"] + attainment * run.summary["slo_attainment"] for run in runs)
        differences.append(ours - its)
    assert np.mean(differences) > 0.0
