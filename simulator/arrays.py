"""The arrays of a run as they are before anything has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servegym.simulator import types as layout
from servegym.simulator.cluster import Cluster, cluster_of
from servegym.simulator.deployment import Deployment, EstimatorModel
from servegym.simulator.incidents import to_array as incidents_as_array
from servegym.simulator.memory import empty_blocks
from servegym.simulator.operators import WHOLE
from servegym.simulator.policies import Policy
from servegym.simulator.prefixes import Prompts, empty_stores
from servegym.simulator.routing import in_turn
from servegym.simulator.scaling import stay
from servegym.simulator.signatures import KINDS, Books, Estimates, Functions, Known, Prefixes, Run, StateTables
from servegym.simulator.workload import FIELDS

if TYPE_CHECKING:
    from servegym.simulator.predictors import Predictions
    from servegym.simulator.simulation import Scenario

IN_TURN = Policy("in-turn", "router", "Request i goes to engine i mod n.", "", in_turn)
STATIC = Policy("static", "scaler", "Engines stay in their tiers.", "", stay)
FIRST_CAPACITY = 256  # of an engine's queue; doubled whenever it is full


class Settings(NamedTuple):
    """What a scenario comes to, worked out once for all its runs."""

    cluster: Cluster
    schedulers: list[Policy]  # of each pool
    parameters: np.ndarray  # float64[engines, most parameters]
    router: Policy
    router_parameters: np.ndarray  # float64[parameters]
    scaler: Policy
    scaler_parameters: np.ndarray  # float64[parameters]
    interval_s: float  # between the scaler's being asked; 0: it is not, nor with one engine
    tiers: np.ndarray  # float64[tiers], TPOT SLOs
    incidents: np.ndarray  # INCIDENT[...]
    predictions: Predictions | None
    # Numbered from 0 without gaps: a table by client or by application has no rows for numbers that nobody has.
    clients: np.ndarray  # int64[requests]
    applications: np.ndarray  # int64[requests]


def settings_of(scenario: Scenario) -> Settings:
    cluster, table = cluster_of(scenario.deployment), scenario.workload.table
    pools = cluster.pools
    schedulers = [pool.scheduler or scenario.scheduler for pool in pools]
    router, scaler = scenario.router or IN_TURN, scenario.scaler or STATIC
    facts = scenario.facts_of(pools[0])
    return Settings(
        cluster,
        schedulers,
        by_engine(
            pools, [policy.numbers(scenario.facts_of(pool)) for policy, pool in zip(schedulers, pools, strict=True)]
        ),
        router,
        router.numbers(facts),
        scaler,
        scaler.numbers(facts),
        float(scaler.values(facts).get("interval_s", 0.0)) if cluster.engines > 1 else 0.0,
        cluster.tiers_for(scenario.workload),
        incidents_as_array(scenario.incidents, cluster.engines),
        None if scenario.predictor is None else scenario.predictor.predict(scenario.workload),
        np.unique(table["client"], return_inverse=True)[1],
        np.unique(table["application"], return_inverse=True)[1],
    )


def functions_of(scenario: Scenario, settings: Settings) -> Functions:
    pools = settings.cluster.pools
    return Functions(
        of_kinds([policy.function.value for policy in settings.schedulers]),
        of_kinds([policy.victims.value for policy in settings.schedulers]),
        of_kinds([pool.device.batch_s.value for pool in pools]),
        of_kinds([pool.estimator.batch_s.value for pool in pools]),
        of_kinds([pool.estimator.exec_s.value for pool in pools]),
        scenario.gain.function.value,
    )


def fresh_run(scenario: Scenario, settings: Settings, recording: bool) -> Run:
    """The engines' arrays at the start of a run."""
    pools, engines = settings.cluster.pools, settings.cluster.engines
    capacity = min(len(scenario.workload), FIRST_CAPACITY)
    clock = np.zeros(1, layout.CLOCK)
    clock[0].deciding_engine = clock[0].deciding_request = clock[0].decided = -1
    clock[0].interval_s = settings.interval_s
    clock[0].next_check_s = settings.interval_s or np.inf
    clock[0].moving = settings.router.moves_engines
    clock[0].recording = recording
    clock[0].signal_delay_s = settings.cluster.signal_delay_s
    clock[0].buffered_first_token = scenario.gain.buffered_first_token
    return Run(
        clock=clock,
        requests=fresh_requests(scenario, settings),
        outcomes=fresh_outcomes(scenario, settings.predictions),
        engines=fresh_engines(pools, settings, scenario.workload.prefixes),
        queues=np.zeros((engines, capacity), "i4"),
        entries=np.zeros((engines, capacity), layout.ENTRY),
        sums=np.zeros(4, layout.BATCH),
        blocks=empty_blocks([pool.total_blocks for pool in pools for _ in range(pool.engines)]),
        events=np.zeros(2 * engines, layout.EVENT),  # the end of an iteration and an arrival of KV
        due=np.zeros(engines, "i4"),
        packing=np.zeros(1, layout.PACKING),
        limits=np.zeros(1, layout.LIMITS),
        plan=np.zeros(capacity, layout.PLAN),
        order=np.zeros(capacity, "i4"),
        timeline=np.zeros(4096 if recording else 1, layout.TIMELINE),
        tbt_histogram=np.zeros(layout.TBT_BINS, "i8"),
        parameters=settings.parameters.copy(),
        device=by_engine(pools, [pool.device.coefficients for pool in pools]),
        estimate=by_engine(pools, [pool.estimator.coefficients for pool in pools]),
        fitted=by_engine(pools, [as_fitted(pool.estimator) for pool in pools]),
        state=fresh_state(settings, capacity),
        disturbance=scenario.disturbance.to_array(),
        correction=np.zeros(1, layout.CORRECTION) if scenario.correction is None else scenario.correction.to_array(),
    )


def fresh_books(run: Run, scenario: Scenario, settings: Settings) -> Books:
    """What the router and the scaler know and keep, and what is between engines, at the start of a run."""
    cluster, n = settings.cluster, len(run.requests)
    pools, engines = cluster.pools, cluster.engines
    return Books(
        router=settings.router.function.value,
        scaler=settings.scaler.function.value,
        estimates=Estimates(
            of_kinds([pool.estimator.batch_s.value for pool in pools]),
            of_kinds([pool.estimator.request_s.value for pool in pools]),
            run.estimate.copy(),
            np.zeros(2, layout.BATCH),
        ),
        parameters=settings.router_parameters.copy(),
        state=np.zeros((engines, len(settings.router.state.engine))),
        scaler_parameters=settings.scaler_parameters.copy(),
        scaler_state=np.zeros((engines, len(settings.scaler.state.engine))),
        route=np.zeros(1, layout.ROUTE),
        moves=np.zeros(engines, layout.MOVE),
        known=Known(
            fresh_views(run.engines),
            np.zeros_like(run.queues),
            np.zeros_like(run.queues),
            fresh_tiers(settings.tiers),
            fresh_prefixes(scenario.workload.prefixes, run.engines),
        ),
        signals=np.zeros(2 * n if cluster.signal_delay_s else 0, layout.SIGNAL),
        reports=fresh_reports(run.engines),
        link=cluster.link.to_array(),
        coming=np.zeros(engines, layout.LINE),
        incidents=settings.incidents,
        stores=empty_stores(run.engines["store_sets"]),
        tasks=np.zeros(run.state.tasks.shape, layout.RUNNING),
        operators=operators_of(pools),
    )


def fresh_tiers(tpot_slo_s: np.ndarray) -> np.ndarray:
    """The tiers, best effort, and the requests to be routed now."""
    tiers = np.zeros(len(tpot_slo_s) + 2, layout.TIER)
    tiers["tpot_slo_s"] = [*tpot_slo_s, np.inf, np.inf]
    return tiers


def fresh_prefixes(prompts: Prompts | None, engines: np.ndarray) -> Prefixes:
    if prompts is None:
        return Prefixes(0, np.zeros(1, "i8"), np.zeros(0, "i4"), empty_stores(engines["store_sets"]))
    return Prefixes(prompts.chunk_tokens, prompts.offsets, prompts.chunks, empty_stores(engines["store_sets"]))


def operators_of(pools: tuple[Deployment, ...]) -> np.ndarray:
    """float64[pools, most operators, 4]"""
    tables = [(pool.operators or WHOLE).coefficients for pool in pools]
    together = np.zeros((len(tables), max(map(len, tables)), 4))
    for rows, table in zip(together, tables, strict=True):
        rows[: len(table)] = table
    return together


def of_kinds(items: list) -> tuple:
    """One for each kind of engine there could be; the kinds there are not are as the first."""
    return tuple(items) + (items[0],) * (KINDS - len(items))


def by_engine(pools: tuple[Deployment, ...], numbers: list[np.ndarray]) -> np.ndarray:
    """[engines, longest]: the numbers of each engine's pool, zeros after the end of shorter ones."""
    longest = max(len(values) for values in numbers)
    together = np.zeros((sum(pool.engines for pool in pools), longest), numbers[0].dtype)
    first = 0
    for pool, values in zip(pools, numbers, strict=True):
        together[first : first + pool.engines, : len(values)] = values
        first += pool.engines
    return together


def as_fitted(estimator: EstimatorModel) -> np.ndarray:
    """FITTED[k]: the coefficients of an estimator, apart by what correction does to them."""
    fitted = np.zeros(len(estimator.coefficients), layout.FITTED)
    fitted["scaled"] = np.where(estimator.scaled, estimator.coefficients, 0.0)
    fitted["fixed"] = np.where(estimator.scaled, 0.0, estimator.coefficients)
    return fitted


def fresh_requests(scenario: Scenario, settings: Settings) -> np.ndarray:
    table, predictions = scenario.workload.table, settings.predictions
    requests = aligned_zeros(len(table), layout.REQUEST)
    for field in set(layout.REQUEST.names or ()) & set(FIELDS):
        requests[field] = table[field]
    batch_class = np.isfinite(table["ttlt_slo_s"])
    requests["first_deadline_s"] = table["arrival_s"] + np.where(batch_class, table["ttlt_slo_s"], table["ttft_slo_s"])
    requests["token_interval_s"] = np.where(batch_class, 0.0, table["tpot_slo_s"])
    requests["first_token_gain"], requests["decode_token_gain"] = scenario.gain.token_gains(table)
    requests["client"], requests["application"] = settings.clients, settings.applications
    if predictions is not None:
        requests["urgency"] = predictions.urgency
        requests["predicted_output_tokens"] = predictions.predicted_output_tokens
    requests["first_token_s"] = np.nan
    requests["last_block"] = -1
    requests["engine"] = -1
    requests["task"] = -1
    return requests


def fresh_outcomes(scenario: Scenario, predictions: Predictions | None) -> np.ndarray:
    table = scenario.workload.table
    outcomes = np.zeros(len(table), layout.OUTCOME)
    outcomes["output_tokens"] = table["output_tokens"]
    outcomes["ready_s"] = table["arrival_s"] if predictions is None else predictions.ready_s
    for field in ("admitted_s", "first_token_s", "last_token_s", "finish_s"):
        outcomes[field] = np.nan
    for field in ("decode_engine", "source", "source_block", "next_in_line"):
        outcomes[field] = -1
    return outcomes


def fresh_engines(pools: tuple[Deployment, ...], settings: Settings, prompts: Prompts | None) -> np.ndarray:
    rows = []
    for kind, pool in enumerate(pools):
        engine = np.zeros(pool.engines, layout.ENGINE)
        engine["kind"] = kind
        engine["role"] = layout.ROLES.index(pool.role)
        engine["tier"] = layout.POOL if pool.tier is None else pool.tier
        operators = pool.operators or WHOLE
        engine["layers"], engine["operators"] = operators.layers, len(operators.coefficients)
        engine["check_s"], engine["jitter_s"] = operators.check_s, operators.jitter_s
        engine["block_tokens"] = pool.block_tokens
        engine["total_blocks"] = engine["free_blocks"] = pool.total_blocks
        engine["estimate_scale"] = engine["beta"] = 1.0
        engine["watermark_blocks"] = int(pool.watermark * pool.total_blocks)
        if pool.host is not None:
            engine["host_blocks"] = engine["free_host_blocks"] = pool.host.blocks
            engine["load_s_per_token"] = pool.host.load_s_per_token
            engine["save_s_per_token"] = pool.host.save_s_per_token
        if pool.prefix_store is not None and prompts is not None and pool.role != "decode":
            engine["store_sets"] = pool.prefix_store.sets(prompts.chunk_tokens)
            engine["load_s_per_token"] = pool.prefix_store.load_s_per_token
        rows.append(engine)
    engines = np.concatenate(rows)
    engines["index"] = np.arange(len(engines))
    engines["up"] = 1
    engines["receiving"] = engines["running_task"] = -1
    engines["serving_since_s"] = np.where((engines["tier"] != layout.POOL) | (settings.interval_s == 0), 0.0, np.nan)
    return engines


def fresh_views(engines: np.ndarray) -> np.ndarray:
    views = np.zeros(len(engines), layout.VIEW)
    for field in ("index", "kind", "role", "tier", "up", "block_tokens", "total_blocks", "free_blocks", "store_sets"):
        views[field] = engines[field]
    return views


def fresh_reports(engines: np.ndarray) -> np.ndarray:
    """Before its first report an engine counts as empty."""
    reports = np.zeros((len(engines), layout.REPORTS), layout.REPORT)
    reports["time_s"] = -np.inf
    reports["free_blocks"] = engines["free_blocks"][:, None]
    return reports


def fresh_state(settings: Settings, capacity: int) -> StateTables:
    """Tables wide enough for each of the schedulers; a request's row is cleared when it goes to another engine."""
    engines, states = settings.cluster.engines, [policy.state for policy in settings.schedulers]
    by_request, by_engine, by_client = (
        max(len(getattr(state, field)) for state in states) for field in ("request", "engine", "client")
    )

    def rows(numbers: np.ndarray, wanted: bool | int) -> int:
        return int(numbers.max()) + 1 if wanted else 0

    clients, applications = settings.clients, settings.applications
    by_clients, by_applications = any(s.by_client for s in states), any(s.by_application for s in states)
    return StateTables(
        requests=np.zeros((len(clients) if by_request else 0, by_request)),
        engines=np.zeros((engines if by_engine else 0, by_engine)),
        clients=np.zeros((engines, rows(clients, by_client), by_client)),
        by_client=np.zeros((engines, rows(clients, by_clients)), layout.GROUP),
        by_application=np.zeros((engines, rows(applications, by_applications)), layout.GROUP),
        tasks=np.zeros((engines, capacity if any(s.tasks for s in states) else 0), layout.TASK),
    )


def aligned_zeros(length: int, dtype: np.dtype, alignment: int = 64) -> np.ndarray:
    """Zeros that start at a cache line."""
    raw = np.zeros(length * dtype.itemsize + alignment, "u1")
    start = -raw.ctypes.data % alignment
    return raw[start : start + length * dtype.itemsize].view(dtype)


def longer(array: np.ndarray, length: int, axis: int = 0) -> np.ndarray:
    """A copy with zeros added at the end of an axis."""
    shape = list(array.shape)
    shape[axis] = length
    copy = np.zeros(shape, array.dtype)
    copy[tuple(slice(0, size) for size in array.shape)] = array
    return copy
