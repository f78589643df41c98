"""For each algorithm and environment a training of seconds: overload, few requests, small networks."""

from typing import Any

from servegym.tuners.config import TrainingConfig, from_plain

SCENARIOS = {"trace": ["azure-conv"], "load": 4.0, "slo_scale": 0.4, "requests": {"low": 15, "high": 25}}
PPO = {"n_steps": 8, "batch_size": 32, "n_epochs": 1}
CASES: dict[str, dict[str, Any]] = {
    "ppo-engine-batching": {"environment": "EngineBatching-v0", "algorithm": "ppo", "hyperparameters": PPO},
    "ppo-request-ranking": {
        "environment": "RequestRanking-v0", "algorithm": "ppo", "hyperparameters": PPO, "arguments": {"slots": 6},
    },
    "ppo-scheduling": {
        "environment": "Scheduling-v0", "algorithm": "ppo", "arguments": {"slots": 6},
        "hyperparameters": PPO | {"horizon_s": 2.0, "trace_s": 1.0}, "objective": {"paired": True},
    },
    "ppo-scheduling-of-the-whole": {
        "environment": "Scheduling-v0", "algorithm": "ppo", "arguments": {"slots": 0}, "hyperparameters": PPO,
    },
    "ppo-scheduling-with-sessions": {
        "environment": "Scheduling-v0", "algorithm": "ppo", "hyperparameters": PPO,
        "arguments": {"slots": 6, "sees": "scheduling-sessions"},
    },
    "maskable-ppo-cluster-routing": {
        "environment": "ClusterRouting-v0", "algorithm": "maskable-ppo", "hyperparameters": PPO,
        "arguments": {"engines": 3},
    },
    "maskable-ppo-cached-routing": {
        "environment": "ClusterRouting-v1", "algorithm": "maskable-ppo", "hyperparameters": PPO,
        "arguments": {"engines": 3}, "scenarios": SCENARIOS | {"router": "predicted-cost"},
    },
    "maskable-ppo-routing-with-sessions": {
        "environment": "ClusterRouting-v1", "algorithm": "maskable-ppo", "hyperparameters": PPO,
        "arguments": {"engines": 3, "sees": "caching-sessions"}, "scenarios": SCENARIOS | {"router": "predicted-cost"},
    },
    "maskable-ppo-refusing": {
        "environment": "ClusterRouting-v1", "algorithm": "maskable-ppo", "hyperparameters": PPO,
        "arguments": {"engines": 3, "refuse": True}, "scenarios": SCENARIOS | {"router": "predicted-cost:refuse=0.1"},
    },
    "ppo-tier-scaling": {
        "environment": "TierScaling-v0", "algorithm": "ppo", "hyperparameters": PPO, "arguments": {"engines": 3},
        "scenarios": SCENARIOS | {"scaler": "polyserve:interval_s=0.2"},
    },
}  # fmt: skip


def tiny(name: str, **changes: Any) -> TrainingConfig:
    """One of `CASES`, with changes (in the words of the YAML file)."""
    document = {
        "scenarios": SCENARIOS, "environments": 4, "network": {"hidden": [8, 8], "critic": [8]},
        "budget": {"steps": 64}, "validation": {"scenarios": 3}, "name": name,
    }  # fmt: skip
    return from_plain(TrainingConfig, document | CASES[name] | changes, "")
