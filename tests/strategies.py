"""Hypothesis strategies: workloads, deployments and schedulers with random settings, small enough to run thousands of.

Times are often multiples of 1/64 s and so are costs, so that arrivals, ends of iterations and deadlines meet at one
instant. Nothing is listed by name: schedulers and their parameters are read off the registry.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from servegym.baselines.registry import router, scaler, scheduler, scheduler_names
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup, blocks_held
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Parameter, Policy

MOST_REQUESTS = 16
MOST_PROMPT_TOKENS = 48
MOST_OUTPUT_TOKENS = 10
LONGEST_RUN_S = 20_000.0  # far beyond any of these: a run that would never end fails instead
LARGEST_SETTING = 80  # of a whole-number parameter: beyond it no limit is reached by such workloads

ticks = st.integers(0, 64).map(lambda n: n / 64)  # exact in float64


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    """Times, half of them whole 64ths of a second."""
    whole = st.integers(math.ceil(low * 64), math.floor(high * 64)).map(lambda n: n / 64)
    return st.one_of(whole, st.floats(low, high))


requests = st.fixed_dictionaries(
    {
        # Most requests come in bursts, some of them after a long pause.
        "gap_s": st.one_of(st.just(0.0), ticks, st.floats(0, 1), st.just(30.0)),
        "prompt_tokens": st.one_of(st.integers(1, 8), st.integers(1, MOST_PROMPT_TOKENS)),
        "output_tokens": st.one_of(st.just(1), st.integers(1, MOST_OUTPUT_TOKENS)),
        "priority": st.integers(0, 2),
        "weight": st.sampled_from([0.5, 1.0, 2.0]),
        "ttft_slo_s": seconds(1 / 64, 8),
        "tpot_slo_s": seconds(1 / 64, 2),
        "ttlt_slo_s": st.one_of(st.just(math.inf), st.just(math.inf), seconds(1 / 64, 30)),
        "client": st.integers(0, 2),
        "application": st.integers(0, 2),
        "urgency": st.integers(0, 3),
        "predicted_output_tokens": st.one_of(st.just(math.nan), st.integers(1, MOST_OUTPUT_TOKENS).map(float)),
    }
)


@st.composite
def workloads(draw: st.DrawFn, most_requests: int = MOST_REQUESTS, fewest: int = 1) -> Workload:
    """Bursts and ties, one-token outputs, three priorities, interactive and TTLT classes."""
    rows = draw(st.lists(requests, min_size=fewest, max_size=most_requests))
    columns = {field: np.array([row[field] for row in rows]) for field in rows[0]}
    return Workload.from_columns({"arrival_s": np.cumsum(columns.pop("gap_s")), **columns})


# Seconds per token squared, token, request and batch: all exact in binary, or any.
squared_s = st.one_of(st.sampled_from([0.0, 2**-12]), st.floats(0, 2**-10))
token_s = st.one_of(st.sampled_from([0.0, 1 / 64]), st.floats(0, 1 / 16))
batch_s = st.one_of(st.sampled_from([1 / 64, 1 / 4]), st.floats(2**-10, 1 / 2))  # an iteration takes some time


@st.composite
def linear_models(draw: st.DrawFn) -> LatencyModel:
    """ProServe's form with any coefficients; a prefill token and a decode always cost something."""
    some_s = st.one_of(st.just(1 / 64), st.floats(2**-10, 1 / 8))
    values = {
        "a_p": draw(squared_s), "b_p": draw(squared_s), "c_p": draw(some_s),
        "a_d": draw(token_s), "b_d": draw(some_s), "t_c": draw(batch_s),
    }  # fmt: skip
    return LatencyModel.from_values("linear", values)


# Most deployments have no host memory; what there is is small.
hosts = st.one_of(
    st.none(),
    st.none(),
    st.builds(HostMemory, blocks=st.integers(0, 6), load_s_per_token=ticks, save_s_per_token=ticks),
)


kv_groups = st.tuples(
    st.integers(0, 2).flatmap(lambda n: st.integers(1, 32).map(lambda size: (KvCacheGroup(size),) * n)),
    st.builds(KvCacheGroup, st.integers(1, 16), st.integers(1, 40), st.booleans()).map(lambda group: (group,)),
    st.sampled_from([(), (KvCacheGroup(state=True),) * 2]),
).map(lambda kinds: sum(kinds, ()))
kv_groups = st.one_of(kv_groups, st.just((KvCacheGroup(state=True),)))  # states alone


@st.composite
def deployments(draw: st.DrawFn, workload: Workload, most_engines: int = 3, grouped: bool = False) -> Deployment:
    """Engines whose memory just holds the largest request, or some more: most runs are short of it.

    grouped: some have KV cache groups.
    """
    block_tokens = draw(st.integers(1, 32))
    groups = draw(st.one_of(st.just(()), kv_groups)) if grouped else ()
    table = workload.table
    needed = int((table["prompt_tokens"] + table["output_tokens"] - 1).max())
    device = draw(linear_models())
    least_blocks = int(blocks_held(groups, 0, needed)) if groups else -(-needed // block_tokens)
    return Deployment(
        device=device, estimator=draw(st.one_of(st.just(device), linear_models())),
        total_blocks=least_blocks + draw(st.integers(0, 4)), engines=draw(st.integers(1, most_engines)),
        block_tokens=block_tokens, watermark=draw(st.sampled_from([0.0, 0.01, 0.1, 0.3])),
        host=None if groups else draw(hosts), kv_groups=groups,
    )  # fmt: skip


def values_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    """Values within a parameter's bounds, capped where they go on beyond what a small workload can tell apart."""
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    if parameter.integer:
        low = int(max(parameter.low, -LARGEST_SETTING))
        high = int(min(parameter.high, max(low, LARGEST_SETTING)))
        return st.one_of(st.integers(low, min(high, low + 8)), st.integers(low, high))
    low, high = max(parameter.low, -10.0), min(parameter.high, 10.0)
    return st.floats(low, high)


@st.composite
def policies(draw: st.DrawFn, name: str, kind: str = "scheduler") -> Policy:
    """A registered policy with some of its declared parameters set. A router refuses no request: what then holds is
    other than for runs that serve all, and is in tests/simulator/test_refusing.py."""
    policy = {"scheduler": scheduler, "router": router, "scaler": scaler}[kind](name)
    chosen = {p.name: draw(st.one_of(st.none(), values_of(p))) for p in policy.parameters if p.name != "refuse"}
    return policy.with_settings(**{key: value for key, value in chosen.items() if value is not None})


gains = st.builds(
    Gain, first_weight=st.sampled_from([None, 0.0, 1.0, 4.0]), decode_weight=st.sampled_from([1.0, 0.5]),
)  # fmt: skip


# Most devices do what their model says, and most estimators stay as they are.
disturbances = st.one_of(
    st.just(Disturbance()),
    st.just(Disturbance()),
    st.builds(
        Disturbance, noise=st.floats(0, 0.5), drift_per_s=st.floats(0, 0.001), shift_s=st.floats(0, 10),
        shift_ratio=st.floats(0.25, 4), seed=st.integers(0, 2**32),
    ),
)  # fmt: skip
corrections = st.one_of(
    st.none(),
    st.none(),
    st.builds(Correction, theta=st.floats(0.25, 0.95), window_iterations=st.integers(1, 12), compounding=st.booleans()),
)


predictors = st.one_of(
    st.none(),
    st.none(),
    st.builds(
        Predictor, urgency_error=st.floats(0, 1), length_error=st.floats(0, 1),
        longest_output_tokens=st.just(MOST_OUTPUT_TOKENS), length_buckets=st.sampled_from([None, 3]),
        processing=st.sampled_from(["immediate", "full-batch"]), batch_size=st.integers(1, 4), latency_s=ticks,
        latency_per_request_s=ticks, seed=st.integers(0, 9),
    ),
)  # fmt: skip


@st.composite
def scenarios(
    draw: st.DrawFn, name: str, most_requests: int = MOST_REQUESTS, most_engines: int = 3, grouped: bool = False
) -> Scenario:
    """A whole run under the scheduler of this name. grouped: some engines have KV cache groups."""
    workload = draw(workloads(most_requests))
    deployment = draw(deployments(workload, most_engines, grouped))
    return Scenario(
        workload, deployment, draw(policies(name)), draw(gains), LONGEST_RUN_S, disturbance=draw(disturbances),
        correction=draw(corrections), predictor=draw(predictors),
    )  # fmt: skip


# Clusters

links = st.builds(
    Link,
    bytes_per_token=st.sampled_from([0.0, 1.0, 3.0]),
    bytes_per_s=st.one_of(st.sampled_from([math.inf, 64.0, 4.0]), st.floats(1, 1000)),
    latency_s=st.one_of(st.just(0.0), ticks, st.floats(0, 1)),
    shared=st.booleans(),
)
# Roles of the pools: co-located ones, disaggregated ones, and both beside each other.
shapes = st.one_of(
    st.sampled_from([("both",), ("both", "both")]),
    st.tuples(st.integers(1, 2), st.integers(1, 2)).map(lambda n: ("prefill",) * n[0] + ("decode",) * n[1]),
    st.sampled_from([("prefill", "decode", "both"), ("both", "decode", "prefill")]),
)


@st.composite
def clusters(draw: st.DrawFn, workload: Workload, takes_back: bool = False) -> Cluster:
    """Pools of an engine or two, each with its device, its memory and perhaps its scheduler; any link and delay.

    takes_back: requests may be taken back from engines, and are then prefilled with their answers.
    """
    pools = []
    for role in draw(shapes):
        # A pool whose scheduler is None takes the scenario's.
        of_pool = draw(st.one_of(st.none(), st.sampled_from(scheduler_names())))
        pool_scheduler = None if of_pool is None else draw(policies(of_pool))
        pool = draw(deployments(workload, most_engines=draw(st.sampled_from([1, 1, 2]))))
        if role == "prefill" and not takes_back:  # it needs no memory for answers
            needed = -(-int(workload.table["prompt_tokens"].max()) // pool.block_tokens)
            pool = dataclasses.replace(pool, total_blocks=needed + draw(st.integers(0, 2)))
        pools.append(dataclasses.replace(pool, role=role, scheduler=pool_scheduler))
    delay_s = draw(st.one_of(st.just(0.0), st.sampled_from([1 / 64, 0.25, 2.0]), st.floats(0, 4)))
    return Cluster(tuple(pools), draw(links), delay_s)


@st.composite
def cluster_scenarios(draw: st.DrawFn, name: str, most_requests: int = MOST_REQUESTS) -> Scenario:
    """A whole run of a cluster under the router of this name, any scheduler."""
    fewest = draw(st.sampled_from([1, most_requests // 4, 3 * most_requests // 4]))
    workload = draw(workloads(most_requests, max(1, fewest)))
    # Engines share the work: for them to be short of anything it has to come faster.
    workload = workload.replace(arrival_s=workload.table["arrival_s"] * draw(st.sampled_from([1.0, 1 / 16, 0.0])))
    policy = draw(policies(name, "router"))
    return Scenario(
        workload,
        draw(clusters(workload, policy.moves_engines)),
        draw(policies(draw(st.sampled_from(scheduler_names())))),
        draw(gains),
        LONGEST_RUN_S,
        disturbance=draw(disturbances),
        correction=draw(corrections),
        predictor=draw(predictors),
        router=policy,
    )


# LoRA adapters


@st.composite
def adapted(draw: st.DrawFn, drawn: st.SearchStrategy[Scenario]) -> Scenario:
    """Scenarios of one pool whose requests name adapters, some or many more than a batch may have."""
    scenario = draw(drawn)
    assert isinstance(scenario.deployment, Deployment)
    n, most = len(scenario.workload), draw(st.sampled_from([1, 3, 12]))
    adapter = draw(st.lists(st.integers(0, most), min_size=n, max_size=n))
    max_loras = draw(st.integers(1, 4))
    max_cpu_loras = draw(st.one_of(st.none(), st.integers(max_loras, max_loras + 4)))
    adapters = Adapters(max_loras, draw(ticks), draw(ticks), max_cpu_loras)
    return dataclasses.replace(
        scenario,
        workload=scenario.workload.replace(adapter=np.array(adapter)),
        deployment=dataclasses.replace(scenario.deployment, adapters=adapters),
    )


# Sessions and closed loops


@st.composite
def sessions_of(draw: st.DrawFn, drawn: st.SearchStrategy[Scenario]) -> Scenario:
    """Scenarios in which requests follow others, or only so many are under way."""
    scenario = draw(drawn)
    n = len(scenario.workload)
    after = [-1] + [draw(st.one_of(st.just(-1), st.just(i - 1), st.integers(0, i - 1))) for i in range(1, n)]
    think_s = draw(st.lists(st.one_of(st.just(0.0), ticks, st.floats(0, 5)), min_size=n, max_size=n))
    columns = {field: scenario.workload.table[field] for field in scenario.workload.table.dtype.names}
    limit = st.one_of(st.none(), st.integers(1, 4))
    predictor = scenario.predictor
    if predictor is not None and predictor.takes_time:
        predictor = None
    return dataclasses.replace(
        scenario,
        workload=Workload.from_columns(columns, turns=SessionDependencies(np.array(after), np.array(think_s))),
        predictor=predictor,
        clients=draw(limit),
        max_concurrency=draw(limit),
    )
