"""Many engines under a router: seconds of the event loop, and the memory of the whole process.

PolyServe's synthetic requests and its recipe of SLOs, Poisson arrivals at what the engines can just serve. Each run is
a process of its own, so that its memory can be told: `python -m experiments.benchmarks.cluster ROUTER ENGINES
REQUESTS` prints JSON. Served twice, at a third of the requests and at all, it tells what each request more takes.
"""

import functools
import json
import subprocess
import sys
from statistics import median
from typing import Any

import numpy as np

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.peak_memory import peak_bytes
from experiments.benchmarks.scenarios import Sizes
from servegym.baselines.registry import router, router_names, scheduler
from servegym.errors import ExperimentError
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload

TRACE, LONGEST_PROMPT_TOKENS = "uniform-4096-1024", 8192
DEVICE, SCHEDULER, LOAD = "h200-llama3-8b", "sarathi-fcfs", 1.0
BOUNDS_S = {"min-load": 45.0, "polyserve": 90.0}  # of the routers measured here; one that is not registered is left out
RATED, REFERENCE, MOST_COST_RATIO = "polyserve", "min-load", 2.0  # one may take so many times the time of the other
MEBIBYTE = 2**20


def measure(sizes: Sizes) -> list[Figure]:
    known = [name for name in BOUNDS_S if name in router_names()]
    turns = range(sizes.cluster_repetitions)
    runs = [
        {name: serve_in_process(name, sizes.cluster_engines, sizes.cluster_requests) for name in known} for _ in turns
    ]
    figures = [figure for name in known for figure in figures_of(name, [run[name] for run in runs], sizes)]
    if RATED in known and REFERENCE in known:
        ratios = [run[RATED]["loop_s"] / run[REFERENCE]["loop_s"] for run in runs]
        meaning = f"event loop under {RATED} over that under {REFERENCE}, in turns"
        figures.append(Figure.of(f"cluster_{RATED}_ratio", ratios, meaning, at_most=MOST_COST_RATIO))
    return figures


def figures_of(name: str, runs: list[dict[str, Any]], sizes: Sizes) -> list[Figure]:
    """Seconds and memory under one router, of runs of all requests (`serve`)."""
    requests, engines = sizes.cluster_requests, sizes.cluster_engines
    fewer = serve_in_process(name, engines, requests // 3)
    loop_s, peak_mib = (median(run[field] for run in runs) for field in ("loop_s", "peak_mib"))
    per_million = (peak_mib - fewer["peak_mib"]) / (requests - requests // 3) * 1e6
    key = f"cluster_{name.replace('-', '')}"
    what = f"{name}, {engines} engines, {requests:,} requests at {runs[0]['rate_per_s']:.0f}/s"
    return [
        Figure(f"{key}_s", loop_s, f"{what}, event loop only", at_most=BOUNDS_S[name]),
        Figure(f"{key}_bound_ratio", loop_s / BOUNDS_S[name], "the same over its bound"),
        Figure(f"{key}_rss_mib", peak_mib, f"{name}: peak of the whole process, workload and sums included"),
        Figure(
            f"{key}_rss_mib_per_million",
            per_million,
            f"{name}: growth by a million requests, from {requests // 3:,} and {requests:,}",
        ),
    ]


def serve_in_process(name: str, engines: int, requests: int) -> dict[str, Any]:
    """`serve` in a new process."""
    command = [sys.executable, "-P", "-m", __name__, name, str(engines), str(requests)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExperimentError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr}")
    return json.loads(done.stdout)


def serve(name: str, engines: int, requests: int) -> dict[str, Any]:
    """Serve the workload to the end: loop_s, rate_per_s, and peak_mib of this process.

    Raises ExperimentError if a request is left.
    """
    profile = load_profile(DEVICE)
    simulation = Simulation(scenario(workload(profile, engines, requests), profile.deployment(engines), name))
    result = simulation.run()
    if result.summary["finished"] != requests:
        raise ExperimentError(f"{name}: {result.summary['finished']} of {requests} requests finished")
    return {
        "loop_s": result.wall_s,
        "rate_per_s": LOAD * engines * engine_rate_per_s(),
        "peak_mib": peak_bytes() / MEBIBYTE,
    }


def scenario(served: Workload, deployment: Deployment | Cluster, router_name: str) -> Scenario:
    return Scenario(served, deployment, scheduler(SCHEDULER), router=router(router_name))


def workload(profile: Profile, engines: int, requests: int, load: float = LOAD) -> Workload:
    """Poisson arrivals at `load` times what so many engines can serve, with SLOs that an idle engine can meet."""
    return build_workload(
        TRACE,
        requests=requests,
        rate_per_s=load * engines * engine_rate_per_s(),
        slo=slo_recipe(profile),
        idle_tpot_s=profile.idle_tpot_s,
        seed=0,
    )


@functools.cache
def engine_rate_per_s() -> float:
    """Requests per second that one engine can serve (load 1)."""
    profile = load_profile(DEVICE)
    return saturation_rate_per_s(TRACE, profile, slo=slo_recipe(profile))


def slo_recipe(profile: Profile) -> str:
    """PolyServe's, told how fast an idle engine prefills the longest prompt."""
    batch = np.zeros(1, BATCH)
    batch["prefill_requests"] = 1
    batch["prefill_tokens"] = batch["longest_prefill_tokens"] = LONGEST_PROMPT_TOKENS
    batch["prefill_tokens_squared"] = LONGEST_PROMPT_TOKENS**2
    tokens_per_s = LONGEST_PROMPT_TOKENS / float(profile.device.evaluate(batch)[0])
    return f"polyserve:idle_prefill_tokens_per_s={tokens_per_s:.0f}"


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
