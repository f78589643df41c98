"""What cases of routers worked on paper are stated in: one decision from engines written by hand, or a short run."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from servegym.baselines.registry import router, scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore, Prompts, use
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.types import ENGINE_SNAPSHOT, HOLD, STAY
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

A_TOKEN_A_SECOND = linear(c_p=1, b_d=1)  # no constant part, unless a case says so
PREFILLS = linear(c_p=1)  # decodes take no time
ROOMY = PrefixStore(10_000)


def waits(prompt_tokens: int, **more: Any) -> dict:
    """A request without a token; deadlines are far off unless it says otherwise. chunks: of 4 tokens, by number; of the
    one that is asked about also its session, and the engine that this was sent to last."""
    slos = {"ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0, "ttlt_slo_s": np.inf}
    return {"prompt_tokens": prompt_tokens, **slos, "weight": 1.0, **more}


def engine(
    *record: dict,
    role: str = "both",
    model: LatencyModel = A_TOKEN_A_SECOND,
    has: int = 0,
    state: Mapping[int, float] = MappingProxyType({}),
    **snapshot: Any,
) -> dict:
    """An engine as a router knows it: its queue record, and fields of its snapshot.

    has: how many of the chunks of the request that is asked about. state: numbers that the router keeps of it.
    """
    return {"record": record, "role": role, "model": model, "snapshot": snapshot, "has": has, "state": state}


def asked(text: str, request: dict, *engines: dict, now_s: float = 0.0, emitted: int = 0, sent: tuple = ()) -> int:
    """The engine that a router names. sent: when each engine was sent a request last, as numbers; 0: never."""
    rows = [*(row for one in engines for row in one["record"]), request]
    columns = {field: [row.get(field, 0.0) for row in rows] for field in (*waits(1), "arrival_s")}
    order = np.argsort(columns["arrival_s"], kind="stable")  # a workload is in order of arrival
    workload = requests(**{field: np.array(values)[order] for field, values in columns.items()})
    if "chunks" in request:
        chunks = [rows[i].get("chunks", []) for i in order]
        workload = dataclasses.replace(
            workload, prefixes=Prompts(4, np.cumsum([0, *map(len, chunks)]), np.concatenate(chunks))
        )
    place = np.argsort(order)
    pools = [
        Deployment(one["model"], one["model"], 5000, block_tokens=1, watermark=0.0, role=one["role"])
        for one in engines
    ]  # fmt: skip
    # Of a cluster there are pools of both roles or of neither; these are never looked at.
    roles = {pool.role for pool in pools}
    if roles & {"prefill", "decode"}:
        missing = {"prefill", "decode"} - roles
        pools += [Deployment(A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 5000, block_tokens=1, role=role) for role in missing]
    scenario = Scenario(
        workload, Cluster(tuple(pools)), scheduler("edf"), Gain(first_weight=1.0), router=router(text)
    )  # fmt: skip
    simulation = Simulation(scenario)
    router_state, run, r = simulation.router_state, simulation.arrays, int(place[-1])
    run.requests[r].num_output_tokens = emitted
    run.requests[r].session = request.get("session", -1)
    run.requests[r].session_engine = request.get("session_engine", -1)
    run.requests[r].computed_tokens = request["prompt_tokens"] if emitted else 0  # its KV is on a prefill engine
    prefilling = np.zeros((len(pools), len(rows) + 1), "i4")
    nth = 0
    for e, one in enumerate(engines):
        for k, row in enumerate(one["record"]):
            prefilling[e, k] = place[nth]
            router_state.known.snapshots[e].prefills += 1
            router_state.known.snapshots[e].prefill_tokens += row["prompt_tokens"]
            router_state.known.snapshots[e].requests += 1
            nth += 1
        for field, value in one["snapshot"].items():
            assert field in ENGINE_SNAPSHOT.names
            router_state.known.snapshots[e][field] = value
        for number, value in one["state"].items():
            router_state.state[e, number] = value
        prefixes, sets = router_state.known.prefixes, router_state.known.snapshots[e].index_sets
        for chunk in prefixes.chunks[prefixes.offsets[r] :][: one["has"]] if one["has"] else ():
            use(prefixes.sent[e, chunk % sets], chunk, 1)
    if sent:
        router_state.state[: len(sent), 0] = sent
    route = router_state.route[0]  # as `route_request` has it beforehand
    route.engine, route.decode_engine, route.tier, route.held_queue = HOLD, -1, STAY, 0
    policy = simulation.settings.router
    context = simulation.router_context(now_s)._replace(
        known=router_state.known._replace(prefilling=prefilling), scratch=np.zeros((policy.scratch.rows, len(rows) + 1))
    )
    policy.function.entry(context, r, route)
    return int(router_state.route[0].engine)


def engines_of(
    text: str,
    *prompts: tuple[float, int, list[int]],
    stores: tuple[PrefixStore | None, ...] = (ROOMY, ROOMY),
    models: tuple[LatencyModel, ...] = (PREFILLS, PREFILLS),
    kv_memory: bool = False,
    **columns: Any,
) -> list[int]:
    """Where each request ends: requests are (arrival, prompt tokens, chunks of 4 tokens), one engine a pool."""
    chunks = Prompts(
        4, np.cumsum([0, *(len(row) for _, _, row in prompts)]), np.array([c for _, _, row in prompts for c in row])
    )
    workload = requests(arrival_s=[p[0] for p in prompts], prompt_tokens=[p[1] for p in prompts], **columns)
    pools = tuple(
        Deployment(model, model, 1000, block_tokens=1, watermark=0.0, prefix_store=store, prefix_caching=kv_memory)
        for store, model in zip(stores, models, strict=True)
    )
    scenario = Scenario(
        dataclasses.replace(workload, prefixes=chunks), Cluster(pools), scheduler("vllm-fcfs"), router=router(text)
    )
    return Simulation(scenario).run().requests["engine"].tolist()


def engines_of_adapters(
    text: str, adapters: list[int], lora: Adapters, gap_s: float, incidents: tuple[Incident, ...] = ()
) -> list[int]:
    """Where requests of 4 tokens with these adapters go, one each `gap_s`, of two engines with LoRA as `lora` says."""
    n = len(adapters)
    workload = Workload.from_columns(
        {"arrival_s": gap_s * np.arange(n), "prompt_tokens": np.full(n, 4), "output_tokens": np.ones(n),
         "adapter": adapters}
    )  # fmt: skip
    pool = Deployment(A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 100, 2, block_tokens=1, adapters=lora)
    scenario = Scenario(
        workload, Cluster((pool,)), scheduler("vllm-fcfs"), router=router(text), incidents=incidents
    )  # fmt: skip
    return Simulation(scenario).run().requests["engine"].tolist()
