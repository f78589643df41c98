"""Credit by request for a training loop of one's own with Stable-Baselines3."""

from __future__ import annotations

import math

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from servegym.envs.sb3 import MASKS, Sb3VecEnv
from servegym.errors import TrainingError
from servegym.scenarios.values import is_number
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.tuners.decision_head import head_of
from servegym.tuners.discounting import TimedMaskableRolloutBuffer, TimedRolloutBuffer
from servegym.tuners.objective import Objective
from servegym.tuners.rewards import TrainingVecEnv


def credit_requests(
    model: OnPolicyAlgorithm, horizon_s: float = 30.0, trace_s: float = 1.0, *, paired: bool = True,
    attainment: float = 0.0,
) -> None:  # fmt: skip
    """Reward each routing decision of a model's rollouts with the gain of its own request, whenever that comes.

        model = MaskablePPO(policy, Sb3VecEnv(envs, reward_scale=100.0), policy_kwargs=arguments, device="cpu")
        servegym.credit_requests(model)    # then model.learn(...); again after `load`

    It replaces the model's environment and rollout buffer; the discounts by step, `gamma` and `gae_lambda`, are no
    longer used. horizon_s, trace_s: times after which rewards and temporal-difference errors count 1/e, s. paired: less
    what the base gains with the same request. attainment: weight of a request's SLO attainment. Raises TrainingError
    for a model without a rollout buffer, another environment than `Sb3VecEnv`, or one without decisions about single
    requests.
    """
    if not all(is_number(time_s, False) and 0 < time_s < math.inf for time_s in (horizon_s, trace_s)):
        raise TrainingError(
            f"credit by request: horizon_s {horizon_s!r}, trace_s {trace_s!r}; both should be above 0, in s"
        )
    env = model.get_env() if isinstance(model, BaseAlgorithm) else None
    old = getattr(model, "rollout_buffer", None)
    if not isinstance(env, Sb3VecEnv) or old is None:
        raise TrainingError("credit by request is for PPO or MaskablePPO on Sb3VecEnv(gym.make_vec(...))")
    if env.venv.interface.stop_at != AT_ROUTES:
        raise TrainingError(f"credit by request: {type(env.venv.interface).__name__} decides about no single requests")
    made = TrainingVecEnv(
        env.venv, head_of(env.venv), Objective(paired=paired, by_request=True, attainment=attainment), env.reward_scale
    )
    buffer = TimedMaskableRolloutBuffer if env.has_attr(MASKS) else TimedRolloutBuffer
    made.seed(model.seed)  # as `env` was
    model.set_env(made)
    model.rollout_buffer = buffer(
        old.buffer_size, old.observation_space, old.action_space, old.device, n_envs=old.n_envs, horizon_s=horizon_s,
        trace_s=trace_s,
    )  # fmt: skip
    model.rollout_buffer.clock = made
