"""Weights of a policy: values that do not change, behind its parameters."""

import dataclasses
import pickle

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Weights, from_json

pytestmark = pytest.mark.nojit


def test_they_are_values():
    numbers = np.array([1.0, -0.0, 3.0])
    weights = Weights(numbers)
    numbers[0] = 9.0
    assert weights.values.tolist() == [1.0, 0.0, 3.0] and len(weights) == 3, "a copy"
    with pytest.raises(ValueError, match="read-only"):
        weights.values[0] = 2.0
    assert weights == Weights([1.0, -0.0, 3.0]) and hash(weights) == hash(Weights([1.0, -0.0, 3.0]))
    assert weights != Weights([1.0, 0.0, 3.0]), "the sign of a zero is a byte too"
    assert weights != [1.0, -0.0, 3.0] and Weights() == Weights([])
    again = pickle.loads(pickle.dumps(weights))
    assert again == weights and not again.values.flags.writeable
    assert weights.sha256 != Weights([1.0]).sha256 and weights.sha256[:8] in repr(weights)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_they_are_finite(bad):
    with pytest.raises(PolicyError, match=f"weight 1 is {bad}; weights should be finite numbers"):
        Weights([0.0, bad])


def test_a_policy_with_weights():
    plain = scheduler("edf:batch_size=4")
    policy = dataclasses.replace(plain, weights=Weights([0.5, 0.25]), memory=3)
    facts = {}.__getitem__
    assert policy.numbers(facts).tolist() == [*plain.numbers(facts), 0.5, 0.25, 0, 0, 0]
    assert policy.with_settings(batch_size=5).numbers(facts)[-5:].tolist() == [0.5, 0.25, 0, 0, 0]
    assert policy != plain and policy == dataclasses.replace(policy, weights=Weights([0.5, 0.25]))
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert "weights_sha256" not in plain.to_json() and from_json(plain.to_json()) == plain
    with pytest.raises(PolicyError, match="edf has weights, which are not in this JSON; load the file it was saved to"):
        from_json(policy.to_json())
