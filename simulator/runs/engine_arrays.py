"""The engines' records at the start of a run, and what routers know of them."""

from __future__ import annotations

import numpy as np

from servegym.simulator.features.operators import WHOLE
from servegym.simulator.inputs.deployment import Deployment, EstimatorModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import kinds_of
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import zeros


def fresh_engines(
    pools: tuple[Deployment, ...],
    interval_s: float,
    workload: Workload | None,
    draft_seed: int = 0,
    indexed: bool = False,
) -> np.ndarray:
    """Return ENGINE[engines] of pools. interval_s: between the scaler's decisions; 0: no scaler, all are in service.

    workload: None: without prefixes. draft_seed: of which drafts are accepted. indexed: a policy reads the router's
    prefix index.
    """
    prompts = None if workload is None else workload.prefixes
    engines, first = zeros(sum(pool.engines for pool in pools), layout.ENGINE), 0
    for kind, pool in enumerate(pools):
        engine = engines[first : first + pool.engines]
        first += pool.engines
        engine["pool"] = kind
        engine["role"] = engine["next_role"] = layout.ROLES.index(pool.role)
        engine["role_change_s"] = np.nan if pool.role_change_s is None else pool.role_change_s
        engine["tier"] = layout.POOL if pool.tier is None else pool.tier
        engine["startup_s"] = np.nan
        if pool.startup is not None and interval_s > 0:
            started = np.arange(pool.engines) < pool.startup.started
            engine["tier"] = np.where(started, pool.tier or 0, layout.POOL)
            engine["off"], engine["startup_s"] = ~started, pool.startup.seconds
            engine["ready_s"] = np.where(started, 0.0, np.inf)
        elif pool.role_change_s is not None and interval_s > 0:
            engine["tier"] = pool.tier or 0
        operators = pool.operators or WHOLE
        engine["preemption"]["layers"] = operators.layers
        engine["preemption"]["operators"] = len(operators.coefficients)
        engine["preemption"]["check_s"], engine["preemption"]["jitter_s"] = operators.check_s, operators.jitter_s
        engine["ahead"]["on"] = pool.async_scheduling
        engine["lockstep"]["first"] = first - pool.engines + np.arange(pool.engines) // pool.lockstep * pool.lockstep
        engine["lockstep"]["ranks"] = pool.lockstep
        engine["block_tokens"] = pool.block_tokens
        engine["total_blocks"] = engine["free_blocks"] = pool.total_blocks
        engine["cache"]["on"] = caching = workload is not None and pool.caches_prefixes(workload)
        engine["kv_groups"] = kinds_of(pool.kv_groups, pool.name, caching)
        if pool.adapters is not None:
            for field, value in pool.adapters.values.items():
                engine["adapters"][field] = value
        engine["cache"]["considered"], engine["cache"]["last_free"] = -1, pool.total_blocks - 1
        engine["cache"]["publishes"] = pool.kv_events and indexed and prompts is not None and engine["cache"]["on"]
        engine["cache"]["first_changed"] = -1
        if pool.speculation is not None:
            engine["speculation"]["k"], engine["speculation"]["seed"] = pool.speculation.k, draft_seed
            engine["speculation"]["free"] = pool.speculation.free_verification
        engine["estimate_scale"] = engine["correction"]["beta"] = 1.0
        engine["watermark_blocks"] = int(pool.watermark * pool.total_blocks)
        if pool.host is not None:
            engine["host_blocks"] = engine["free_host_blocks"] = pool.host.blocks
            engine["load_s_per_token"] = pool.host.load_s_per_token
            engine["save_s_per_token"] = pool.host.save_s_per_token
        if pool.prefix_store is not None and workload is not None and prompts is not None and pool.role != "decode":
            engine["load_s_per_token"] = pool.prefix_store.load_s_per_token
            stored, store = pool.stored_blocks(workload), engine["block_store"]
            engine["store_sets"] = 0 if stored else pool.prefix_store.sets(prompts.chunk_tokens)
            store["total_blocks"] = store["free_blocks"] = stored
            store["cache"]["last_free"] = stored - 1
    engines["index"] = np.arange(len(engines))
    engines["up"] = 1
    engines["transfers"]["receiving"] = engines["running_task"] = -1
    engines["totals"]["serving_since_s"] = np.where((engines["tier"] != layout.POOL) | (interval_s == 0), 0.0, np.nan)
    return engines


def limits_of(pool: Deployment) -> np.ndarray:
    """Return ENGINE_LIMITS[1] of a pool."""
    own = (pool.max_num_batched_tokens or layout.NO_LIMIT, pool.max_num_seqs or layout.NO_LIMIT)
    return np.array([own], layout.ENGINE_LIMITS)


def operators_of(pools: tuple[Deployment, ...]) -> np.ndarray:
    """Return float64[pools, most operators, 4]: the coefficients of each pool's operators, padded with zeros."""
    tables = [(pool.operators or WHOLE).coefficients for pool in pools]
    together = np.zeros((len(tables), max(map(len, tables)), 4))
    for rows, table in zip(together, tables, strict=True):
        rows[: len(table)] = table
    return together


def as_fitted(estimator: EstimatorModel) -> np.ndarray:
    """Return FITTED[k]: the coefficients of an estimator, split into those that online correction scales and others."""
    fitted = np.zeros(len(estimator.coefficients), layout.FITTED)
    fitted["scaled"] = np.where(estimator.scaled, estimator.coefficients, 0.0)
    fitted["fixed"] = np.where(estimator.scaled, 0.0, estimator.coefficients)
    return fitted


# Fields of ENGINE_SNAPSHOT that begin as those of ENGINE.
SHARED = ("off", "index", "pool", "role", "tier", "up", "block_tokens", "total_blocks", "free_blocks", "role_change_s")


def fresh_snapshots(engines: np.ndarray) -> np.ndarray:
    """Return ENGINE_SNAPSHOT[engines] at the start of a run."""
    snapshots = zeros(len(engines), layout.ENGINE_SNAPSHOT)
    snapshots["closed"] = engines["off"]
    for field in SHARED:
        snapshots[field] = engines[field]
    snapshots["role_fixed"] = np.isnan(engines["role_change_s"])
    snapshots["publishes"] = engines["cache"]["publishes"]
    adapters = engines["adapters"]
    snapshots["max_loras"], snapshots["max_cpu_loras"] = adapters["max_loras"], adapters["max_cpu_loras"]
    snapshots["lora_load_s"], snapshots["lora_activate_s"] = adapters["load_s"], adapters["activate_s"]
    return snapshots


def fresh_reports(engines: np.ndarray) -> np.ndarray:
    """Return REPORT[engines, REPORTS] at the start of a run: all engines are empty."""
    reports = np.zeros((len(engines), layout.REPORTS), layout.REPORT)
    reports["time_s"] = -np.inf
    reports["free_blocks"] = engines["free_blocks"][:, None]
    return reports
