"""Scenarios said in words, as arguments of an environment: `gym.make(id, load=0.9, trace="azure-code")`."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from servegym.envs.env import ServingEnv
from servegym.envs.parallel import ServingParallelEnv
from servegym.errors import EnvError, SpecError
from servegym.scenarios.demand import BURST
from servegym.scenarios.presets import EPISODES, PRESETS
from servegym.scenarios.ranges import Range
from servegym.scenarios.spec import LEAVES, ServingSpec, overridden
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.policies.gains import Gain
from tests.envs.small import IDS, drawn, frozen, make

WORDS = {"load": 0.9, "trace": "azure-code", "device": "h100-llama3-8b", "slo": "polyserve", "requests": 30}


def default_of(name: str) -> ServingSpec:
    """What the environment draws when nothing is said."""
    source = gym.make(f"servegym:{name}").unwrapped.source
    assert isinstance(source, ServingSpec)
    return source


@pytest.mark.parametrize("name", IDS)
def test_single_and_vector_draw_what_was_said(name: str) -> None:
    expected = default_of(name).replaced(**WORDS)
    env = gym.make(f"servegym:{name}", **WORDS)
    vector = gym.make_vec(f"servegym:{name}", num_envs=2, vectorization_mode="vector_entry_point", **WORDS)
    synced = gym.make_vec(f"servegym:{name}", num_envs=2, vectorization_mode="sync", **WORDS)
    assert env.unwrapped.source == vector.unwrapped.source == synced.envs[0].unwrapped.source == expected
    observation, _ = env.reset(seed=4)
    workload = env.unwrapped.simulation.scenario.workload
    assert (
        len(workload.table) == 30 and workload.provenance["load"] == 0.9 and workload.provenance["slo"] == "polyserve"
    )
    assert frozen(observation) == frozen(gym.make(f"servegym:{name}", scenario=expected).reset(seed=4)[0])


@pytest.mark.parametrize("name", IDS)
def test_words_are_said_to_random_scenarios_that_are_named(name: str) -> None:
    source = default_of(name).replaced(cv=2.0)
    assert make(name, source, load=Range(0.5, 0.7)).source == source.replaced(load=Range(0.5, 0.7))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_words(preset: str) -> None:
    overrides = PRESETS[preset].overrides
    of = PRESETS[preset].environment
    for name in IDS:
        if of not in ("", name):
            with pytest.raises(SpecError, match=f"preset '{preset}' is of {of}; those of {name} are .*overload"):
                gym.make(f"servegym:{name}", preset=preset)
            continue
        env = gym.make(f"servegym:{name}", preset=preset, slo_scale=0.9).unwrapped
        assert env.source == default_of(name).replaced(**overrides | {"slo_scale": 0.9})
        vector = gym.make_vec(f"servegym:{name}", num_envs=1, vectorization_mode="vector_entry_point", preset=preset)
        assert vector.unwrapped.source == default_of(name).replaced(**overrides)
    otherwise = overridden(overrides, {"load": 0.7})
    name = of or "EngineBatching-v0"
    assert env_of(preset, name, load=0.7).source == default_of(name).replaced(**otherwise)
    for seed in range(3):  # what it draws can be built
        scenario = env_of(preset, name).source(np.random.default_rng(seed))
        assert len(scenario.workload.table) >= 200
    page = (Path(__file__).parents[2] / "docs/environments.md").read_text("utf-8")
    assert f"| `{preset}` | {PRESETS[preset].doc} |" in page


def env_of(preset: str, name: str = "EngineBatching-v0", **overrides: Any) -> ServingEnv:
    return gym.make(f"servegym:{name}", preset=preset, **overrides).unwrapped


def test_presets_there_are_not() -> None:
    with pytest.raises(SpecError, match="unknown preset 'heavy'; there are light, overload"):
        env_of("heavy")
    with pytest.raises(EnvError, match="preset with a scenario"):
        make("EngineBatching-v0", drawn("EngineBatching-v0"), preset="light")


FILE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{10 + 0.25 * i},{100 + i},9\n" for i in range(100))


@pytest.mark.parametrize(("overrides", "gap_s"), [
    ({"arrivals": "own"}, 0.25),
    ({"arrivals": "own", "preset": "overload", "rate_per_s": 2.0}, 0.5),
    ({"arrivals": "bursts:n=1,gap_s=3"}, 3.0),
    ({"arrivals": "bursts:n=1", "rate_per_s": 4.0}, 0.25),
])  # fmt: skip
def test_arrivals_take_the_place_of_a_load_that_is_not_given(overrides: dict, gap_s: float, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(FILE)
    env = make("EngineBatching-v0", EPISODES, trace=str(tmp_path / "mine.csv"), requests=20, **overrides)
    env.reset(seed=1)
    workload = env.simulation.scenario.workload
    assert workload.table["arrival_s"] == pytest.approx(gap_s * np.arange(20)) and workload.provenance["load"] is None


def test_arrivals_beside_a_load_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(FILE)
    source = EPISODES.replaced(trace=str(tmp_path / "mine.csv"), requests=20)
    for overrides in ({"load": 0.7}, {"preset": "overload"}, {}):
        for arrivals in ("own", "gamma:cv=3"):
            env = make("EngineBatching-v0", source, arrivals=arrivals, **overrides)
            load = env.source(np.random.default_rng(0)).workload.provenance["load"]
            assert (load is None) == (arrivals == "own" and not overrides)
    with pytest.raises(SpecError, match=r"^arrivals own and a load profile or cv are given"):
        make("EngineBatching-v0", source, arrivals="own", preset="burst")


def test_several_agents_at_once() -> None:
    env = ServingParallelEnv(**WORDS)
    assert env.source == ServingParallelEnv().source.replaced(**WORDS)


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize(("overrides", "message"), [
    ({"laod": 0.9}, "unknown argument 'laod' (did you mean 'load'?); there are: demand, "),
    ({"presett": "burst"}, "unknown argument 'presett' (did you mean 'preset'?); there are: demand, "),
    ({"shapin": 1.0}, "unknown argument 'shapin' (did you mean 'shaping'?); there are: demand, "),
    ({"load": -1.0}, "load is -1.0; it should be a number above 0"),
    ({"load": 0.9, "rate_per_s": 1.0}, "load and rate_per_s (--load and --rate) are both given"),
    ({"trace": 3}, "trace is 3; it should be a name, or several"),
])  # fmt: skip
def test_wrong_words(name: str, overrides: dict[str, Any], message: str) -> None:
    for mode in ("sync", "vector_entry_point"):
        with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
            gym.make_vec(f"servegym:{name}", num_envs=1, vectorization_mode=mode, **overrides)


@pytest.mark.parametrize("name", IDS)
def test_a_scenario_is_what_it_is(name: str) -> None:
    with pytest.raises(EnvError, match=r"^load, slo with a scenario of type Scenario; only fields of a ServingSpec"):
        make(name, drawn(name), load=0.9, slo="qoserve")


def test_every_field_can_be_said() -> None:
    """By its name, with the value that it has, and as a document has it."""
    rich = EPISODES.replaced(
        gain=Gain("ta-slo"), incidents=(Incident(1.0, 0, "drain"),), load_profile=BURST, router="min-load",
        slo_scale=2.0,
    )  # fmt: skip
    assert EPISODES.with_overrides({name: rich[name] for name in LEAVES}) == rich
    assert EPISODES.with_overrides(rich.overrides()) == EPISODES.with_overrides(rich.to_json()) == rich
    listed = {"incidents": [{"time_s": 1.0, "engine": 0, "kind": "drain"}], "load": {"low": 0.5, "high": 0.7}}
    assert EPISODES.with_overrides(listed) == EPISODES.replaced(incidents=rich.fleet.incidents, load=Range(0.5, 0.7))


def test_every_episode_is_one_that_was_said() -> None:
    env = make("EngineBatching-v0", EPISODES, load=(0.5, 0.7), trace="sharegpt", requests=20)
    seen = set()
    for seed in range(8):
        env.reset(seed=seed)
        workload = env.simulation.scenario.workload
        seen.add(workload.provenance["load"])
        assert workload.name == "sharegpt"
    assert seen == {0.5, 0.7} and np.isfinite(env.simulation.scenario.workload.table["arrival_s"]).all()
