"""Controllers: parameters from actions by hand; the base where nothing is learned; whole runs."""

import math
import pickle

import numpy as np
import pytest

from servegym.baselines.learned.controller import control_table, controlled, default_controls, set_parameters
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Parameter, Policy, last_ranked_first
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.learned.cases import bytes_of, check_served, served_by

BASES = ("slide-batching", "sarathi-fcfs", "vllm-v1", "flow-prefill", "weighted-vtc")

KNOBS = Policy(
    "knobs", "scheduler", "", "", last_ranked_first,
    parameters=(
        Parameter("word", "a", "", choices=("a", "b")),
        Parameter("linear", 2.0, "", 1.0, 10.0),
        Parameter("log", 1.0, "", 0.01, 100.0, log=True),
        Parameter("whole", 8, "", 1, 512, log=True, integer=True),
        Parameter("open", 1.0, "", 0.0),
        Parameter("at_its_end", 3.0, "", 3.0, 4.0),
    ),
)  # fmt: skip
DEFAULTS = np.array([0.0, 2.0, 1.0, 8.0, 1.0, 3.0])


def network_for(base: Policy, controls: tuple[str, ...] | None = None, seed: int | None = None) -> Network:
    shape = Shape.dense_on(engine_layout(), len(controls or default_controls(base)), hidden=(8,))
    return Network.zeros(shape) if seed is None else Network.random(shape, np.random.default_rng(seed), 4.0)


def set_by(action: list[float], controls: tuple[str, ...] = ("linear", "log", "whole")) -> list[float]:
    out = np.full(6, np.nan)
    set_parameters(DEFAULTS, control_table(KNOBS, controls), np.array(action), out)
    return out.tolist()


@pytest.mark.nojit
@pytest.mark.parametrize(("action", "wanted"), [
    ([0, 0, 0], [2, 1, 8]),
    ([1, 1, 1], [10, 100, 512]),
    ([-1, -1, -1], [1, 0.01, 1]),
    ([0.5, 0.5, 0.5], [6, 10, 64]),  # 2 + 8 / 2; 1 * 100^0.5; 8 * 64^0.5
    ([-0.5, -0.5, -1 / 3], [1.5, 0.1, 4]),  # 8 / 8^(1/3) = 4
    ([7, -7, 0.1], [10, 0.01, 12]),  # beyond 1 counts as 1; 8 * 64^0.1 = 12.1
    ([math.nan, 0, 0], [2, 1, 8]),
])  # fmt: skip
def test_parameters_from_an_action(action, wanted):
    word, *numbers, free, fixed = set_by(action)
    assert (word, free, fixed) == (0.0, 1.0, 3.0), "what is not controlled stays"
    assert numbers == pytest.approx(wanted, rel=1e-14)


@pytest.mark.nojit
def test_no_action_is_exactly_the_default_and_every_value_is_within_bounds():
    table = control_table(KNOBS, ("linear", "log", "whole"))
    rng, out = np.random.default_rng(0), np.zeros(6)
    for _ in range(300):
        defaults = DEFAULTS * rng.uniform(0.999, 1.001, 6)
        set_parameters(defaults, table, np.zeros(3), out)
        np.testing.assert_array_equal(out, defaults)
        set_parameters(defaults, table, rng.choice([-1.0, 1.0, 0.3, -0.7], 3), out)
        assert (table[:, 1] <= out[1:4]).all() and (out[1:4] <= table[:, 2]).all()


def test_default_controls():
    assert default_controls(KNOBS) == ("linear", "log")
    assert default_controls(scheduler("sarathi-fcfs")) == ("max_num_batched_tokens", "max_num_seqs")
    controls = default_controls(scheduler("slide-batching"))
    assert {"gamma", "eta"} <= set(controls) and not {"load", "max_num_batched_tokens"} & set(controls)
    with pytest.raises(PolicyError, match="none has no parameter that a controller could set"):
        default_controls(Policy("none", "scheduler", "", "", last_ranked_first))


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_with_weights_of_0_it_is_the_base_byte_for_byte(name):
    base = scheduler(name)
    for seed in range(6):
        learned = controlled(base, None, network_for(base))
        assert bytes_of(served_by(learned, seed, engines=1 + seed % 2)) == bytes_of(
            served_by(base, seed, engines=1 + seed % 2)
        )


@pytest.mark.slow
def test_settings_of_the_base_are_the_defaults():
    base = scheduler("slide-batching:gamma=3,load=c")
    learned = controlled(base, ("gamma",), network_for(base, ("gamma",)))
    assert learned.label == "learned:slide-batching" and learned.settings == {}
    assert bytes_of(served_by(learned, 3)) == bytes_of(served_by(base, 3))


@pytest.mark.parametrize("name", ["slide-batching", "sarathi-fcfs"])
def test_a_run_with_random_weights(name):
    base = scheduler(name)
    differ = 0
    for seed in range(8):
        simulation = served_by(controlled(base, None, network_for(base, seed=seed)), seed)
        check_served(simulation)
        differ += bytes_of(simulation) != bytes_of(served_by(base, seed))
        again = served_by(controlled(base, None, network_for(base, seed=seed)), seed)
        assert bytes_of(again) == bytes_of(simulation)
    assert differ, "weights that change nothing test nothing"


def test_what_the_output_says_is_what_the_base_is_given():
    """A network of biases only: a = tanh(1) for gamma at every decision; the same run as with that gamma as setting."""
    base = scheduler("slide-batching")
    shape = Shape.dense_on(engine_layout(), 1, hidden=(), output="tanh")
    network = Network.from_layers(shape, [(np.zeros((1, shape.whole)), np.ones(1))])
    gamma = 10.0 ** np.tanh(1.0)  # from 1 up to 10, logarithmic
    with_setting = served_by(base.with_settings(gamma=gamma), 5)
    assert bytes_of(served_by(controlled(base, ("gamma",), network), 5)) == bytes_of(with_setting)
    assert bytes_of(with_setting) != bytes_of(served_by(base, 5))


def test_victims_are_chosen_with_the_parameters_that_were_set():
    """After a run the base's parameters stand where its victims' function finds them."""
    base = scheduler("slide-batching")
    learned = controlled(base, ("gamma",), network_for(base, ("gamma",), seed=1))
    simulation = served_by(learned, 2)
    set_to = simulation.arrays.parameters[0, : len(base.parameters)]
    fixed = [i for i, parameter in enumerate(base.parameters) if parameter.name != "gamma"]
    numbers = base.numbers(simulation.scenario.fact)
    np.testing.assert_array_equal(set_to[fixed], numbers[fixed])
    assert set_to[0] != numbers[0] and 0.1 <= set_to[0] <= 10


def test_a_run_can_be_run_again():
    base = scheduler("slide-batching")
    simulation = served_by(controlled(base, None, network_for(base, seed=4)), 4)
    first = bytes_of(simulation)
    Simulation.reset(simulation)
    simulation.run()
    assert bytes_of(simulation) == first


def test_pickling_and_equality():
    base = scheduler("slide-batching")
    learned = controlled(base, None, network_for(base, seed=4))
    again = pickle.loads(pickle.dumps(learned))
    assert again == learned and again.function is learned.function
    assert learned != controlled(base, None, network_for(base, seed=5))
    document = learned.to_json()
    assert document["base"] == base.to_json() and document["weights_sha256"] == learned.weights.sha256


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda base: controlled(base, ("gama",), network_for(base, ("gamma",))), "gama cannot be controlled; it can"),
    (lambda base: controlled(base, ("load",), network_for(base, ("gamma",))), "load cannot be controlled"),
    (lambda base: controlled(base, (), network_for(base)), r"controls \(none\); name one or more, each once"),
    (lambda base: controlled(base, ("eta", "eta"), network_for(base)), "controls eta, eta"),
    (lambda base: controlled(base, ("eta",), network_for(base, ("a", "b"))), "has 2 outputs; it should have 1"),
    (
        lambda base: controlled(base, ("eta",), Network.zeros(Shape("dense", 3, 1))),
        r"the network takes \(3, 0, 0\) .* its observation has \(25, 0, 0\)",
    ),
    (
        lambda base: controlled(base, ("eta",), Network.zeros(Shape("shared", 3, 1, slot=2, slots=2))),
        "the network is shared; it should be dense",
    ),
    (
        lambda base: controlled(controlled(base, None, network_for(base)), None, network_for(base)),
        "the base should not be one",
    ),
])  # fmt: skip
def test_what_does_not_fit(wrong, message):
    with pytest.raises(PolicyError, match=message):
        wrong(scheduler("slide-batching"))
