"""Networks: compiled against NumPy, and what of a wrong one is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.learned.forward import hyperbolic_tangent
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.observations.queue import queue_layout
from servegym.errors import PolicyError

pytestmark = pytest.mark.nojit


def by_numpy(network: Network, observation: np.ndarray) -> np.ndarray:
    """The same as plain algebra."""
    shape = network.shape
    inputs = observation.astype("f8")
    if shape.has_slots:
        slots = inputs[shape.whole :].reshape(shape.slots, shape.slot)
        if shape.is_joint:
            slots = np.vstack([np.zeros(shape.slot), slots])
        inputs = np.hstack([np.broadcast_to(inputs[: shape.whole], (len(slots), shape.whole)), slots])
    for i, (weight, bias) in enumerate(network.layers):
        inputs = inputs @ weight.T + bias
        if i + 1 < len(shape.layers):
            inputs = np.tanh(inputs) if shape.activation == "tanh" else np.maximum(inputs, 0)
    if shape.is_joint:
        inputs = np.concatenate([inputs[0, 1:], inputs[1:, 0]])
    return np.tanh(inputs) if shape.output == "tanh" else inputs


shapes = st.builds(
    lambda slots, joint, **more: Shape(
        slot=slots[0], slots=slots[1], kind=("joint" if joint else "shared") if slots[0] else "dense", **more
    ),
    joint=st.booleans(),
    slots=st.one_of(st.just((0, 0)), st.tuples(st.integers(1, 6), st.integers(1, 5))),
    whole=st.integers(1, 9),
    outputs=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    activation=st.sampled_from(["tanh", "relu"]),
    output=st.sampled_from(["plain", "tanh"]),
)  # fmt: skip


@given(shape=shapes, seed=st.integers(0, 2**32), scale=st.sampled_from([0.1, 1.0, 4.0]))
def test_compiled_networks_say_what_numpy_says(shape, seed, scale):
    rng = np.random.default_rng(seed)
    layers = [(rng.normal(0, scale, (o, i)), rng.normal(0, scale, o)) for i, o in shape.layers]
    network = Network.from_layers(shape, layers)
    for (weight, bias), (given_weight, given_bias) in zip(network.layers, layers, strict=True):
        np.testing.assert_array_equal(weight, given_weight)
        np.testing.assert_array_equal(bias, given_bias)
    observation = rng.uniform(-1, 1, shape.observation_size).astype("f4")
    wanted = by_numpy(network, observation)
    np.testing.assert_allclose(network(observation), wanted, rtol=1e-12, atol=1e-12)
    if shape.has_slots:
        filled = int(rng.integers(0, shape.slots + 1))
        some = network(observation, filled)
        known = filled + (shape.outputs - 1 if shape.is_joint else 0)
        np.testing.assert_array_equal(some[:known], network(observation)[:known])
        assert (some[known:] == 0).all()


def test_a_large_network():
    rng = np.random.default_rng(1)
    for shape in (
        Shape("dense", 25, 2, (64, 32)),
        Shape.shared_by(queue_layout(32), hidden=(32, 32), activation="relu"),
    ):
        network = Network.random(shape, rng, 2.0)
        observation = rng.uniform(-1, 1, shape.observation_size).astype("f4")
        np.testing.assert_allclose(network(observation), by_numpy(network, observation), rtol=1e-12, atol=1e-12)
        assert len(network.weights) == shape.count


def test_the_count_of_weights_by_hand():
    assert Shape("dense", 3, 2, (5,)).count == (3 + 1) * 5 + (5 + 1) * 2
    assert Shape("shared", 3, 2, (5,), slot=4, slots=7).count == (7 + 1) * 5 + (5 + 1) * 2
    assert Shape("dense", 3, 2, ()).count == 8


@given(st.floats(-60, 60))
def test_the_hyperbolic_tangent(x):
    assert hyperbolic_tangent(x) == pytest.approx(np.tanh(x), rel=0, abs=3e-16)
    assert hyperbolic_tangent(-x) == -hyperbolic_tangent(x)


def test_the_hyperbolic_tangent_at_its_ends():
    assert [hyperbolic_tangent(x) for x in (0.0, np.inf, -np.inf, 1e300)] == [0.0, 1.0, -1.0, 1.0]


def test_equal_networks_and_pickles():
    shape = Shape("dense", 3, 2, (5,))
    network = Network.random(shape, np.random.default_rng(0))
    assert pickle.loads(pickle.dumps(network)) == network != Network.zeros(shape)
    assert hash(network) == hash(Network(shape, network.weights))
    with pytest.raises(ValueError, match="read-only"):
        network.weights.values[0] = 1.0
    assert Shape.from_json(shape.to_json()) == shape


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: Shape("deep", 3, 2), "kind is 'deep'; it should be one of dense, shared"),
    (lambda: Shape("dense", 3, 2, activation="gelu"), "activation is 'gelu'"),
    (lambda: Shape("dense", 3, 2, output="clip"), "output is 'clip'"),
    (lambda: Shape("dense", 0, 2), "whole is 0; it should be a whole number of 1 or more"),
    (lambda: Shape("dense", 3, 2, (4, 0)), r"hidden\[1\] is 0"),
    (lambda: Shape("dense", 3, True), "outputs is True"),
    (lambda: Shape("shared", 3, 2, slot=4), "slots is 0"),
    (lambda: Shape("dense", 3, 2, slots=4), "a dense network has no slots"),
    (lambda: Shape.from_json({"kind": "dense"}), "activation, hidden, .*: should be exactly"),
    (lambda: Network(Shape("dense", 1, 1, ()), np.zeros(3)), "3 weights; its shape has 2"),
    (lambda: Network(Shape("dense", 1, 1, ()), [1.0, np.nan]), "weight 1 is nan; weights should be finite numbers"),
    (lambda: Network(Shape("dense", 1, 1, ()), [np.inf, 1.0]), "weight 0 is inf"),
    (lambda: Network.from_layers(Shape("dense", 1, 1, ()), []), "0 layers; its shape has 1"),
    (
        lambda: Network.from_layers(Shape("dense", 2, 1, ()), [(np.zeros((2, 1)), np.zeros(1))]),
        r"weight 0 has shape \(2, 1\); it should be \(1, 2\)",
    ),
    (lambda: Network.zeros(Shape("dense", 2, 1))(np.zeros(3)), r"observation of shape \(3,\); it should be \(2,\)"),
])  # fmt: skip
def test_wrong_networks(wrong, message):
    with pytest.raises(PolicyError, match=message):
        wrong()
