"""What an environment refuses: in one line, what is wrong, and what would be right."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

import servegym
from servegym.envs.agents import BaseAgent
from servegym.errors import ActionError, EnvError, PolicyError, ServegymError
from tests.envs.small import IDS, drawn, frozen, make, outcome_bytes


@pytest.mark.parametrize(("arguments", "message"), [
    ({"observation": "pixels"}, "observation 'pixels': it should be 'flat' or 'dict'"),
    ({"shaping": -1.0}, "shaping -1.0 with discount 1.0: they should be 0 or more, and 0 to 1"),
    ({"shaping": np.nan}, "shaping nan with discount 1.0: they should be 0 or more, and 0 to 1"),
    ({"shaping": "1"}, "shaping '1' with discount 1.0: they should be 0 or more, and 0 to 1"),
    ({"discount": 1.5}, "shaping 0.0 with discount 1.5: they should be 0 or more, and 0 to 1"),
    ({"render_mode": "video"}, "render_mode 'video': it should be None, 'ansi' or 'rgb_array'"),
    ({"scenario": 3}, "a scenario of type int; it should be a Scenario, or a function of a Generator"),
])  # fmt: skip
@pytest.mark.parametrize("name", IDS)
@pytest.mark.filterwarnings("ignore:.*render")
def test_options(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=f"^{re.escape(message)}$"):
        make(name, **arguments)


@pytest.mark.parametrize(("name", "arguments", "error", "message"), [
    ("EngineBatching-v0", {"scheduler": "slide"}, PolicyError, "unknown scheduler 'slide'"),
    (
        "EngineBatching-v0",
        {"controls": ("gama",)},
        PolicyError,
        "slide-batching: gama cannot be controlled; it can: ",
    ),
    ("EngineBatching-v0", {"controls": ("gamma", "gamma")}, PolicyError, "name one or more, each once"),
    ("EngineBatching-v0", {"controls": 3}, EnvError, "controls is 3; it should be the name of a parameter, or several"),
    ("EngineBatching-v0", {"batches_per_step": 0}, EnvError, "0 decisions a step: it should be a whole number of 1"),
    ("RequestRanking-v0", {"slots": 0}, EnvError, "slots=0: it should be a whole number, 1 to 1024"),
    ("RequestRanking-v0", {"slots": 2.5}, EnvError, "slots=2.5: it should be a whole number, 1 to 1024"),
    ("Scheduling-v0", {"slots": -1}, EnvError, "slots=-1: it should be a whole number, 0 to 1024"),
    ("RequestRanking-v0", {"scheduler": "nobody"}, PolicyError, "unknown scheduler 'nobody'; there are: "),
    ("PrefillPreemption-v0", {"slots": 5000}, EnvError, "slots=5000: it should be a whole number, 1 to 1024"),
    ("ClusterRouting-v0", {"engines": 1}, EnvError, "engines=1: it should be a whole number, 2 to 4096"),
    (
        "DisaggregatedRouting-v0",
        {"decode": 0},
        EnvError,
        "decode=0: it should be a whole number of engines, 1 to 4096",
    ),
    ("TierScaling-v0", {"engines": "two"}, EnvError, "engines=two: it should be a whole number, 2 to 4096"),
    ("TierScaling-v0", {"sees": "night"}, EnvError, "sees='night': it should be one of 'tiers', 'day', 'roles'"),
    ("TierScaling-v0", {"tiers": 9}, EnvError, "tiers=9: it should be a whole number, 1 to 8"),
])  # fmt: skip
def test_what_an_environment_is_made_for(name: str, arguments: Any, error: type[ServegymError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        make(name, **arguments)
    assert "\n" not in str(raised.value)


def test_one_parameter_is_named_alone() -> None:
    env = make("EngineBatching-v0", controls="gamma")
    assert env.interface.controls == ("gamma",) and env.action_space.shape == (1,)


def test_a_source_gives_scenarios_and_a_state_is_a_state() -> None:
    with pytest.raises(EnvError, match="the source of scenarios gave a int; it should give a Scenario"):
        make("EngineBatching-v0", lambda rng: 3).reset(seed=0)
    with pytest.raises(EnvError, match="a state of type str; it should be one that clone_state returned"):
        make("EngineBatching-v0").restore_state("x")


@pytest.mark.parametrize(("name", "scenario_of", "message"), [
    ("ClusterRouting-v0", "EngineBatching-v0", "a scenario of 1 engines; this environment is made for 2 to 4"),
    (
        "DisaggregatedRouting-v0",
        "ClusterRouting-v0",
        "a scenario with engines both, both, both; this environment is made for 2 prefill engines and after them 2 "
        "decode engines",
    ),
    (
        "TierScaling-v0",
        "ClusterRouting-v0",
        "a scenario of 3 engines and 1 tiers; this environment is made for 3 and 4",
    ),
])  # fmt: skip
def test_scenarios_that_do_not_suit(name: str, scenario_of: str, message: str) -> None:
    env = make(name, drawn(scenario_of))
    with pytest.raises(EnvError, match=f"^{re.escape(message)}$"):
        env.reset()
    env.reset(options={"scenario": drawn(name)})  # this one does


def test_a_scaler_that_is_never_asked() -> None:
    name = "TierScaling-v0"
    for scaler, what in ((None, "no scaler"), (servegym.scaler("static"), "scaler static, which is never asked")):
        env = make(name, dataclasses.replace(drawn(name), scaler=scaler))
        message = f"a scenario with {what}; it should have one with a parameter interval_s, such as polyserve"
        with pytest.raises(EnvError, match=f"^{re.escape(message)}$"):
            env.reset()


def test_roles_that_are_fixed() -> None:
    scenario = drawn("TierScaling-v0")
    env = make("TierScaling-v0", scenario, sees="roles", tiers=len(scenario.deployment.tiers_for(scenario.workload)))
    with pytest.raises(EnvError, match=r"^a scenario in which all roles are fixed; with sees='roles' it should have "):
        env.reset()


@pytest.mark.parametrize("name", IDS)
def test_reset_options(name: str) -> None:
    env = make(name)
    with pytest.raises(EnvError, match=r"^reset option 'load'; there is only 'scenario'$"):
        env.reset(options={"load": 2})
    with pytest.raises(EnvError, match=r"^a scenario of type str; "):
        env.reset(options={"scenario": "azure-conv"})
    observation, _ = env.reset(options={"scenario": drawn(name, 5)})
    assert env.simulation.scenario.workload is drawn(name, 5).workload
    assert frozen(observation) == frozen(make(name, drawn(name, 5)).reset()[0])
    env.reset(seed=1)  # for that episode only
    assert env.simulation.scenario.workload is not drawn(name, 5).workload


@pytest.mark.parametrize("name", IDS)
def test_actions_that_are_not_in_the_space(name: str) -> None:
    """They are refused, and the episode goes on as if they had not been named."""
    env, other = make(name, drawn(name)), make(name, drawn(name))
    env.action_space.seed(1)
    env.reset()
    other.reset()
    over = False
    for step in range(200):
        shape = env.action_space.shape
        if step % 10 == 0:
            with pytest.raises(ActionError, match=r"^an action of shape \(2, 3\); it should be of shape \("):
                env.step(np.zeros((2, 3)))
            whole = () if isinstance(env.action_space, Box) else (0.5,)
            for bad in (np.nan, np.inf, -1.5, 1e9, *whole):
                right = re.escape(str(env.action_space))
                with pytest.raises(ActionError, match=rf"^action \[.*\]: it should be in {right}$"):
                    env.step(np.full(shape, bad))
            with pytest.raises(ActionError, match=r"^action .*high.*: it should be in [^\n]*$"):
                env.step(np.full(shape, "high"))
        action = env.action_space.sample()
        step_of_env, step_of_other = env.step(action), other.step(action)
        assert frozen(step_of_env) == frozen(step_of_other)
        over = step_of_env[2]
        if over:
            break
    assert outcome_bytes(env.simulation.arrays) == outcome_bytes(other.simulation.arrays)


@pytest.mark.parametrize("name", IDS)
def test_there_is_no_simulation_before_the_first_reset(name: str) -> None:
    env = make(name, render_mode="ansi")
    with pytest.raises(EnvError, match=r"^there is no simulation before the first reset$"):
        env.result()
    with pytest.raises(EnvError, match=r"^there is no simulation before the first reset$"):
        env.render()
    env.reset(seed=0)
    assert isinstance(env.render(), str)
    plain = make(name)
    plain.step(BaseAgent().act(*plain.reset(seed=0)))
    with pytest.raises(EnvError, match=r"^render_mode is None; make the environment with 'ansi' or 'rgb_array'$"):
        plain.render()
