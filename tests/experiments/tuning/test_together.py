"""Engine and router as one vector: at its start the bases, byte for byte; each part of it moves its own policy."""

import numpy as np
import pytest

from experiments.tuning import together
from servegym.simulator.runs.simulation import Simulation


@pytest.fixture(scope="module")
def parts():
    return {name: together.part_of(training) for name, training in together.TRAININGS.items()}


@pytest.fixture(scope="module")
def scenario(parts):
    source = parts["router"].problem.source.with_overrides({"requests": 60, "load": 2.0, "device": "a100-llama3-8b"})
    return source(np.random.default_rng(0))


def served(scenario):
    return Simulation(scenario).run().arrays.outcomes.tobytes()


def test_a_vector_begins_with_the_bases(parts, scenario):
    base = served(scenario)
    for names in together.ARMS.values():
        vector = together.Vector(parts, names)
        assert vector.size == sum(len(parts[name].free) for name in names)
        assert served(vector.with_parameters(scenario, np.zeros(vector.size))) == base


def test_each_part_moves_its_own_policy(parts, scenario):
    both, numbers = together.Vector(parts, ("engine", "router")), np.random.default_rng(1).normal(0.0, 3.0, 49)
    engine, router = numbers[:26], numbers[26:]
    assert both.size == len(numbers)
    alone = [together.Vector(parts, (name,)).with_parameters(scenario, own) for name, own in
             (("engine", engine), ("router", router))]  # fmt: skip
    placed = both.with_parameters(scenario, numbers)
    assert placed.scheduler.to_json() == alone[0].scheduler.to_json() != scenario.scheduler.to_json()
    assert placed.router.to_json() == alone[1].router.to_json() != scenario.router.to_json()
    assert len({served(one) for one in (scenario, *alone, placed)}) == 4


@pytest.mark.parametrize(("lead", "verdict"), [(0.02, "holds"), (0.0, "refuted")])
def test_the_verdict_is_by_both_differences(lead, verdict):
    noise = np.random.default_rng(0).normal(0.0, 0.01, (4, 64))
    ratios = 0.8 + noise + np.array([[0.0], [0.05], [0.02], [0.05 + lead]])
    names = ("base", *together.ARMS)
    found = {name: np.stack([own, own, 10 * own], axis=1) for name, own in zip(names, ratios, strict=True)}
    text = together.page(found, dict.fromkeys(together.ARMS, 1.0), 10)
    assert f"**Verdict**: {verdict}." in text and "1,920 scenarios" in text
    assert all(text.count(f"\n| {name} | ") == 1 for name in names)
