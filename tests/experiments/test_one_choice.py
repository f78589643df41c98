"""What one other choice changes: nothing where none is made, and the request that it is about where one is."""

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

from experiments import one_choice
from servegym.envs.cluster_routing import random_clusters
from servegym.scenarios.presets import spelled_out


@pytest.fixture(scope="module")
def scenario():
    overrides = {"preset": "session-fleet", "split": "train", "router": "predicted-cost", "requests": 60}
    return random_clusters(4).with_overrides(spelled_out(overrides))(np.random.default_rng(0))


def test_without_a_change_it_is_the_base(scenario) -> None:
    first, arrival_s, request = one_choice.earned_by(scenario)
    again, _, _ = one_choice.earned_by(scenario, 10**6)  # there is no such decision
    assert request == -1 and (first == again).all()
    assert len(arrival_s) == 60 and first.min() >= 0 and first.max() > 0.9


def test_a_changed_choice_is_about_one_request(scenario) -> None:
    _, arrival_s, request = one_choice.earned_by(scenario, 3)
    assert request == np.argsort(arrival_s, kind="stable")[3]


def test_a_row_sums_over_requests(monkeypatch) -> None:
    """Of three requests, 15 s apart, the second is the one that is sent elsewhere."""
    runs = {None: np.array([1.0, 1.0, 0.0]), "changed": np.array([1.0, 0.5, 0.75])}
    arrival_s = np.array([0.0, 15.0, 30.0])

    def earned_by(scenario, changed=None):
        return runs[None if changed is None else "changed"], arrival_s, 1

    monkeypatch.setattr(one_choice, "earned_by", earned_by)
    found = one_choice.changes("session-fleet", "predicted-cost", 1, 2)
    assert found.tolist() == [[[-0.5, 0.75, 0.75]] * 2]
