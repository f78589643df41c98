"""Random clusters for the comparison with the reference simulator, as both take them.

Half of the scenes are of whole numbers of 2^-26 s and tokens, where float64 arithmetic is exact: there events of
several engines fall on one instant.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.operators import Operators
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.cluster import AT_ONCE, Cluster, Link
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation
from tests import random_scheduler
from tests.agreement_settings import CASES, reference_scheduler
from tests.cluster_log import compare
from tests.random_scenarios import (
    RandomPredictor,
    random_adapters,
    random_device,
    random_drift,
    random_host,
    random_latency,
    random_workload,
    reference_adapters,
    reference_rows,
    with_prefixes,
)
from tests.reference import front_end as reference_front_end
from tests.reference import simulator as reference
from tests.reference import stores, work
from tests.reference.disturbances import Drift
from tests.reference.engines import HostMemory as ReferenceHostMemory
from tests.reference.incidents import Incident as ReferenceIncident
from tests.reference.latency import Latency, Linear
from tests.reference.requests import INF
from tests.reference.routers import Router
from tests.reference.scalers import Scaler
from tests.reference.simulator import Pool, StuckError
from tests.reference.transfers import Link as ReferenceLink

# Roles of the pools, prefill and decode pools in any place.
ROLES = [
    ("both",), ("both", "both"), ("prefill", "decode"), ("decode", "prefill"), ("prefill", "decode", "decode"),
    ("both", "prefill", "decode"), ("prefill", "decode", "both"), ("prefill", "prefill", "both", "decode"),
]  # fmt: skip
SEVERAL_DECODE_POOLS = [("prefill", "decode", "decode"), ("decode", "prefill", "decode")]
NO_DRIFT = Disturbance()
Schedulers = Callable[[np.random.Generator, int], tuple[Policy, Any]]


def sensible_scheduler(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    name, settings = CASES[int(random.integers(len(CASES)))]
    return scheduler(name).with_settings(**settings), reference_scheduler(name, settings, total_blocks)


def any_scheduler(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    return random_scheduler_set(random_scheduler.random_settings(random))


def any_preemptible_scheduler(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    return random_scheduler_set(random_scheduler.random_settings(random) | random_scheduler.random_tasks(random))


def random_scheduler_set(settings: dict[str, Any]) -> tuple[Policy, Any]:
    return random_scheduler.POLICY.with_settings(**settings), random_scheduler.RandomScheduler(
        **random_scheduler.reference_settings(settings)
    )


def whole_latency(random: np.random.Generator, coarse: bool) -> tuple[LatencyModel, Linear]:
    """Whole numbers of 2^-26 s. Coarse: a batch takes 2^-7 s or twice that, so that many end at one instant."""
    grain_s = np.array([2.0**-26, 2.0**-26, 2.0**-14, 2.0**-20, 2.0**-12, 2.0**-7])
    times = np.array([0, 0, 0, 0, 0, 1]) if coarse else np.array([1, 1, 1, 1, 1, 1])
    coefficients = (grain_s * times * random.integers(1, 3, 6)).tolist()
    values = dict(zip(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), coefficients, strict=True))
    return LatencyModel.from_values("linear", values), Linear(**values)


def whole_workload(random: np.random.Generator) -> Workload:
    """Arrivals at whole numbers of 2^-7 s, most of them in bursts."""
    workload = random_workload(random)
    return workload.replace(arrival_s=np.floor(workload.table["arrival_s"] * 2**7) / 2**7)


@dataclasses.dataclass(frozen=True)
class Served:
    """One pool for each simulator."""

    ours: Deployment
    theirs: Pool


def random_operators(random: np.random.Generator, exact: bool) -> tuple[Operators, work.Operators]:
    """Shares of powers of 2 where arithmetic is to be exact."""
    layers, n = int(random.choice([1, 2, 4, 8])), int(random.choice([1, 2, 4]))
    if exact:
        table = np.zeros((n, 4))
        table[:, int(random.integers(4)) if random.random() < 0.5 else 3] = 1.0
        table[:, 3] += 2.0**-3  # (alike, so each has 1 / n whatever the batch)
        check_s, jitter_s = float(random.choice([0.0, 2.0**-16])), 0.0
    else:
        table = random.uniform(0.1, 2.0, (n, 4)) * np.array([1.0, 1e-3, 1e-3, 10.0])
        check_s, jitter_s = random.choice([0.0, 1e-5]), random.choice([0.0, 0.0, 1e-3])
    ours = Operators(layers, table, (), float(check_s), float(jitter_s))
    return ours, work.Operators(layers, tuple(tuple(row) for row in table.tolist()), float(check_s), float(jitter_s))


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


def with_extras(
    random: np.random.Generator, pool: Served, workload: Workload, exact: bool, tiers: int, stores_too: bool
) -> Served:
    """Operators, a tier; and a prefix store, prefix caching, or both."""
    operators, their_operators = random_operators(random, exact)
    tier = None if random.random() < 0.6 else int(random.integers(tiers))
    ours = dataclasses.replace(pool.ours, operators=operators, tier=tier)
    theirs = dataclasses.replace(pool.theirs, operators=their_operators, tier=tier)
    if stores_too and ours.role != "decode" and workload.prefixes is not None and random.random() < 0.8:
        tokens = int(random.choice([1, 16, 40, 200]) * workload.prefixes.chunk_tokens)
        host: HostMemory | None = ours.host
        load_s = 2.0**-16 if host is None else host.load_s_per_token
        ours = dataclasses.replace(ours, prefix_store=PrefixStore(tokens, load_s))
        theirs = dataclasses.replace(theirs, prefix_store=stores.PrefixStore(tokens, load_s))
    caching = bool(stores_too and random.random() < 0.6)
    tells = bool(caching and random.random() < 0.5)
    ours = dataclasses.replace(ours, prefix_caching=caching, kv_events=tells)
    theirs = dataclasses.replace(theirs, prefix_caching=caching, kv_events=tells)
    return Served(ours, theirs)


def with_startup(random: np.random.Generator, pool: Served) -> Served:
    """Engines that are off at first, or some of them, and start at once, soon or late."""
    seconds, started = float(random.choice([0.0, 2.0**-6, 0.125, 0.75])), int(random.integers(pool.ours.engines + 1))
    return Served(
        dataclasses.replace(pool.ours, startup=Startup(seconds, started)),
        dataclasses.replace(pool.theirs, startup=(seconds, started)),
    )


def with_role_changes(random: np.random.Generator, pool: Served) -> Served:
    """Prefill and decode engines that may change their roles, at once, soon or late; they cache nothing."""
    if pool.ours.role == "both":
        return pool
    changed = {"role_change_s": float(random.choice([0.0, 2.0**-6, 0.125, 0.75])), "prefix_caching": False}
    changed |= {"prefix_store": None, "kv_events": False}
    return Served(dataclasses.replace(pool.ours, **changed), dataclasses.replace(pool.theirs, **changed))


def with_lockstep(random: np.random.Generator, pool: Served) -> Served:
    """Engines in groups that divide them."""
    engines = pool.ours.engines
    ranks = int(random.choice([ranks for ranks in range(1, engines + 1) if engines % ranks == 0]))
    return Served(dataclasses.replace(pool.ours, lockstep=ranks), dataclasses.replace(pool.theirs, lockstep=ranks))


def with_lora(random: np.random.Generator, pool: Served, exact: bool) -> Served:
    """LoRA adapters, for requests that name some."""
    adapters = random_adapters(random, exact)
    return Served(
        dataclasses.replace(pool.ours, adapters=adapters),
        dataclasses.replace(pool.theirs, adapters=reference_adapters(adapters)),
    )


def without_tasks(scene: "Scene") -> bool:
    """Whether no scheduler of its pools suspends batches."""
    return not any(pool.ours.scheduler and pool.ours.scheduler.state.tasks for pool in scene.pools)


def random_link(random: np.random.Generator) -> Link:
    """At once, fast, slow or late; own or shared."""
    bytes_per_token, latency_s = ((0.0, 0.0), (0.0, 2.0**-6), (2.0, 0.0), (64.0, 2.0**-8))[int(random.integers(4))]
    return Link(bytes_per_token, 2.0**17, latency_s, shared=bool(random.random() < 0.5))


def slow_shared_link(random: np.random.Generator) -> Link:
    return Link((0.0, 64.0)[int(random.integers(2))], 2.0**17, 2.0**-8, shared=True)


def random_incidents(random: np.random.Generator, engines: int, until_s: float, exact: bool) -> tuple[Incident, ...]:
    """Most engines that fail or are drained return some time."""
    incidents = []
    for _ in range(int(random.integers(1, 6))):
        engine, kind = int(random.integers(engines)), ("fail", "fail", "drain", "return")[int(random.integers(4))]
        times_s = np.sort(random.uniform(0, until_s, 2))
        if exact:
            times_s = np.floor(times_s * 2**7) / 2**7
        incidents.append(Incident(float(times_s[0]), engine, kind))
        if random.random() < 0.7:
            incidents.append(Incident(float(times_s[1]), engine, "return"))
    return tuple(sorted(incidents, key=lambda incident: incident.time_s))


@dataclasses.dataclass
class Scene:
    """A cluster, what it serves and the router, for both simulators."""

    workload: Workload
    pools: list[Served]
    routing: Policy
    reference_router: Router
    exact: bool
    link: Link = AT_ONCE
    signal_delay_s: float = 0.0
    until_s: float = INF
    drift: Disturbance = NO_DRIFT
    correction: Correction | None = None
    predictor: RandomPredictor | None = None
    scaling: Policy | None = None
    reference_scaler: Scaler | None = None
    incidents: tuple[Incident, ...] = ()
    limits: dict[str, int | None] = dataclasses.field(default_factory=dict)  # clients, max_concurrency
    front_end: FrontEnd | None = None

    @property
    def engines(self) -> int:
        return sum(pool.ours.engines for pool in self.pools)


def random_scene(
    random: np.random.Generator,
    routing: Policy,
    reference_router: Router,
    schedulers: Schedulers,
    until_s: float = INF,
    shared: bool = False,
    prefixes: bool = False,
) -> Scene:
    exact = bool(random.random() < 0.5)
    workload = whole_workload(random) if exact else random_workload(random)
    if prefixes:
        workload = with_prefixes(random, workload)
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
    return Scene(
        workload, pools, routing, reference_router, exact, link, signal_delay_s, until_s, drift, correction, predictor
    )


def run_both(scene: Scene) -> tuple[Any, reference.Log] | None:
    """Compare all that happens. None: both end with requests held for good."""
    gain = Gain(first_weight=2.0)  # sums of gains are exact: rounding does not say whether one more request adds any
    cluster = Cluster(tuple(pool.ours for pool in scene.pools), scene.link, scene.signal_delay_s)
    drift, correction = scene.drift, scene.correction
    scenario = Scenario(
        scene.workload, cluster, scheduler("edf"), gain, scene.until_s, drift, correction, scene.predictor,
        scene.routing, scaler=scene.scaling, incidents=scene.incidents, front_end=scene.front_end, **scene.limits,
    )  # fmt: skip
    prefixes = scene.workload.prefixes
    try:
        log = reference.simulate_cluster(
            reference_rows(scene.workload, gain, scene.predictor),
            [pool.theirs for pool in scene.pools],
            scene.reference_router,
            ReferenceLink(**dataclasses.asdict(scene.link)),
            scene.signal_delay_s,
            scene.until_s,
            Drift(drift.drift_per_s, drift.shift_s, drift.shift_ratio),
            None if correction is None else dataclasses.astuple(correction),
            scene.reference_scaler,
            [ReferenceIncident(**dataclasses.asdict(incident)) for incident in scene.incidents],
            chunk_tokens=1 if prefixes is None else prefixes.chunk_tokens,
            front_end=None
            if scene.front_end is None
            else reference_front_end.FrontEnd(**dataclasses.asdict(scene.front_end)),
            **scene.limits,
        )
    except StuckError:
        with pytest.raises(PolicyError):
            Simulation(scenario, record_timeline=True).run()
        return None
    result = Simulation(scenario, record_timeline=True).run()
    compare(result, log, scene.exact)
    return result, log
