"""A day's sessions on many engines that cache prefixes: seconds of the event loop, beside the same without caching.

537,600 requests of chat under `kv-aware`, by default on 256 engines. Each run is a process of its own, so that its
memory can be told: `python -m experiments.benchmarks.sessions on|off ENGINES REQUESTS` prints JSON. The two
runs that are compared go side by side, on two cores.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.peak_memory import peak_bytes
from experiments.benchmarks.scenarios import Sizes
from servegym.errors import ExperimentError
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

TRACE, DEVICE, SCHEDULER, ROUTER = "chat-sessions", "a100-llama3-70b-tp4", "vllm-v1", "kv-aware"
RATE_PER_ENGINE = 2.0  # requests/s: half of what an engine serves without caching, so that both runs keep up
BOUND_S = 60.0
MEBIBYTE = 2**20
Run = tuple[str, int, int]  # prefix caching, engines, requests


def measure(sizes: Sizes) -> list[Figure]:
    engines, requests = sizes.session_engines, sizes.session_requests
    cached, plain = side_by_side([("on", engines, requests), ("off", engines, requests)])
    (fewer,) = side_by_side([("on", engines, requests // 3)])
    what = f"{requests:,} requests of {TRACE} on {engines} engines under {ROUTER}"
    per_million = (cached["peak_mib"] - fewer["peak_mib"]) / (requests - requests // 3) * 1e6
    return [
        Figure("sessions_s", cached["loop_s"], f"{what}, event loop only", at_most=BOUND_S),
        Figure("sessions_cpu_s", cached["loop_cpu_s"], "processor time of that: less, if others use the machine"),
        Figure(
            "sessions_cache_ratio", cached["loop_cpu_s"] / plain["loop_cpu_s"], "that over the same without caching"
        ),
        Figure("sessions_draw_cpu_s", cached["draw_cpu_s"], "processor time to draw sessions and number their blocks"),
        Figure("sessions_hit_rate", cached["cached_share"], "of the prompt tokens"),
        Figure("sessions_rss_mib", cached["peak_mib"], "peak of the whole process"),
        Figure("sessions_rss_mib_per_million", per_million, f"growth by a million, from {requests // 3:,} on"),
    ]


def side_by_side(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """`serve` of each in a process of its own, at the same time. Raises ExperimentError."""
    commands = [[sys.executable, "-P", "-m", __name__, *map(str, run)] for run in runs]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    done = [process.communicate() for process in started]
    for command, process, (_, errors) in zip(commands, started, done, strict=True):
        if process.returncode:
            raise ExperimentError(f"{' '.join(command)} failed ({process.returncode}): {errors.decode()}")
    return [json.loads(output) for output, _ in done]


def serve(caching: str, engines: int, requests: int) -> dict[str, Any]:
    """Serve the sessions to the end. Raises ExperimentError if a request is left."""
    Simulation(spec_of(caching, 2, 20).build(0)).run()  # compiles, or reads what was compiled
    begin_s = time.process_time()
    simulation = Simulation(spec_of(caching, engines, requests).build(0))
    draw_cpu_s, begin_s = time.process_time() - begin_s, time.process_time()
    summary = simulation.run().summary
    loop_cpu_s = time.process_time() - begin_s
    if summary["finished"] != requests:
        raise ExperimentError(f"{summary['finished']} of {requests} requests finished")
    return {
        "draw_cpu_s": draw_cpu_s,
        "loop_s": summary["wall_s"],
        "loop_cpu_s": loop_cpu_s,
        "iterations": summary["iterations"],
        "cached_share": summary["cached_share"],
        "tdg_ratio": summary["tdg_ratio"],
        "peak_mib": peak_bytes() / MEBIBYTE,
    }


def spec_of(caching: str, engines: int, requests: int) -> ServingSpec:
    return ServingSpec().replaced(
        trace=TRACE, requests=requests, rate_per_s=RATE_PER_ENGINE * engines, device=DEVICE, engines=engines,
        scheduler=SCHEDULER, router=ROUTER, prefix_caching=caching,
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
