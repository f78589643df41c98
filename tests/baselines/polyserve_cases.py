"""One decision of PolyServe's router or scaler from engines written by hand.

A batch takes 1 s + 0.1 s a prefill token + 0.1 s a decode + 0.01 s a token that decodes have cached; a KV block holds
one token. Tiers are 3 and 6 s. Nobody has finished, so an answer counts as 10 tokens; the token budget is 32.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from servegym.baselines.registry import router, scaler, scheduler
from servegym.baselines.routers.polyserve_forecast import FIELDS
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import ROLES
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.observations.seeing import scaler_context
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

MODEL = linear(t_c=1.0, c_p=0.1, b_d=0.1, a_d=0.01)
TIERS = (3.0, 6.0)


def request(prompt: int, tpot_s: float = 6.0, ttft_s: float = 100.0, emitted: int = 0, computed: int = 0) -> dict:
    """It arrives at 0."""
    return {"prompt": prompt, "tpot_s": tpot_s, "ttft_s": ttft_s, "emitted": emitted, "computed": computed}


def decoding(n: int, prompt: int, emitted: int, tpot_s: float = 6.0) -> list[dict]:
    return [request(prompt, tpot_s, emitted=emitted, computed=prompt + emitted - 1)] * n


def engine(tier: int = -1, running: Any = (), record: Any = (), role: str = "both", **more: Any) -> dict:
    """more: fields of its snapshot, or of what the router keeps of it."""
    return {"tier": tier, "running": list(running), "record": list(record), "role": role, "more": more}


def simulated(rows: list[dict], engines: tuple[dict, ...], total_blocks: int, text: str) -> Simulation:
    """A simulation whose snapshots, and nothing else, are those of the engines; the requests are numbered in order."""
    names = ("prompt_tokens", "tpot_slo_s", "ttft_slo_s")
    columns = zip(names, ("prompt", "tpot_s", "ttft_s"), strict=True)
    workload = requests(output_tokens=50, **{name: np.array([row[key] for row in rows]) for name, key in columns})
    pools = [
        Deployment(MODEL, MODEL, total_blocks, len(list(those)), 1, 0.0, role=role)
        for role, those in itertools.groupby(engines, key=lambda one: one["role"])
    ]
    if {pool.role for pool in pools} in ({"prefill"}, {"decode"}):  # the other, which is never looked at
        pools.append(
            Deployment(MODEL, MODEL, 5000, 1, 1, 0.0, role={"prefill": "decode"}.get(pools[0].role, "prefill"))
        )
    scenario = Scenario(workload, Cluster(tuple(pools), tiers=TIERS), scheduler("polyserve"), router=router(text))
    simulation = Simulation(scenario)
    for r, row in enumerate(rows):
        simulation.arrays.requests[r]["num_output_tokens"] = row["emitted"]
        simulation.arrays.requests[r]["computed_tokens"] = row["computed"]
    known, state = simulation.router_state.known, simulation.router_state.state
    numbers = itertools.count(0)
    for e, one in enumerate(engines):
        snapshot = known.snapshots[e]
        assert ROLES[snapshot["role"]] == one["role"]
        for k, _ in enumerate(one["running"]):
            known.decoding[e, k] = next(numbers)
        for k, row in enumerate(one["record"]):
            known.prefilling[e, k] = next(numbers)
            snapshot["prefill_tokens"] += row["prompt"]
        snapshot["tier"], snapshot["decodes"], snapshot["prefills"] = (
            one["tier"],
            len(one["running"]),
            len(one["record"]),
        )
        snapshot["requests"] = snapshot["decodes"] + snapshot["prefills"]
        for field, value in one["more"].items():
            if field in FIELDS:
                state[e, FIELDS.index(field)] = value
            else:
                snapshot[field] = value
    return simulation


class Decided(NamedTuple):
    engine: int  # -1: it is held
    tier: int  # into which the engine goes; -1: it stays
    line: int
    state: np.ndarray  # float64[engines, FIELDS], what the router keeps afterwards


def decided(new: dict, *engines: dict, now_s: float = 0.0, total_blocks: int = 5000, **settings: Any) -> Decided:
    """What the router does with a request."""
    pairs = "".join(f",{key}={value}" for key, value in settings.items())
    rows = [row for one in engines for row in (*one["running"], *one["record"])] + [new]
    simulation = simulated(rows, engines, total_blocks, f"polyserve:max_num_batched_tokens=32,output_tokens=10{pairs}")
    router_state = simulation.router_state
    route = router_state.route[0]
    route["engine"], route["tier"] = -1, -1
    policy = simulation.settings.router
    context = simulation.router_context(now_s)._replace(scratch=np.zeros((policy.scratch.rows, len(rows) + 1)))
    policy.function.entry(context, len(rows) - 1, route)
    return Decided(int(route["engine"]), int(route["tier"]), int(route["held_queue"]), router_state.state)


def scaled(*engines: dict, waiting: tuple[int, ...] = (0, 0)) -> list[tuple[int, int]]:
    """(tier, closed) of each engine after a check; waiting: requests in the lines of the tiers."""
    rows = [row for one in engines for row in (*one["running"], *one["record"])] + [request(1)]
    simulation = simulated(rows, engines, 5000, "polyserve")
    router_state = simulation.router_state
    for tier, number in enumerate(waiting):
        router_state.known.tiers[tier]["waiting"] = number
    router_state.moves["tier"], router_state.moves["closed"] = (
        router_state.known.snapshots["tier"],
        router_state.known.snapshots["closed"],
    )
    context = scaler_context(simulation, 0.0)._replace(parameters=np.array([1.0]))
    scaler("polyserve").function.entry(context, router_state.moves)
    return [(int(move["tier"]), int(move["closed"])) for move in router_state.moves[: len(engines)]]
