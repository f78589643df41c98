"""TierScaling-v0: when it asks, what an action does, and which scenarios it is for."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import servegym
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.scaling import choice_of, choices_of, scaled
from servegym.envs.agents import BaseAgent, play
from servegym.envs.env import ServingEnv
from servegym.envs.tier_scaling import TierScalingEnv
from servegym.scenarios.presets import PRESETS
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import POOL, ROLE_DECODE, ROLE_PREFILL
from servegym.tuners.decision_head import HEADS, NetworkAgent
from tests.envs.small import drawn, make, outcome_bytes, simulated, steps

NAME = "TierScaling-v0"
INTERVAL_S = 0.2


def test_it_asks_once_an_interval() -> None:
    env = make(NAME, drawn(NAME))
    times_s = [info["now_s"] for *_, terminated, _, info in steps(env, BaseAgent()) if not terminated]
    assert times_s == pytest.approx(INTERVAL_S * np.arange(1, len(times_s) + 1))
    assert len(times_s) > 20


def test_an_action_says_where_each_engine_is() -> None:
    env = make(NAME, drawn(NAME))
    _, info = env.reset()
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(30):
        action = rng.integers(2, env.action_space.nvec)  # not the pool: from there the router may take an engine
        *_, over, _, info = env.step(action)
        if over:
            break
        engines, moves = env.simulation.arrays.engines, env.simulation.router_state.moves
        assert (2 * (engines["tier"] - POOL) + engines["closed"]).tolist() == action.tolist()
        assert info["base_action"].tolist() == [choice_of(move) for move in moves]
        seen |= set(action.tolist())
    assert seen == set(range(2, 10))


def test_the_pool_costs_nothing() -> None:
    scenario = drawn(NAME)
    costs = []
    for choice in (0, 2):
        env = make(NAME, scenario)
        env.reset()
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(np.full(3, choice))
            over = terminated or truncated
        costs.append(env.result().summary["cost_engine_s"])
    assert costs[0] < costs[1]


def test_where_all_engines_are_closed_the_episode_ends() -> None:
    env = make(NAME, drawn(NAME))
    env.reset()
    over, total = False, 0.0
    while not over:
        observation, reward, over, truncated, info = env.step(np.full(3, 3))  # tier 0, closed
        total += reward
        assert not truncated
    assert not observation.any()
    waiting = np.isnan(env.simulation.arrays.outcomes["finish_s"]).sum()
    assert waiting > 5
    assert total == pytest.approx(info["tdg_ratio"], abs=1e-9)
    assert total < play(make(NAME, drawn(NAME)), BaseAgent())


def forecast_scenario() -> Scenario:
    policies = {"router": servegym.router("min-load"), "scheduler": servegym.scheduler("vllm-v1")}
    policies["scaler"] = servegym.scaler("forecast:interval_s=0.2,day_s=3,engine_rate=2")
    return dataclasses.replace(drawn(NAME), **policies)


def test_v1_shows_the_day_too() -> None:
    scenario = forecast_scenario()
    first, later = make(NAME, scenario), make(NAME, scenario, sees="day")
    rows = [[observation for observation, *_ in steps(env, BaseAgent())] for env in (first, later)]
    shared = {name: k for k, (name, _) in enumerate(later.interface.layout)}
    kept = [shared[name] for name, _ in first.interface.layout]
    assert len(rows[0]) == len(rows[1]) > 10
    np.testing.assert_array_equal(np.array(rows[1])[:, kept], np.array(rows[0]))
    sines = np.array(rows[1])[:, shared["cluster.day_sine"]]
    assert sines.max() > 0.5 and sines.min() < -0.5
    assert outcome_bytes(first.simulation.arrays) == outcome_bytes(later.simulation.arrays)


def decided_alike(env, scenario, network, policy):
    """Return the run under the compiled policy, which decides as its network does in the environment."""
    total = play(env, NetworkAgent(env.interface, network))
    alone = servegym.Simulation(dataclasses.replace(scenario, scaler=policy)).run()
    assert outcome_bytes(alone.arrays) == outcome_bytes(env.simulation.arrays)
    assert total == pytest.approx(alone.summary["tdg_ratio"], abs=1e-9)
    return alone


def test_a_network_that_sees_the_day_decides_alike_in_the_environment_and_compiled() -> None:
    """An engine is in the first tier, open if 3 need - rank is above 1, else closed."""
    scenario = forecast_scenario()
    env = make(NAME, scenario, sees="day")
    layout, choices = env.interface.layout, choices_of(env.interface.tiers)
    weight, bias = np.zeros((choices, len(layout.whole_fields) + len(layout.slot_fields))), np.zeros(choices)
    names = [field.name for field in layout.slot_fields]
    first = len(layout.whole_fields)
    weight[2, first + names.index("need")], weight[2, first + names.index("rank")] = 3.0, -1.0
    bias[2], bias[3] = 1.0, 2.0  # tier 0, open; closed
    network = Network.from_layers(Shape.shared_by(layout, choices, hidden=()), [(weight, bias)])
    policy = scaled(scenario.scaler, network, sees="day")
    alone = decided_alike(env, scenario, network, policy)
    base = servegym.Simulation(scenario).run()
    assert alone.summary["cost_engine_s"] != base.summary["cost_engine_s"]


def test_the_first_reward_has_what_came_before() -> None:
    scenario = dataclasses.replace(drawn(NAME), scaler=servegym.scaler("polyserve:interval_s=2.0"))
    env = make(NAME, scenario)
    _, first = env.reset()
    assert first["gain"] > 0
    assert first["reward_terms"] == {"gain": 0.0, "shaping": 0.0}
    _, reward, _, _, info = env.step(first["base_action"])
    assert reward == info["tdg_ratio"] > first["tdg_ratio"] > 0


def test_an_episode_shorter_than_the_interval_has_one_step() -> None:
    scenario = dataclasses.replace(drawn(NAME), scaler=servegym.scaler("polyserve:interval_s=500.0"))
    env = make(NAME, scenario)
    env.reset()
    _, reward, terminated, _, info = env.step(np.zeros(3))
    assert terminated
    assert reward == info["tdg_ratio"] == pytest.approx(env.result().summary["tdg_ratio"], abs=1e-9)
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)


def test_other_tiers() -> None:
    deployment = drawn(NAME).deployment
    # PolyServe's router would open again what is closed.
    least = servegym.router("min-load")
    scenario = dataclasses.replace(
        drawn(NAME), deployment=dataclasses.replace(deployment, tiers=(0.02, 0.1)), router=least
    )
    env = make(NAME, scenario, tiers=2)
    assert env.action_space.nvec.tolist() == [6, 6, 6]
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    env.reset()
    env.step(np.array([5, 0, 2]))  # closed in the last tier; as it is; tier 0
    engines = env.simulation.arrays.engines
    assert (engines["tier"][[0, 2]].tolist(), engines["closed"].tolist()) == ([1, 0], [1, 0, 0])


def roles_source() -> ServingSpec:
    """Two engines that prefill and two that decode; changes take a second."""
    overrides = PRESETS["turning-roles"].overrides | {
        "requests": 400,
        "scaler": "pd-ratio:interval_s=0.5,rest_checks=0",
    }
    return ServingSpec().with_overrides(overrides)


def roles_env(scenario: Scenario, **arguments: Any) -> ServingEnv:
    return make(NAME, scenario, engines=4, tiers=1, **{"sees": "roles"} | arguments)


def test_the_base_decides_as_without_the_environment() -> None:
    scenario = roles_source()(np.random.default_rng(3))
    alone = servegym.Simulation(scenario).run()
    assert alone.arrays.engines["totals"]["role_changes"].sum() > 0
    for sees in ("roles", "tiers"):
        env = roles_env(scenario, sees=sees)
        assert play(env, BaseAgent()) == pytest.approx(alone.summary["tdg_ratio"], abs=1e-9)
        assert outcome_bytes(env.simulation.arrays) == outcome_bytes(alone.arrays)


def test_an_action_changes_roles_that_may_change() -> None:
    """In the second half of an engine's choices it is to decode. The roles of the last two are fixed."""
    source = roles_source()
    fixed = dataclasses.replace(source(np.random.default_rng(3)))
    pools = tuple(
        dataclasses.replace(pool, role_change_s=None) if pool.role == "decode" else pool
        for pool in fixed.deployment.pools
    )
    scenario = dataclasses.replace(fixed, deployment=dataclasses.replace(fixed.deployment, pools=pools))
    env = roles_env(scenario)
    assert env.action_space.nvec.tolist() == [8] * 4
    _, info = env.reset()
    assert info["base_action"].tolist() == [2, 2, 4, 4]  # tier 0, open; in the pool
    env.step(np.array([2, 6, 2, 6]))
    assert env.simulation.arrays.engines["next_role"].tolist() == [ROLE_PREFILL, ROLE_DECODE, ROLE_DECODE, ROLE_DECODE]
    assert env.interface.in_words(np.array([2, 6, 3, 0]), env.simulation, 4) == (
        "tiers of the engines 0, 0, 0 closed, pool; roles prefill, decode, prefill, prefill"
    )


def test_the_last_engine_of_a_role_keeps_it() -> None:
    for choice, role in ((6, ROLE_PREFILL), (2, ROLE_DECODE)):
        env = roles_env(roles_source()(np.random.default_rng(3)))
        env.reset()
        env.step(np.full(4, choice))
        assert (env.simulation.arrays.engines["next_role"] == role).sum() == 1


def test_what_is_seen_of_roles() -> None:
    """Signs are those of the role; of the open engines of each role one is the next to change."""
    env = roles_env(roles_source()(np.random.default_rng(3)))
    whole = [field.name for field in env.interface.layout.whole_fields]
    slot = [field.name for field in env.interface.layout.slot_fields]
    loads = []
    for observation, _, over, _, info in steps(env, BaseAgent()):
        if over:
            break
        parts = env.interface.layout.parts(observation)
        seen = {name: parts["engine"][:, slot.index(name)] for name in ("next", "change", "load", "decodes_only")}
        of_all = dict(zip(whole, parts["cluster"].tolist(), strict=True))
        signs = np.where(info["base_action"] < 4, 1, -1)
        assert of_all["base_ratio"] == signs.sum() / 4
        np.testing.assert_allclose(seen["change"], signs / 11, rtol=1e-6)
        assert (seen["load"] * np.where(seen["decodes_only"] == 1, -1, 1) >= 0).all()
        for sign, role in ((-1, "prefill"), (1, "decode")):
            assert (seen["next"] == sign).sum() == (of_all[f"open_{role}"] > 0)
        loads.append((of_all["prefill_load"], of_all["decode_load"]))
    assert np.ptp(loads, axis=0).min() > 0.1


def test_the_preset_sets_what_the_environment_is_made_for() -> None:
    env = TierScalingEnv(preset="turning-roles", requests=20)
    assert (env.interface.sees, env.interface.engines, env.interface.tiers) == ("roles", 4, 1)
    later = TierScalingEnv(preset="turning-roles", requests=20, sees="day")
    assert later.action_space.nvec.tolist() == [4] * 4


def test_a_network_that_sees_roles_decides_alike_in_the_environment_and_compiled() -> None:
    """Each engine keeps its role, in the first tier, open, whatever the base decides."""
    scenario = roles_source()(np.random.default_rng(3))
    env = roles_env(scenario)
    layout, choices = env.interface.layout, choices_of(1, 2)
    weight, bias = np.zeros((choices, len(layout.whole_fields) + len(layout.slot_fields))), np.zeros(choices)
    names = [field.name for field in layout.slot_fields]
    for choice, name in ((2, "prefills_only"), (6, "decodes_only")):
        weight[choice, len(layout.whole_fields) + names.index(name)] = 1.0
    network = Network.from_layers(Shape.shared_by(layout, choices, hidden=()), [(weight, bias)])
    policy = scaled(scenario.scaler, network, sees="roles")
    alone = decided_alike(env, scenario, network, policy)
    base = servegym.Simulation(scenario).run()
    changes = [int(one.arrays.engines["totals"]["role_changes"].sum()) for one in (alone, base)]
    assert changes[0] == 0 < changes[1]


def test_the_bias_towards_the_base_chooses_as_the_base_does() -> None:
    scenario = roles_source()(np.random.default_rng(3))
    interface = roles_env(scenario).interface
    head = HEADS["TierScaling"](interface, roles_source())
    shape = Shape.shared_by(interface.layout, head.outputs, hidden=())
    weight = np.zeros((head.outputs, len(interface.layout.whole_fields) + len(interface.layout.slot_fields)))
    weight[:, list(head.base_bias.columns)] = head.base_bias.weights
    policy = head.build(Network.from_layers(shape, [(weight, head.base_bias.bias)]), "follows")
    runs = [servegym.Simulation(dataclasses.replace(scenario, scaler=one)).run() for one in (scenario.scaler, policy)]
    assert runs[0].arrays.engines["totals"]["role_changes"].sum() > 0
    assert outcome_bytes(runs[0].arrays) == outcome_bytes(runs[1].arrays)
