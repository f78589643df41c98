"""The event loop beside that of NVIDIA Dynamo's offline replay with several engines, taking turns.

Four that do all at four times the rate of one, and two that prefill and two that decode at twice: two prefill engines
can do no more. Engines are those of `dynamo_comparison`; KV is sent at the same bandwidth. Routers: in turn in both
(`round_robin`), and those that look at the load: Dynamo's `kv_router`, which without a prefix cache goes by blocks,
beside our min-tokens.
"""

import dataclasses
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from experiments.benchmarks.dynamo_comparison import EQUAL_TIMES, engine_options, replay, write_mooncake
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.others import check_same_work, paired_ratio
from experiments.benchmarks.scenarios import DEVICE, RATE_PER_S, SCHEDULER, Sizes, scenario, workload
from experiments.benchmarks.single_engine import loop_s
from servegym.baselines.registry import router
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.parts import LINK_GB_PER_S, Fleet
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.records.types import ROLE_DECODE, ROLE_PREFILL
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation


class Topology(NamedTuple):
    """Engines to compare. loads: how many times the rate of one engine arrives."""

    key: str
    what: str
    spec: ServingSpec
    loads: float


SERVED = ServingSpec().replaced(device=DEVICE)
TOPOLOGIES = (
    Topology("4_workers", "4 workers", SERVED.replaced(engines=4), 4.0),
    Topology(
        "2p2d", "2 prefill and 2 decode workers", SERVED.replaced(prefill=2, decode=2, decode_scheduler=SCHEDULER), 2.0
    ),
)


def measure(sizes: Sizes, dynamo_python: str) -> list[Figure]:
    return [figure for topology in TOPOLOGIES for figure in figures_of(topology, sizes, dynamo_python)]


def figures_of(topology: Topology, sizes: Sizes, dynamo_python: str) -> list[Figure]:
    profile = load_profile(DEVICE)
    case = dataclasses.replace(
        scenario(workload(sizes.compared_cluster_requests, topology.loads * RATE_PER_S)),
        deployment=deployment_of(topology.spec),
    )
    in_turn = Simulation(dataclasses.replace(case, router=router("round-robin")))
    by_load = Simulation(dataclasses.replace(case, router=router("min-tokens")))
    result = in_turn.run()  # compiles, or reads what was compiled
    equal = equal_times(result)
    kinds = {  # of pairs: ours, and what Dynamo is told
        "": (in_turn, worker_options(topology.spec.fleet, profile)),
        "_equal_times": (in_turn, worker_options(topology.spec.fleet, profile, equal)),
        "_kv_router": (by_load, worker_options(topology.spec.fleet, profile) | {"router_mode": "kv_router"}),
    }
    ours_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    theirs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "requests.jsonl"
        write_mooncake(case.workload, trace, profile.kv.block_tokens)
        for _ in range(sizes.repetitions):
            for kind, (simulation, options) in kinds.items():
                ours_s[kind].append(loop_s(simulation))
                done = replay(dynamo_python, trace, profile.kv.block_tokens, **options)
                check_same_work("Dynamo", done, case.workload.table, simulation.result().summary)
                theirs[kind].append(done)
    tpot_error = theirs["_equal_times"][0]["mean_tpot_s"] / result.requests["tpot_s"].mean() - 1
    meanings = {
        "": f"{topology.what}, round robin, Dynamo's own iteration times",
        "_equal_times": f"the same where its iterations take as long as ours (mean TPOT {tpot_error:+.0%})",
        "_kv_router": "its kv_router and its own iteration times, beside our min-tokens",
    }
    ratios = {kind: paired_ratio([done["loop_s"] for done in theirs[kind]], ours_s[kind]) for kind in kinds}
    key = f"dynamo_{topology.key}"
    return [
        *(Figure(f"{key}{kind}_ratio", ratios[kind], meaning) for kind, meaning in meanings.items()),
        Figure(
            f"{key}_our_requests_per_s",
            len(case.workload) / median(ours_s[""]),
            f"our event loop, {topology.what} at {topology.loads * RATE_PER_S:g}/s, round-robin",
        ),
    ]


def worker_options(fleet: Fleet, profile: Profile, times: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """What Dynamo's replay is told of the engines. times: options by role, None: its own."""
    engine = engine_options(profile.deployment())
    if not fleet.is_disaggregated:
        options = engine if times is None else engine | EQUAL_TIMES
        return {"extra_engine_args": {"engine": options}, "num_workers": fleet.engines}
    link = {"kv_transfer_bandwidth": LINK_GB_PER_S, "kv_transfer_bytes_per_token": profile.kv.bytes_per_token}

    def worker(kind: str, role: int) -> dict[str, Any]:
        return {"engine": engine | link | {"worker_type": kind} | (times or {}).get(role, {})}

    return {
        "prefill_engine_args": worker("prefill", ROLE_PREFILL),
        "decode_engine_args": worker("decode", ROLE_DECODE),
        "num_prefill_workers": fleet.prefill,
        "num_decode_workers": fleet.decode,
    }


def equal_times(result: Result) -> dict[int, dict[str, Any]]:
    """By role, Dynamo's option for iterations that all take as long as ours do on average."""
    engines = result.arrays.engines
    chosen = {}
    for role in set(engines["role"].tolist()):
        its = engines[engines["role"] == role]
        mean_ms = 1e3 * float(its["busy_s"].sum() / its["iterations"].sum())
        chosen[role] = {"timing_model": {"type": "fixed", "prefill_ms": mean_ms, "decode_ms": mean_ms}}
    return chosen
