"""Routing and scaling: the base where nothing is learned, single choices by hand, whole runs."""

import pickle

import numpy as np
import pytest

from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.routing import LAYOUTS, QUEUES, best_engine, routed
from servegym.baselines.learned.scaling import best_choice, choice_of, choices_of, scaled
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.tiers import SCALED_FIELDS, tiers_layout
from servegym.baselines.registry import router, router_names, scaler
from servegym.errors import PolicyError
from servegym.simulator.records.types import ENGINE_SNAPSHOT, MOVE, REQUEST
from tests.any_router import SCALER
from tests.baselines.learned.cases import bytes_of, check_served, served_by

HOLDS_OR_MOVES = ("polyserve", "polyserve-optimal")


def by_field(field: str, sign: float, slots: int = 4, sees: str = QUEUES) -> Network:
    """A score that is one number of a slot."""
    layout = LAYOUTS[sees](slots)
    weight = np.zeros((1, len(layout.whole_fields) + len(layout.slot_fields)))
    weight[0, len(layout.whole_fields) + [f.name for f in layout.slot_fields].index(field)] = sign
    return Network.from_layers(Shape.shared_by(layout, hidden=()), [(weight, np.zeros(1))])


def network_of(seed: int | None = None, slots: int = 4) -> Network:
    shape = Shape.shared_by(routing_layout(slots), hidden=(8,))
    return Network.zeros(shape) if seed is None else Network.random(shape, np.random.default_rng(seed), 4.0)


@pytest.mark.nojit
@pytest.mark.parametrize(("scores", "chosen", "wanted"), [
    ([0, 0, 0, 0], 2, 2),  # all alike: the base's
    ([1, 0, 1, 9], 2, 2),  # one of the best: the base's; engine 3 is not up
    ([1, 1, 0, 0], 2, 0),  # not one of the best: the first of them
    ([0, 5, 0, 0], 0, 1),
    ([np.nan, 0, 0, 0], 1, 1),
    ([7], 0, 0),  # fewer slots than engines
])  # fmt: skip
def test_the_best_engine(scores, chosen, wanted):
    snapshots, request = np.zeros(4, ENGINE_SNAPSHOT), np.zeros(1, REQUEST)[0]
    snapshots["up"] = [1, 1, 1, 0]
    assert best_engine(snapshots, request, chosen, np.array(scores, "f8")) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(router_names()) - set(HOLDS_OR_MOVES)))
def test_a_score_for_what_the_base_chose_is_the_base(name):
    base = router(name)
    for seed in range(4):
        role = "both" if seed % 2 else "prefill"
        wanted = bytes_of(served_by(base, seed, 4, role))
        assert bytes_of(served_by(routed(base, by_field("chosen", 1.0)), seed, 4, role)) == wanted
        assert bytes_of(served_by(routed(base, network_of()), seed, 4, role)) == wanted


@pytest.mark.parametrize("name", ["min-load", "prefix-affinity", "predicted-cost"])
def test_the_least_cost_of_the_base_is_the_base(name):
    base = router(name)
    for seed in range(3):
        learned = routed(base, by_field("base_gap", -1.0, sees="caching"), sees="caching")
        assert bytes_of(served_by(learned, seed, 4)) == bytes_of(served_by(base, seed, 4))


@pytest.mark.slow
def test_weights_of_0_are_a_base_that_holds_and_moves():
    for name in sorted(set(router_names()) & set(HOLDS_OR_MOVES)):
        base = router(name)
        for seed in range(3):
            assert bytes_of(served_by(routed(base, network_of()), seed, 4)) == bytes_of(served_by(base, seed, 4))


@pytest.mark.parametrize("name", ["min-load", "round-robin"])
def test_runs_with_random_weights(name):
    base, differ = router(name), 0
    for seed in range(6):
        role = "both" if seed % 2 else "prefill"
        simulation = served_by(routed(base, network_of(seed)), seed, 4, role)
        check_served(simulation)
        differ += bytes_of(simulation) != bytes_of(served_by(base, seed, 4, role))
    assert differ, "scores that change nothing test nothing"


def test_a_score_of_one_feature():
    """Against what the base chose, with two engines: each request goes to the other one."""
    simulation = served_by(routed(router("round-robin"), by_field("chosen", -1.0)), 1, 2)
    check_served(simulation)
    engine = simulation.arrays.requests["engine"]
    np.testing.assert_array_equal(engine, 1 - np.arange(len(engine)) % 2)


def test_engines_without_a_slot_get_what_the_base_sends_there():
    base = router("round-robin")
    simulation = served_by(routed(base, by_field("chosen", -1.0, slots=2)), 1, 4)
    check_served(simulation)
    engine, base_engine = simulation.arrays.requests["engine"], np.arange(len(simulation.arrays.requests)) % 4
    np.testing.assert_array_equal(engine[base_engine >= 2], base_engine[base_engine >= 2])
    np.testing.assert_array_equal(engine[base_engine < 2], 1 - base_engine[base_engine < 2])


# Scaling


def scaling_network(seed: int | None = None, tiers: int = 8) -> Network:
    shape = Shape.shared_by(tiers_layout(4), choices_of(tiers), hidden=(8,))
    return Network.zeros(shape) if seed is None else Network.random(shape, np.random.default_rng(seed), 4.0)


@pytest.mark.nojit
def test_choices():
    moves = np.zeros(3, MOVE)
    moves["tier"], moves["closed"] = [-1, 0, 2], [0, 1, 0]
    assert [choice_of(move) for move in moves] == [0, 3, 6] and choices_of(2) == 6
    assert best_choice(np.zeros(6), 2, 3) == 3
    assert best_choice(np.array([0, 1, 0, 0, 1, 0.0]), 2, 3) == 1  # the first of the best
    assert best_choice(np.array([0, 1, 0, 0, 1, 0.0]), 2, 4) == 4  # the base's, one of them
    assert best_choice(np.array([0, 1, 0, 0, 0, 9.0]), 1, 0) == 1  # there is no second tier


@pytest.mark.slow
def test_scaling_with_weights_of_0_is_the_base():
    for base in (scaler("polyserve:interval_s=0.02"), SCALER.with_settings(interval_s=0.05, moves=6)):
        for seed in range(4):
            learned = scaled(base, scaling_network())
            assert bytes_of(served_by(learned, seed, 4)) == bytes_of(served_by(base, seed, 4))


def test_scaling_moves_engines():
    base = scaler("polyserve:interval_s=0.02")
    layout = tiers_layout(4)
    weight = np.zeros((choices_of(8), len(layout.whole_fields) + len(layout.slot_fields)))
    up = len(layout.whole_fields) + [field.name for field in SCALED_FIELDS].index("up")
    weight[2, up] = 1.0  # tier 0, open
    network = Network.from_layers(
        Shape.shared_by(layout, choices_of(8), hidden=()), [(weight, np.zeros(choices_of(8)))]
    )
    simulation = served_by(scaled(base, network), 1, 4)
    check_served(simulation)
    assert (simulation.arrays.engines["tier"] == 0).all()


def test_pickling():
    for policy in (routed(router("min-load"), network_of(3)), scaled(scaler("polyserve"), scaling_network(2))):
        again = pickle.loads(pickle.dumps(policy))
        assert again == policy and again.function is policy.function


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: routed(router("min-load"), network_of(), 5), r"the network takes \(13, 22, 4\)"),
    (lambda: routed(router("min-load"), network_of(), sees="caching"), r"the network takes \(13, 22, 4\)"),
    (lambda: routed(scaler("polyserve"), network_of()), "is a scaler; the base should be a router"),
    (lambda: scaled(scaler("static"), scaling_network()), "has no parameter interval_s, so it is never asked"),
    (lambda: scaled(scaler("polyserve"), Network.zeros(Shape.shared_by(tiers_layout(4), 5))), "5 outputs"),
    (lambda: scaled(scaler("polyserve"), Network.zeros(Shape.shared_by(tiers_layout(4), 20))), "20 outputs"),
])  # fmt: skip
def test_what_does_not_fit(wrong, message):
    with pytest.raises(PolicyError, match=message):
        wrong()
