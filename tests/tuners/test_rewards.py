"""What a learner is told: rewards beside the base's run, what is earned beside gain, discounting over time."""

import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import RolloutBuffer

from servegym.errors import TrainingError
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.discounting import TimedRolloutBuffer
from servegym.tuners.learners import new_model
from servegym.tuners.objective import Objective
from servegym.tuners.problem import Problem, problem_of
from servegym.tuners.rewards import TrainingVecEnv
from tests.tuners.tiny import tiny


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(tiny("ppo-scheduling"))


def episode(problem: Problem, objective: Objective, scale: float) -> tuple[float, dict, float]:
    """Sum of the rewards of the first episode that ends under actions at random; its info, and the base's TDG ratio."""
    env = TrainingVecEnv(problem.venv, problem.head, objective, reward_scale=3.0)
    env.seed(5)
    env.reset()
    scenarios = [simulation.scenario for simulation in env.venv.episode_batch.simulations]
    rng, totals = np.random.default_rng(1), np.zeros(env.num_envs)
    while True:
        _, rewards, dones, infos = env.step(scale * rng.uniform(-1, 1, (env.num_envs, *env.action_space.shape)))
        totals += rewards
        if dones.any():
            i = int(np.flatnonzero(dones)[0])
            base = Simulation(problem.head.with_policy(scenarios[i])).run().summary["tdg_ratio"]
            return float(totals[i]), infos[i], float(base)


def test_paired_rewards_are_what_the_decisions_changed(problem: Problem) -> None:
    same, info, base = episode(problem, Objective(paired=True), 0.0)
    assert info["tdg_ratio"] == pytest.approx(base) and same == pytest.approx(0.0, abs=1e-3)
    other, info, base = episode(problem, Objective(paired=True), 1.0)
    assert other == pytest.approx(3.0 * (info["tdg_ratio"] - base), abs=1e-4) and abs(other) > 1e-3


def test_a_decision_earns_what_its_request_gains() -> None:
    """Whole episodes and the beginnings of the next: told when episodes are over, or requests at the rollout's end."""
    problem = problem_of(tiny("maskable-ppo-cluster-routing"))
    env = TrainingVecEnv(problem.venv, problem.head, Objective(paired=True, by_request=True), reward_scale=3.0)
    env.seed(5)
    env.reset()
    simulations = [[simulation] for simulation in env.venv.episode_batch.simulations]
    rng, ratios = np.random.default_rng(1), [[] for _ in simulations]
    for _ in range(40):
        _, rewards, dones, infos = env.step(rng.integers(0, 3, env.num_envs))
        assert not rewards.any()
        for i in np.flatnonzero(dones):
            simulations[i].append(env.venv.episode_batch.simulations[i])
            ratios[i].append(infos[i]["tdg_ratio"])
    told = env.late_rewards()
    assert told.shape == (40, env.num_envs) and not env.late_rewards().size
    for i, (episodes, found) in enumerate(zip(simulations, ratios, strict=True)):
        at = 0
        assert found
        for simulation, ratio in zip(episodes, found, strict=False):  # those that are over
            n = len(simulation.arrays.outcomes)
            base = Simulation(problem.head.with_policy(simulation.scenario)).run()
            assert told[at : at + n, i].sum() == pytest.approx(3.0 * (ratio - base.summary["tdg_ratio"]), abs=1e-5)
            differences = simulation.arrays.outcomes["gain"] - base.arrays.outcomes["gain"]
            ideal = simulation.scenario.gain.ideal(simulation.scenario.workload).sum()
            order = np.argsort(simulation.arrays.requests["arrival_s"], kind="stable")
            assert told[at : at + n, i] == pytest.approx(3.0 * differences[order] / ideal, abs=1e-5)
            at += n
        finished = np.isfinite(episodes[-1].arrays.outcomes["finish_s"])
        assert np.count_nonzero(told[at:, i]) <= np.count_nonzero(finished)
    assert np.abs(told).max() > 1e-3


def test_a_decision_earns_whether_its_request_attains_its_slos() -> None:
    problem = problem_of(tiny("maskable-ppo-cluster-routing"))
    env = TrainingVecEnv(problem.venv, problem.head, Objective(by_request=True, attainment=2.0))
    env.seed(5)
    env.reset()
    simulation, rng, dones = env.venv.episode_batch.simulations[0], np.random.default_rng(1), np.zeros(1)
    while not dones[0]:
        _, _, dones, infos = env.step(rng.integers(0, 3, env.num_envs))
    n, summary = len(simulation.arrays.outcomes), infos[0]["summary"]
    assert 0 < summary["slo_attainment"] < 1
    told = env.late_rewards()[:n, 0].sum()
    assert told == pytest.approx(infos[0]["tdg_ratio"] + 2 * summary["slo_attainment"], abs=1e-5)


def test_attainment_and_cost_come_at_the_end(problem: Problem) -> None:
    plain, info, _ = episode(problem, Objective(), 1.0)
    assert plain == pytest.approx(3.0 * info["tdg_ratio"], abs=1e-4)
    objective = Objective(attainment=0.5, cost=0.25)
    other, _, _ = episode(problem, objective, 1.0)
    assert other - plain == pytest.approx(3.0 * objective.beside_gain(info["summary"]), abs=1e-4)
    assert abs(other - plain) > 0.1


def test_what_is_earned_beside_gain_by_hand() -> None:
    summary, nothing_served = {"slo_attainment": 0.6}, {"slo_attainment": math.nan}
    assert Objective().beside_gain(summary) == 0 and Objective(paired=True).is_gain_alone
    assert Objective(cost=0.1, attainment=1.0).beside_gain(summary | {"engines_in_service": 2.5}) == pytest.approx(0.35)
    assert not Objective(cost=0.1).is_gain_alone
    assert Objective(attainment=2.0).beside_gain(nothing_served) == 2 and not Objective(attainment=2.0).is_gain_alone


def filled(kind: type, durations_s: np.ndarray, **more: float) -> RolloutBuffer:
    """A buffer of three steps of two environments; the second episode of the first begins at step 2."""
    box = gym.spaces.Box(-1, 1, (1,))
    buffer = kind(3, box, box, n_envs=2, **more)
    rng = np.random.default_rng(3)
    for step in range(3):
        buffer.clock = SimpleNamespace(durations_s=durations_s[step], late_rewards=lambda: 0.0)
        starts = np.array([step == 2, False], float)
        values = torch.as_tensor(rng.normal(size=2), dtype=torch.float32)
        buffer.add(np.zeros((2, 1)), np.zeros((2, 1)), rng.normal(size=2), starts, values, torch.zeros(2))
    buffer.compute_returns_and_advantage(torch.tensor([0.3, -0.4]), np.array([False, True]))
    return buffer


def test_equal_durations_are_a_discount_a_step() -> None:
    timed = filled(TimedRolloutBuffer, np.full((3, 2), 0.5), horizon_s=4.0, trace_s=2.0)
    steps = filled(RolloutBuffer, np.zeros((3, 2)), gamma=math.exp(-0.5 / 4), gae_lambda=math.exp(-0.5 / 2))
    np.testing.assert_allclose(timed.advantages, steps.advantages, rtol=1e-5)
    np.testing.assert_allclose(timed.returns, steps.returns, rtol=1e-5)


def test_a_longer_step_discounts_more() -> None:
    buffer = filled(TimedRolloutBuffer, np.array([[1.0, 1.0], [0.0, 3.0], [2.0, 0.0]]), horizon_s=4.0, trace_s=1e9)
    rewards, values = buffer.rewards, buffer.values
    # The second environment never begins anew, and ends after the last step.
    last = rewards[2, 1] - values[2, 1]
    middle = rewards[1, 1] + math.exp(-3 / 4) * (values[2, 1] + last) - values[1, 1]
    assert buffer.advantages[:, 1] == pytest.approx(
        [rewards[0, 1] + math.exp(-1 / 4) * (values[1, 1] + middle) - values[0, 1], middle, last], rel=1e-5
    )


def test_discounting_over_time_takes_both_numbers() -> None:
    problem = problem_of(tiny("ppo-scheduling", hyperparameters={"horizon_s": 2.0}))
    with pytest.raises(TrainingError, match=r"^hyperparameters.trace_s is missing; discounting over time needs both"):
        new_model(problem, TrainingVecEnv(problem.venv, problem.head))
