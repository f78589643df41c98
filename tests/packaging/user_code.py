"""What a user writes, for mypy (test_types.py): every line says which type it takes something to be."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pandas as pd

import servegym
from servegym.envs.agents import Agent, BaseAgent, play
from servegym.envs.engine_batching import EngineBatchingEnv, EngineBatchingVectorEnv
from servegym.scenarios.spec import ServingSpec


def simulated() -> float:
    result = servegym.simulate("azure-conv", scheduler="edf", load=1.0, engines=2, router="min-load")
    assert_type(result, servegym.Result)
    assert_type(result.requests, pd.DataFrame)
    assert_type(result.summary, dict[str, Any])
    return float(result.summary["tdg_ratio"])


def built() -> servegym.Scenario:
    spec = servegym.ServingSpec().replaced(load=0.9, trace="azure-code")
    assert_type(spec, ServingSpec)
    workload = servegym.build_workload("azure-code", requests=10, rate_per_s=4.0)
    assert_type(workload, servegym.Workload)
    return spec.build(workload=workload)


class MyAgent:
    def act(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return np.zeros(2, np.float32)


def played() -> float:
    agents: list[Agent] = [BaseAgent(), MyAgent()]
    env = EngineBatchingEnv(preset="overload", requests=20)
    envs = EngineBatchingVectorEnv(4, preset="overload")
    envs.close()
    assert_type(env.simulation, servegym.Simulation)
    return sum(play(env, agent, seed=0) for agent in agents)


def wrong() -> None:
    servegym.simulate("azure-conv", until_s="later")  # type: ignore[arg-type]
    EngineBatchingVectorEnv("four")  # type: ignore[arg-type]
    print(servegym.nothing)  # type: ignore[attr-defined]
