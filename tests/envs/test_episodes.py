"""Rewards, shaping, masks and what an observation cannot know, in every registered environment."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from servegym.envs.agents import Agent, BaseAgent, RandomAgent, play
from servegym.envs.env import ServingEnv
from servegym.simulator.records.requests import next_deadline_s
from servegym.simulator.records.statuses import AT_ROUTES
from tests.envs.small import IDS, drawn, make, outcome_bytes, simulated, steps

UNTIL_S = 2.5


def agents_of(env: ServingEnv) -> list[Agent]:
    return [BaseAgent(), RandomAgent(env.action_space, 7)]


@pytest.mark.parametrize("until_s", [np.inf, UNTIL_S])
@pytest.mark.parametrize("name", IDS)
def test_rewards_sum_to_the_tdg_ratio(name: str, until_s: float) -> None:
    env = make(name, dataclasses.replace(drawn(name), until_s=until_s))
    for agent in agents_of(env):
        *before, (_, _, terminated, truncated, info) = episode = list(steps(env, agent, seed=1))
        ratio = env.result().summary["tdg_ratio"]
        assert 0 < ratio < 1
        assert sum(reward for _, reward, *_ in episode) == pytest.approx(ratio, abs=1e-9)
        assert info["tdg_ratio"] == pytest.approx(ratio, abs=1e-9)
        assert (terminated, truncated) == (until_s == np.inf, until_s < np.inf)
        assert not any(terminated or truncated for _, _, terminated, truncated, _ in before)
        for earlier, later in itertools.pairwise(episode):
            assert later[4]["now_s"] >= earlier[4]["now_s"]
            assert later[1] == later[4]["reward_terms"]["gain"] >= 0
            assert later[4]["reward_terms"]["shaping"] == 0


@pytest.mark.parametrize("name", IDS)
def test_an_episode_without_a_decision_has_one_step(name: str) -> None:
    env = make(name, dataclasses.replace(drawn(name), until_s=1e-6))
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["tdg_ratio"] == 0.0


def potential_of(env: ServingEnv) -> float:
    """What docs/environments.md says of it, from the arrays."""
    arrays, total = env.simulation.arrays, 0.0
    for e, engine in enumerate(arrays.engines):
        for r in arrays.queues[e][: engine.queue_length]:
            request = arrays.requests[r]
            if arrays.status[0].now_s < next_deadline_s(request):
                total += request.decode_token_gain if request.num_output_tokens else request.first_token_gain
    scenario = env.simulation.scenario
    return total / scenario.gain.ideal(scenario.workload).sum()


@pytest.mark.parametrize("agent", ["base", "random"])
@pytest.mark.parametrize("name", IDS)
def test_shaping_changes_no_policys_worth(name: str, agent: str) -> None:
    """Whatever the policy, what shaping adds to the discounted return is -potential(s0): it depends on nothing that
    the agent does."""
    weight, discount = 0.5, 0.97
    scenario = drawn(name, 1)
    plain = make(name, scenario)
    env = make(name, scenario, shaping=weight, discount=discount)
    env.reset()
    start = weight * potential_of(env)
    assert (start > 0) == (env.interface.stop_at != AT_ROUTES)  # nothing is queued yet there

    which = ["base", "random"].index(agent)
    shaped = list(steps(env, agents_of(env)[which], seed=1))[1:]
    unshaped = list(steps(plain, agents_of(plain)[which], seed=1))[1:]
    terms = np.array([info["reward_terms"]["shaping"] for *_, info in shaped])
    gains = np.array([info["reward_terms"]["gain"] for *_, info in shaped])
    assert np.count_nonzero(terms) > len(terms) / 4
    assert (discount ** np.arange(len(terms))) @ terms == pytest.approx(-start, abs=1e-9)
    assert [reward for _, reward, *_ in shaped] == (gains + terms).tolist()
    assert gains.tolist() == [reward for _, reward, *_ in unshaped]  # and the episode is what it is without


@pytest.mark.parametrize("name", IDS)
def test_shaping_is_what_the_page_says(name: str) -> None:
    env = make(name, drawn(name, 1), shaping=2.0, discount=0.9)
    before = None
    for _, _, terminated, truncated, info in steps(env, RandomAgent(env.action_space, 3), seed=1):
        after = 0.0 if terminated or truncated else 2.0 * potential_of(env)
        if before is not None:
            assert info["reward_terms"]["shaping"] == pytest.approx(0.9 * after - before, abs=1e-12)
        before = after


@pytest.mark.parametrize("name", IDS)
def test_masks_let_the_base_policy_act(name: str) -> None:
    env = make(name)
    nvec = np.atleast_1d(getattr(env.action_space, "nvec", getattr(env.action_space, "n", 0)))
    closed = 0
    for seed in range(3):
        for *_, terminated, truncated, info in steps(env, RandomAgent(env.action_space, seed), seed=seed):
            base = info["base_action"]
            assert env.action_space.contains(base)
            assert ("action_mask" in info) == (env.interface.choices > 0)
            if "action_mask" not in info:
                continue
            assert env.action_space.contains(env.action_space.sample(mask=info["action_mask"]))
            mask = np.hstack(info["action_mask"])
            assert mask.dtype == np.int8 and mask.shape == (nvec.sum(),)
            assert (env.action_masks() == mask.astype(bool)).all()
            if terminated or truncated:
                continue
            for choices, choice in zip(np.split(mask, np.cumsum(nvec)[:-1]), np.atleast_1d(base), strict=True):
                assert set(choices) <= {0, 1}
                assert choices[choice] == 1
                closed += (choices == 0).any()
    assert env.interface.choices == 0 or closed > 0  # there was something to mask


class Illegal:
    """An agent that names an action that is masked wherever there is one."""

    def __init__(self, space: Any):
        self.space, self.named = space, 0

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        nvec = np.atleast_1d(getattr(self.space, "nvec", getattr(self.space, "n", None)))
        action = np.atleast_1d(info["base_action"]).copy()
        for i, choices in enumerate(np.split(np.hstack(info["action_mask"]), np.cumsum(nvec)[:-1])):
            if (choices == 0).any():
                action[i] = np.flatnonzero(choices == 0)[0]
                self.named += 1
        return action.reshape(self.space.shape)


@pytest.mark.parametrize("name", ["ClusterRouting-v0", "DisaggregatedRouting-v0", "PrefillPreemption-v0"])
def test_a_masked_action_leaves_the_base_policys_choice(name: str) -> None:
    env = make(name, drawn(name))
    agent = Illegal(env.action_space)
    play(env, agent)
    assert agent.named > 3
    assert outcome_bytes(env.simulation.arrays) == simulated(env, drawn(name))


@pytest.mark.parametrize("name", IDS)
def test_actions_make_a_difference(name: str) -> None:
    env = make(name, drawn(name))
    base = play(env, BaseAgent())
    assert len({base, *(play(env, RandomAgent(env.action_space, seed)) for seed in range(3))}) > 2


def shown(env: ServingEnv) -> tuple[bytes, bytes, bytes]:
    """What the compiled function writes for the state in which the environment is: observation, mask, base action."""
    batch, interface = env._episode_batch, env.interface
    assert batch is not None
    written = (np.zeros_like(batch.observations[0]), np.zeros_like(batch.masks[0]), np.zeros_like(batch.bases[0]))
    assert interface.observe(batch.episodes[0], *written)
    return tuple(array.tobytes() for array in written)


@pytest.mark.parametrize("name", IDS)
def test_what_cannot_be_known_is_not_shown(name: str) -> None:
    """True lengths, the device, noise, and the requests that have not arrived: with others, the same is shown."""
    env, seen, early, changed = make(name), 0, 0, 0
    rng = np.random.default_rng(0)
    for step, (observation, *_, terminated, _, info) in enumerate(steps(env, BaseAgent(), seed=2)):
        if terminated:
            break
        arrays = env.simulation.arrays
        if step > 40 and step % 30:
            continue
        hidden = {
            "outcomes": arrays.outcomes.copy(), "device": arrays.device.copy(), "requests": arrays.requests.copy()
        }  # fmt: skip
        expected = shown(env)
        assert expected[0] == observation.tobytes()
        unfinished = np.isnan(arrays.outcomes["finish_s"])
        arrays.outcomes["output_tokens"][unfinished] = 1 + rng.integers(1, 5000, unfinished.sum())
        later = arrays.requests["arrival_s"] > info["now_s"]
        arrays.outcomes["ready_s"][later] += rng.uniform(0, 100, later.sum())
        for field in ("prompt_tokens", "weight", "first_deadline_s", "ttft_slo_s", "arrival_s"):
            arrays.requests[field][later] *= 3
        arrays.device[...] *= rng.uniform(0.1, 10, arrays.device.shape)
        assert shown(env) == expected
        seen += unfinished.any()
        early += later.any()

        arrived = ~later & unfinished
        arrays.requests["prompt_tokens"][arrived] += 4000  # but this is known to all
        changed += shown(env)[0] != expected[0]
        for field, values in hidden.items():
            getattr(arrays, field)[...] = values
    assert seen > 10 and early > 0
    assert changed > 5
