"""Simulates a measured run: the same requests, the engine as it was set, vLLM's scheduler."""

from __future__ import annotations

import numpy as np
import pandas as pd

from servegym.baselines.registry import router, scheduler
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.runs import BLOCK_TOKENS, Run
from servegym.latency_models.profile import Profile
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.memory.grouped_prefixes import refused_with
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation

VLLM = "vllm-v1"


def simulated(run: Run, profile: Profile, terms: EngineTerms, caching: bool = True) -> pd.DataFrame:
    """Simulate the run; return ttft_s, itl_s and e2e_s of each request at the client, in the order of the run.

    profile: of the device, without the terms; its front end is simulated if it has one. KV blocks are those that the
    engine logged, else the profile's.
    """
    return with_terms(served(run, profile, terms, caching), terms)


def served(run: Run, profile: Profile, terms: EngineTerms, caching: bool = True) -> pd.DataFrame:
    """Simulate the run with the terms of its steps only; a row a request, times in seconds at the engine."""
    requests = Simulation(scenario_of(run, profile, terms, caching)).run().requests
    return requests[["ttft_s", "tpot_s", "ttlt_s", "output_tokens", "cached_tokens"]]


def scenario_of(
    run: Run, profile: Profile, terms: EngineTerms, caching: bool = True, gain: Gain | None = None
) -> Scenario:
    """Return the scenario of the run, without what the terms add to a request beside its batches.

    Layers with windows or states hold the blocks of their KV cache groups. Groups with which prefix caching is not
    simulated count as if all layers kept as many tokens as a block holds in the mean of requests of 4,096.
    """
    caches = caching and run.prefixes is not None
    groups = () if caches and refused_with(profile.kv.groups) else profile.kv.groups
    block_tokens = profile.kv.block_tokens if groups else BLOCK_TOKENS
    deployment = Deployment(
        terms.device(profile.device),
        profile.estimator,
        run.kv_blocks or profile.kv.total_blocks * profile.kv.block_tokens // block_tokens,
        run.engines,
        block_tokens,
        name=run.name,
        prefix_caching=caches,
        async_scheduling=terms.asynchronous,
        lockstep=run.lockstep,
        kv_groups=groups,
        adapters=run.adapters,
    )
    runs = scheduler(run.scheduler)
    if runs.name == VLLM:
        runs = runs.with_settings(max_num_batched_tokens=run.max_num_batched_tokens, max_num_seqs=run.max_num_seqs)
    return Scenario(
        run.workload(),
        deployment,
        runs,
        gain or Gain(),
        router=router(run.router) if run.engines > 1 else None,
        front_end=profile.front_end,
    )


def with_terms(requests: pd.DataFrame, terms: EngineTerms) -> pd.DataFrame:
    """Return ttft_s, itl_s and e2e_s at the client: with the engine's time of each request outside its batches."""
    tokens = requests["output_tokens"].to_numpy()
    ttft_s = requests["ttft_s"] + terms.before_s + terms.after_s + terms.after_s_per_token
    e2e_s = requests["ttlt_s"] + terms.before_s + terms.after_s + terms.after_s_per_token * tokens
    itl_s = (e2e_s - ttft_s) / np.where(tokens > 1, tokens - 1, np.nan)
    return requests.assign(ttft_s=ttft_s, itl_s=itl_s, e2e_s=e2e_s)[["ttft_s", "itl_s", "e2e_s", "cached_tokens"]]
