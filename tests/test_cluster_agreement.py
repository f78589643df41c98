"""Clusters in the compiled simulator against the slow reference one (tests/reference, written from docs/ alone).

Half of the scenarios are of whole numbers of 2^-26 s and tokens, where float64 arithmetic is exact: there events of
several engines fall on one instant, and everything must be equal in one order. In the others times agree within 1e-9 s.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import router, router_names, scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.cluster import Cluster, Link
from servegym.simulator.deployment import Deployment
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.gains import Gain
from servegym.simulator.policies import Policy
from servegym.simulator.results import Result
from servegym.simulator.simulation import Scenario, Simulation
from servegym.simulator.types import TIMELINE_KINDS
from servegym.simulator.workload import Workload
from tests import any_router, anything
from tests.reference import simulator as reference
from tests.reference.disturbances import Drift
from tests.reference.engines import HostMemory as ReferenceHostMemory
from tests.reference.latency import Latency, Linear
from tests.reference.requests import INF
from tests.reference.routers import ROUTERS, Router
from tests.reference.simulator import Pool
from tests.reference.transfers import Link as ReferenceLink
from tests.test_agreement import (
    CASES,
    RandomPredictor,
    moved,
    random_device,
    random_drift,
    random_host,
    random_latency,
    random_workload,
    reference_scheduler,
)
from tests.timelines import iterations

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "round-robin": [{}],
    "random": [{"seed": 7}],
    "min-load": [{}],
    "min-tokens": [{}],
    "min-cycle-time": [{"token_budget": 100}, {"token_budget": 2}],
    "gorouting": [
        {},
        {"decodes": "recurring", "mu": 0.0, "eta": 0.01},
        {"decodes": "recurring", "fallback": "least-loaded", "alpha": 0.4, "mu": 0.05, "lambda": 0.3},
        {"fallback": "least-loaded", "alpha": 0.0, "mu": 0.02, "lambda": 0.1, "eta": 0.02, "local_order": "arrival"},
    ],
}
CASES_OF_ROUTERS = [(name, settings) for name, variants in SETTINGS.items() for settings in variants]
# Roles of the pools, prefill and decode pools in any place.
ROLES = [
    ("both",), ("both", "both"), ("prefill", "decode"), ("decode", "prefill"), ("prefill", "decode", "decode"),
    ("both", "prefill", "decode"), ("prefill", "decode", "both"), ("prefill", "prefill", "both", "decode"),
]  # fmt: skip
SEVERAL_DECODE_POOLS = [("prefill", "decode", "decode"), ("decode", "prefill", "decode")]
NO_DRIFT = Disturbance()


def test_every_registered_router_is_checked() -> None:
    assert set(SETTINGS) == set(router_names()) == set(ROUTERS)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("name", "settings"), CASES_OF_ROUTERS)
def test_agrees_with_the_reference(name: str, settings: dict[str, Any], seed: int) -> None:
    keywords = {"lam" if key == "lambda" else key: value for key, value in settings.items()}
    random = np.random.default_rng([seed, len(name), len(settings)])
    check(random, router(name).with_settings(**settings), ROUTERS[name](**keywords), sensible_scheduler)


@pytest.mark.parametrize("seed", range(40))
def test_a_router_knows_the_same(seed: int) -> None:
    random = np.random.default_rng([seed, 2])
    settings = {"names": int(random.choice([0, 2, 5]))}
    check(random, any_router.POLICY.with_settings(**settings), any_router.AnyEngine(**settings), sensible_scheduler)


@pytest.mark.parametrize("seed", [5000, 5001, 5083, 5210])  # the last two: a line that is not tried has memory by then
def test_a_shared_link_to_several_pools(seed: int) -> None:
    random = np.random.default_rng([seed, 2])
    settings = {"names": int(random.choice([0, 2, 5]))}
    routing, theirs = any_router.POLICY.with_settings(**settings), any_router.AnyEngine(**settings)
    check(random, routing, theirs, sensible_scheduler, shared=True)


@pytest.mark.parametrize("seed", range(30))
def test_agrees_under_any_limits(seed: int) -> None:
    # Two requests may take memory from each other forever when ranks change at random.
    random = np.random.default_rng([seed, 3])
    check(random, any_router.POLICY, any_router.AnyEngine(), any_scheduler, until_s=1.5)


def test_queues_and_records_grow() -> None:
    """More requests at one instant than an engine's queue, its record and its line have room for at first."""
    random = np.random.default_rng(4)
    n = 700
    workload = Workload.from_columns(
        {
            "arrival_s": np.zeros(n),
            "prompt_tokens": random.integers(1, 20, n),
            "output_tokens": random.integers(1, 4, n),
            "ttft_slo_s": 0.3,
            "tpot_slo_s": 0.05,
        }
    )
    pools = []
    for role in ("prefill", "decode", "both"):
        (estimator, theirs), (device, real) = whole_latency(random, False), whole_latency(random, False)
        policy, reference_policy = scheduler("vllm-v1"), reference_scheduler("vllm-v1", {}, 200)
        ours = Deployment(device, estimator, 200, 1, 16, 0.0, role=role, scheduler=policy)
        pools.append(Served(ours, Pool(1, 16, 200, 0.0, reference_policy, real, theirs, role)))
    run_both(workload, pools, Link(2.0, 2.0**17), 2.0**-7, router("min-tokens"), ROUTERS["min-tokens"](), exact=True)


Schedulers = Callable[[np.random.Generator, int], tuple[Policy, Any]]


def sensible_scheduler(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    name, settings = CASES[int(random.integers(len(CASES)))]
    return scheduler(name).with_settings(**settings), reference_scheduler(name, settings, total_blocks)


def any_scheduler(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    settings = anything.random_settings(random)
    return anything.POLICY.with_settings(**settings), anything.Anything(**anything.reference_settings(settings))


def whole_latency(random: np.random.Generator, coarse: bool) -> tuple[LatencyModel, Linear]:
    """Whole numbers of 2^-26 s. Coarse: a batch takes 2^-7 s or twice that, so that many end at one instant."""
    grain_s = np.array([2.0**-26, 2.0**-26, 2.0**-14, 2.0**-20, 2.0**-12, 2.0**-7])
    times = np.array([0, 0, 0, 0, 0, 1]) if coarse else np.array([1, 1, 1, 1, 1, 1])
    coefficients = (grain_s * times * random.integers(1, 3, 6)).tolist()
    values = dict(zip(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), coefficients, strict=True))
    return LatencyModel.from_values("linear", values), Linear(**values)


def whole_workload(random: np.random.Generator) -> Workload:
    """Arrivals at whole numbers of 2^-7 s, most of them in bursts."""
    table = random_workload(random).table
    columns = {field: table[field] for field in table.dtype.names}
    return Workload.from_columns(columns | {"arrival_s": np.floor(table["arrival_s"] * 2**7) / 2**7})


@dataclasses.dataclass(frozen=True)
class Served:
    """One pool for each simulator."""

    ours: Deployment
    theirs: Pool


def random_pool(
    random: np.random.Generator, role: str, engines: int, workload: Workload, exact: bool, schedulers: Schedulers
) -> Served:
    device: tuple[LatencyModel, Latency]
    if exact:
        estimator, device = whole_latency(random, False), whole_latency(random, bool(random.random() < 0.5))
    else:
        estimator, device = random_latency(random), random_device(random)
    block_tokens = int(random.choice([1, 4, 16]))
    longest = int((workload.table["prompt_tokens"] + workload.table["output_tokens"]).max())
    total_blocks = -(-longest // block_tokens) + int(random.integers(0, 300 // block_tokens + 2))
    watermark = float(random.choice([0.0, 0.1]))
    policy, theirs = schedulers(random, total_blocks)
    host = random_host(random, total_blocks)
    if exact and host is not None:
        host = dataclasses.replace(host, load_s_per_token=2.0**-15, save_s_per_token=0.0)
    return Served(
        Deployment(
            device[0], estimator[0], total_blocks, engines, block_tokens, watermark, host=host, role=role,
            scheduler=policy,
        ),
        Pool(
            engines, block_tokens, total_blocks, watermark, theirs, device[1], estimator[1], role,
            None if host is None else ReferenceHostMemory(**dataclasses.asdict(host)),
        ),
    )  # fmt: skip


def random_link(random: np.random.Generator) -> Link:
    """At once, fast, slow or late; own or shared."""
    bytes_per_token, latency_s = ((0.0, 0.0), (0.0, 2.0**-6), (2.0, 0.0), (64.0, 2.0**-8))[int(random.integers(4))]
    return Link(bytes_per_token, 2.0**17, latency_s, shared=bool(random.random() < 0.5))


def slow_shared_link(random: np.random.Generator) -> Link:
    return Link((0.0, 64.0)[int(random.integers(2))], 2.0**17, 2.0**-8, shared=True)


def check(
    random: np.random.Generator,
    routing: Policy,
    reference_router: Router,
    schedulers: Schedulers,
    until_s: float = INF,
    shared: bool = False,
) -> None:
    """Run a random cluster in both simulators and compare all that happens."""
    exact = bool(random.random() < 0.5)
    workload = whole_workload(random) if exact else random_workload(random)
    choices = SEVERAL_DECODE_POOLS if shared else ROLES
    roles = choices[int(random.integers(len(choices)))]
    pools = []
    for role in roles:
        engines = int(random.integers(2, 6)) if len(roles) == 1 else int(random.integers(1, 4))
        pools.append(random_pool(random, role, engines, workload, exact, schedulers))
    link = slow_shared_link(random) if shared else random_link(random)
    signal_delay_s = float(random.choice([0.0, 0.0, 2.0**-7, 2.0**-4]))
    drift, correction = (NO_DRIFT, None) if exact else random_drift(random)
    predictor = RandomPredictor(int(random.integers(1000))) if not exact and random.random() < 0.3 else None
    if until_s == INF and random.random() < 0.2:
        until_s = 0.75

    run_both(
        workload, pools, link, signal_delay_s, routing, reference_router, exact, until_s, drift, correction, predictor
    )  # fmt: skip


def run_both(
    workload: Workload,
    pools: list[Served],
    link: Link,
    signal_delay_s: float,
    routing: Policy,
    reference_router: Router,
    exact: bool,
    until_s: float = INF,
    drift: Disturbance = NO_DRIFT,
    correction: Correction | None = None,
    predictor: RandomPredictor | None = None,
) -> None:
    gain = Gain(first_weight=2.0)  # sums of gains are exact: rounding does not say whether one more request adds any
    cluster = Cluster(tuple(pool.ours for pool in pools), link, signal_delay_s)
    scenario = Scenario(workload, cluster, scheduler("edf"), gain, until_s, drift, correction, predictor, routing)
    result = Simulation(scenario, record_timeline=True).run()
    log = reference.simulate_cluster(
        reference_rows(workload, gain, predictor),
        [pool.theirs for pool in pools],
        reference_router,
        ReferenceLink(**dataclasses.asdict(link)),
        signal_delay_s,
        until_s,
        Drift(drift.drift_per_s, drift.shift_s, drift.shift_ratio),
        None if correction is None else dataclasses.astuple(correction),
    )
    compare(result, log, exact, until_s)


def reference_rows(workload: Workload, gain: Gain, predictor: RandomPredictor | None) -> list[dict]:
    columns = {field: workload.table[field] for field in workload.table.dtype.names}
    columns["first_token_gain"], columns["decode_token_gain"] = gain.token_gains(workload.table)
    if predictor is not None:
        columns |= dataclasses.asdict(predictor.predict(workload))
    return [{field: column[i].item() for field, column in columns.items()} for i in range(len(workload))]


def compare(result: Result, log: reference.Log, exact: bool, until_s: float) -> None:
    def same(ours: Any, theirs: Any) -> bool:
        return ours == theirs if exact else ours == pytest.approx(theirs, abs=1e-9, nan_ok=True)

    n, engines = len(log.gains), len(log.busy_s)
    got = moves(result)
    for request in range(n):  # its way through the cluster
        ours = [move for move in got if move.request == request]
        theirs = [move for move in log.moves if move.request == request]
        assert [(m.kind, m.engine, m.blocks) for m in ours] == [(m.kind, m.engine, m.blocks) for m in theirs], request
        assert same([m.time_s for m in ours], [m.time_s for m in theirs]), request
    if exact:
        assert [(m.kind, m.request) for m in got] == [(m.kind, m.request) for m in log.moves]
    blocks = result.arrays.engines["total_blocks"]
    ran, moved_kv = iterations(result), moved(result)
    for engine in range(engines):
        ours_here = [i for i in ran if i.engine == engine]
        theirs_here = [i for i in log.iterations if i.engine == engine]
        for ours, theirs, (saved, loaded) in zip(ours_here, theirs_here, moved_kv[engine], strict=False):
            where = f"engine {engine} at {theirs.start_s}"
            assert ours.batch == theirs.batch, where
            assert ours.evicted == theirs.evicted, where
            assert (saved, loaded) == (theirs.saved, theirs.loaded), where
            assert same(ours.start_s, theirs.start_s), where
            if theirs.free_blocks_at_end is not None:
                assert ours.used_blocks == blocks[engine] - theirs.free_blocks_at_end, where
                assert same(ours.end_s, theirs.end_s), where
        assert len(ours_here) == len(theirs_here)
    if exact:
        assert [(i.engine, i.batch) for i in ran] == [(i.engine, i.batch) for i in log.iterations]
    outcomes, rows = result.arrays.outcomes, result.arrays.engines
    assert outcomes["finish_s"] == pytest.approx(np.array(log.finish_s, dtype=float), abs=1e-9, nan_ok=True)
    assert outcomes["gain"] == pytest.approx(np.array(log.gains), abs=1e-9)
    assert result.summary["preemptions"] == log.evictions
    if until_s == INF:  # else what runs then is counted in part
        assert rows["busy_s"] == pytest.approx(np.array(log.busy_s), abs=1e-9)
        assert not np.isnan(outcomes["finish_s"]).any()


def moves(result: Result) -> list[reference.Move]:
    """Of a run recorded with its timeline, in the order they happened."""
    arrays = result.arrays
    lines = [
        reference.Move(
            TIMELINE_KINDS[line.kind], float(line.time_s), int(line.request), int(line.engine), int(line.tokens)
        )
        for line in arrays.timeline[: arrays.clock[0].timeline_used]
    ]
    return [
        move if move.kind == "departed" else dataclasses.replace(move, blocks=0)
        for move in lines
        if move.kind in ("arrival", "departed", "received")
    ]
