"""The arrays of a run at its start."""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.simulator.features.adapters import loras_noted, numbered, prompts_by_adapter
from servegym.simulator.features.front import front_of
from servegym.simulator.features.front_end import NO_FRONT_END
from servegym.simulator.features.session_dependencies import following_of
from servegym.simulator.inputs.deployment import Deployment, EstimatorModel
from servegym.simulator.inputs.predictors import Predictions
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import Settings, by_engine
from servegym.simulator.inputs.workload import FIELDS, Workload
from servegym.simulator.memory.grouped_prefixes import cells_for
from servegym.simulator.memory.prefixes import empty_stores, sets_of
from servegym.simulator.policies.policy import Policy, StateFields
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import fresh, zeros
from servegym.simulator.records.named_blocks import NAMED_BLOCK, Cache, empty_named_blocks, no_names
from servegym.simulator.records.requests import begin_requests
from servegym.simulator.records.signatures import KINDS, Estimates, Known, Prefixes, StateTables
from servegym.simulator.records.state import Functions, RouterState, SimulationState
from servegym.simulator.runs.engine_arrays import (
    as_fitted,
    fresh_engines,
    fresh_reports,
    fresh_snapshots,
    limits_of,
    operators_of,
)
from servegym.simulator.runs.sessions import set_session_deadlines

FIRST_CAPACITY = 256  # of an engine's queue at first; doubled when it is full
FIRST_TIMELINE = 4096  # events of the timeline at first; doubled when it is full
GIVEN = tuple(name for name in layout.REQUEST.names or () if name in FIELDS)  # fields copied from the workload


def functions_of(scenario: Scenario, settings: Settings) -> Functions:
    """Return the functions of the scenario's policies, models and gain, for kernels."""
    pools = settings.cluster.pools
    return Functions(
        of_kinds([policy.function.value for policy in settings.schedulers]),
        of_kinds([policy.victims.value for policy in settings.schedulers]),
        of_kinds([pool.device.batch_s.value for pool in pools]),
        of_kinds([pool.estimator.batch_s.value for pool in pools]),
        of_kinds([pool.estimator.exec_s.value for pool in pools]),
        scenario.gain.function.value,
    )


def fresh_simulation_state(scenario: Scenario, settings: Settings, recording: bool) -> SimulationState:
    """Return the engines' arrays at the start of a run."""
    pools, requests = settings.cluster.pools, len(scenario.workload)
    capacity = min(requests, FIRST_CAPACITY)
    clients, applications = (int(numbers.max()) + 1 for numbers in (settings.clients, settings.applications))
    sizes = {
        "requests": requests,
        "engines": settings.cluster.engines,
        "capacity": capacity,
        "timeline": FIRST_TIMELINE if recording else 1,
        "scratch": scratch_rows(*settings.schedulers, settings.router, settings.scaler),
        "adapters": int(numbered(scenario.workload.table["adapter"]).max()) + 1,
    }
    states = [policy.state for policy in settings.schedulers]
    tables = sizes | state_sizes(states, sizes["engines"], requests, clients, applications)
    tables["tasks"] = capacity if any(state.tasks for state in states) else 0
    status = np.zeros(1, layout.RUN_STATUS)
    status["deciding_engine"] = status["deciding_request"] = status["router"]["decided"] = -1
    scaler = status["scaler"]
    scaler["interval_s"], scaler["next_check_s"] = settings.interval_s, settings.interval_s or np.inf
    scaler["next_ready_s"] = np.inf
    status["router"]["moving"] = settings.router.moves_engines
    status["recording"] = recording
    status["signals"]["delay_s"] = settings.cluster.signal_delay_s
    status["buffered_first_token"] = scenario.gain.buffered_first_token
    workload = scenario.workload
    status["front"] = front_of(requests, workload.turns, scenario.clients, scenario.max_concurrency)
    front_end = scenario.front_end or NO_FRONT_END
    status["front_end"] = front_end.to_array()
    sizes["deliveries"] = requests if front_end.takes_time and scenario.arrivals_depend else 0
    return engines_state(
        pools,
        sizes,
        status=status,
        requests=fresh_requests(scenario, settings),
        outcomes=fresh_outcomes(scenario, settings.predictions),
        engines=fresh_engines(pools, settings.interval_s, scenario.workload, scenario.draft_seed, settings.indexed),
        cache=fresh_cache(pools, scenario.workload),
        parameters=settings.parameters.copy(),
        state=fresh(StateTables, tables),
        disturbance=scenario.disturbance.to_array(),
        **({} if scenario.correction is None else {"correction": scenario.correction.to_array()}),
    )


def engines_state(pools: tuple[Deployment, ...], sizes: dict[str, int], **given: Any) -> SimulationState:
    """Return the arrays of engines. given: those with contents; the others are zeros.

    sizes: requests, engines, capacity, timeline, scratch, and optionally deliveries.
    """
    no_blocks = np.zeros((0, 0), NAMED_BLOCK)
    of_pools = {
        "cache": cache_of(no_blocks, no_blocks, 0, no_chunks()),
        "device": by_engine(pools, [pool.device.coefficients for pool in pools]),
        "estimate": by_engine(pools, [pool.estimator.coefficients for pool in pools]),
        "fitted": by_engine(pools, [as_fitted(pool.estimator) for pool in pools]),
        "engine_limits": by_engine(pools, [limits_of(pool) for pool in pools])[:, 0],
    }
    return fresh(
        SimulationState,
        {"adapters": 1}
        | sizes
        | {"events": 2 * sizes["engines"] + sizes.get("deliveries", 0), "tbt_bins": layout.TBT_BINS},
        **(of_pools | given),
    )


def fresh_router_state(run: SimulationState, scenario: Scenario, settings: Settings) -> RouterState:
    """Return the arrays of the router and the scaler, and those shared between engines, at the start of a run."""
    cluster, (engines, capacity) = settings.cluster, run.queues.shape
    following, snapshots = following_for(scenario), fresh_snapshots(run.engines)
    if settings.indexed:
        snapshots["index_sets"] = np.where(snapshots["publishes"], 0, index_sets(cluster.pools, scenario.workload))
    sizes = {
        "engines": engines,
        "capacity": capacity,
        "tasks": run.state.tasks.shape[1],
        "ahead": capacity if run.engines["ahead"]["on"].any() else 0,
        "signals": 2 * len(run.requests) if cluster.signal_delay_s else 0,
        "kv_events": 2 * published_blocks(run.engines) if cluster.signal_delay_s else 0,
        "router_fields": len(settings.router.state.engine),
        "scaler_fields": len(settings.scaler.state.engine),
        "followings": len(following),
        "entering": len(run.requests) if run.status["front_end"]["delays"][0] else 0,
        "loras": loras_noted(snapshots, run.adapters.shape[1] - 1),
    }
    return fresh(
        RouterState,
        sizes,
        router=settings.router.function.value,
        scaler=settings.scaler.function.value,
        estimates=fresh_estimates([pool.estimator for pool in cluster.pools], run.estimate.copy()),
        parameters=settings.router_parameters.copy(),
        scaler_parameters=settings.scaler_parameters.copy(),
        known=fresh(
            Known,
            sizes,
            snapshots=snapshots,
            tiers=fresh_tiers(settings.tiers),
            prefixes=fresh_prefixes(scenario.workload, snapshots["index_sets"], run.engines),
        ),
        reports=fresh_reports(run.engines),
        link=cluster.link.to_array(),
        incidents=settings.incidents,
        stores=empty_stores(run.engines["store_sets"]),
        operators=operators_of(cluster.pools),
        following=following,
    )


def fresh_estimates(estimators: list[EstimatorModel], coefficients: np.ndarray) -> Estimates:
    """Return a router's estimates. estimators: of each pool. coefficients: float64[engines, most coefficients]."""
    return fresh(
        Estimates,
        {},
        batch_s=of_kinds([estimator.batch_s.value for estimator in estimators]),
        request_s=of_kinds([estimator.request_s.value for estimator in estimators]),
        coefficients=coefficients,
    )


def fresh_tiers(tpot_slo_s: np.ndarray) -> np.ndarray:
    """Return TIER[...]: the tiers, best effort, and the unrouted queue."""
    tiers = np.zeros(len(tpot_slo_s) + 2, layout.TIER)
    tiers["tpot_slo_s"] = [*tpot_slo_s, np.inf, np.inf]
    return tiers


def index_sets(pools: tuple[Deployment, ...], workload: Workload) -> list[int]:
    """Return the sets of the router's prefix index of each engine, as large as what the engine can cache."""
    prompts = workload.prefixes
    rooms = [
        0 if prompts is None else sets_of(pool.prefix_capacity_tokens(workload), prompts.chunk_tokens) for pool in pools
    ]
    return [sets for pool, sets in zip(pools, rooms, strict=True) for _ in range(pool.engines)]


def fresh_prefixes(workload: Workload, sets: np.ndarray, engines: np.ndarray) -> Prefixes:
    """Return the chunks of prompts and the router's empty prefix indices. sets: int64[engines], the sizes of these."""
    prompts, sent = prompts_by_adapter(workload.prefixes, workload.table["adapter"]), empty_stores(sets)
    published = empty_named_blocks([int(engine["total_blocks"] * engine["cache"]["publishes"]) for engine in engines])
    of_engines = (sent, published, no_names(published), engines["kv_groups"].copy())
    if prompts is None:
        return Prefixes(*no_chunks(), *of_engines)
    return Prefixes(prompts.chunk_tokens, *prompts.of_prompts(workload.table["prompt_tokens"]), *of_engines)


def published_blocks(engines: np.ndarray) -> int:
    """Return the most KV events that one engine publishes at a time; 0: none publishes any."""
    return int((engines["total_blocks"] * engines["cache"]["publishes"]).max())


def fresh_cache(pools: tuple[Deployment, ...], workload: Workload) -> Cache:
    """Return the named blocks of engines that cache prefixes, and block tables with room for all requests' blocks."""
    blocks = [pool.total_blocks * pool.caches_prefixes(workload) for pool in pools for _ in range(pool.engines)]
    cells = int(cells_of(pools, workload).sum())
    prompts, chunks = prompts_by_adapter(workload.prefixes, workload.table["adapter"]), no_chunks()
    if prompts is not None:
        chunks = (prompts.chunk_tokens, prompts.offsets, prompts.chunks)
    stored = [pool.stored_blocks(workload) for pool in pools for _ in range(pool.engines)]
    return cache_of(empty_named_blocks(blocks), empty_named_blocks(stored), cells, chunks)


def cache_of(blocks: np.ndarray, stored: np.ndarray, cells: int, chunks: tuple[int, np.ndarray, np.ndarray]) -> Cache:
    """Return a cache of blocks without names, with block tables of so many cells in all."""
    return Cache(blocks, no_names(blocks), stored, no_names(stored), np.zeros(cells, "i4"), *chunks)


def no_chunks() -> tuple[int, np.ndarray, np.ndarray]:
    """Return chunk_tokens, offsets and chunks of a workload without prefixes."""
    return 0, np.zeros(1, "i8"), np.zeros(0, "i4")


def cells_of(pools: tuple[Deployment, ...], workload: Workload) -> np.ndarray:
    """Return int64[requests]: the most cells of each request in `Cache.tables`; 0 without prefix caching."""
    tokens = workload.table["prompt_tokens"].astype("i8") + workload.table["output_tokens"]
    cells = np.zeros(len(tokens), "i8")
    for pool in pools:
        if pool.caches_prefixes(workload):
            blocks = -(-tokens // pool.block_tokens)
            cells = np.maximum(cells, cells_for(pool.kv_groups, tokens, pool.name) if pool.kv_groups else blocks)
    return cells


def of_kinds(items: list) -> tuple:
    """Return a tuple of KINDS items, one for each pool; missing ones are as the first."""
    return tuple(items) + (items[0],) * (KINDS - len(items))


def following_for(scenario: Scenario) -> np.ndarray:
    """Return FOLLOWING[requests]; empty if no request follows another."""
    return set_session_deadlines(following_of(scenario.workload.turns), scenario.workload, scenario.gain)


def fresh_requests(scenario: Scenario, settings: Settings) -> np.ndarray:
    """Return REQUEST[requests] at the start of a run."""
    table, predictions = scenario.workload.table, settings.predictions
    requests = zeros(len(table), layout.REQUEST)
    for field in GIVEN:
        requests[field] = table[field]
    requests["adapter"] = numbered(table["adapter"])
    requests["first_token_gain"], requests["decode_token_gain"] = scenario.gain.token_gains(table)
    requests["client"], requests["application"] = settings.clients, settings.applications
    if predictions is not None:
        requests["urgency"] = predictions.urgency
        requests["predicted_output_tokens"] = predictions.predicted_output_tokens
    if scenario.front_end is not None:
        requests["arrival_s"] -= scenario.front_end.way_back_s
    begin_requests(requests)
    if scenario.workload.turns is not None:
        requests["session"], requests["turn"] = scenario.workload.turns.session, scenario.workload.turns.turn
    return requests


def fresh_outcomes(scenario: Scenario, predictions: Predictions | None) -> np.ndarray:
    """Return OUTCOME[requests] at the start of a run."""
    table = scenario.workload.table
    cells = cells_of(scenario.deployment.pools, scenario.workload)
    outcomes = zeros(len(table), layout.OUTCOME)
    outcomes["output_tokens"] = table["output_tokens"]
    outcomes["table"] = np.cumsum(cells) - cells
    outcomes["ready_s"] = table["arrival_s"] if predictions is None else predictions.ready_s
    for field in ("admitted_s", "first_token_s", "last_token_s", "finish_s", "refused_s"):
        outcomes[field] = np.nan
    for field in ("decode_engine", "source", "next_in_queue"):
        outcomes[field] = -1
    return outcomes


def state_sizes(
    states: list[StateFields], engines: int, requests: int, clients: int, applications: int
) -> dict[str, int]:
    """Return sizes of the policies' state tables that suit each of the schedulers, by name."""
    by_request, by_engine, by_client = (
        max(len(getattr(state, field)) for state in states) for field in ("request", "engine", "client")
    )
    return {
        "request_fields": by_request,
        "engine_fields": by_engine,
        "client_fields": by_client,
        "state_requests": requests if by_request else 0,
        "state_engines": engines if by_engine else 0,
        "state_clients": clients if by_client else 0,
        "clients": clients if any(state.by_client for state in states) else 0,
        "applications": applications if any(state.by_application for state in states) else 0,
    }


def scratch_rows(*policies: Policy) -> int:
    """Return the rows of scratch memory that suffice for each of these policies."""
    return max(policy.scratch.rows for policy in policies)
