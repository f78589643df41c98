"""Traces served on a GPU at loads relative to what it was measured to serve, by vLLM's own scheduler and by policies.

    python3 -m experiments.gpu.served --out $OUT --limit-s 480 --profile docs/results/h100/h100-llama3-8b-measured.json

First the saturation of each trace: the requests a second of vLLM's own scheduler with all requests there at once. Then
trace by load by policy, the most telling first (load 1.4, vLLM's own and expected-gain); a second repeat, with other
requests, when all have been served once. A line in OUT/runs.jsonl for each, with the times of all tokens; runs that the
file has are not served again, so the next quarter of an hour goes on where this one ended.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from experiments.gpu.driving import serve
from experiments.gpu.first_life import start
from experiments.gpu.records import Lines, coded
from experiments.gpu.starting import Shape, lines_of, parser_of
from experiments.gpu.workloads import PROFILE, STOCK, TRACES, artifact, profile_of, workload_of
from servegym.adapters.profiling.vllm_engine import VllmMeter
from servegym.errors import ProfileError
from servegym.latency_models.profile import Profile, profile_document

LOADS = (1.4, 0.8, 1.0, 0.5)  # the most telling first
POLICIES = (STOCK, "expected-gain", "slide-batching")
SEEDS = (0, 1)
AT_ONCE, REQUESTS = 300, 300
RUN_S, LEAST_S, STOP_S = 90.0, 30.0, 5.0


class Run(NamedTuple):
    """load: relative to the trace's saturation; None: all at once, which measures that."""

    trace: str
    policy: str
    load: float | None
    seed: int

    @property
    def name(self) -> str:
        load = "saturation" if self.load is None else f"load {self.load:g}"
        return f"{self.trace}, {load}, {self.policy}, seed {self.seed}"


def planned(
    traces: Sequence[str], loads: Sequence[float], policies: Sequence[str], seeds: Sequence[int]
) -> Iterator[Run]:
    """All runs, in the order of their worth: saturation, then seed, load, trace, policy."""
    yield from (Run(trace, STOCK, None, 0) for trace in traces)
    for seed in seeds:
        yield from (
            Run(trace, policy, load, seed) for load, trace, policy in itertools.product(loads, traces, policies)
        )


def serve_one(meter: VllmMeter, lines: Lines, run: Run, requests: int, profile: Profile, label: str = "") -> None:
    """One run, if its saturation is known."""
    rate_per_s = None
    if run.load is not None:
        saturation = lines.found.get(label + run._replace(load=None, policy=STOCK, seed=0).name)
        if saturation is None:
            return
        rate_per_s = run.load * saturation["finished"] / saturation["span_s"]

    def result() -> dict[str, Any]:
        workload = workload_of(run.trace, requests, rate_per_s, run.seed, meter.space.context_tokens, profile)
        path = artifact(run.policy, lines.path.parent / "policies", workload, profile)
        limit_s = min(RUN_S, lines.budget.left_s - STOP_S)
        served = serve(meter, workload, path, limit_s, run.seed)
        return {
            "done": not served.cut or limit_s == RUN_S,  # what only the end of the time cut is served again
            **run._asdict(), "rate_per_s": rate_per_s, "digest": workload.digest, "profile": profile.name,
            **served.figures(workload), "arrays": coded(served.arrays(workload)),
        }  # fmt: skip

    lines.attempt(label + run.name, LEAST_S, result)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, 480.0)
    parser.add_argument("--profile", default=PROFILE, help="what policies believe; default: %(default)s")
    parser.add_argument(
        "--policy", action="append", help="a scheduler's name, or a file of servegym export; repeatable"
    )
    parser.add_argument("--trace", action="append", help="default: " + ", ".join(TRACES))
    parser.add_argument(
        "--load", action="append", type=float, help="default: " + ", ".join(f"{load:g}" for load in LOADS)
    )
    parser.add_argument(
        "--seed", action="append", type=int, help="of the requests; default: " + ", ".join(map(str, SEEDS))
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of a run; default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        profile = profile_of(given.profile)
    except ProfileError as error:  # before minutes of a GPU go into starting the engine
        parser.error(str(error))
    lines = lines_of(given)
    if given.profile.endswith(".json"):  # where the runs are simulated, the file may not be
        lines.surroundings["believed"] = profile_document(given.profile)
    meter = start(lines, Shape(compilation=given.compilation, asynchronous=True), given.models, given.rehearse)
    if meter is None:
        return 1
    policies, traces = [*(given.policy or POLICIES)], [*(given.trace or TRACES)]
    loads, seeds, requests = [*(given.load or LOADS)], [*(given.seed or SEEDS)], given.requests
    if given.rehearse:
        loads, seeds, requests = loads[:1], seeds[:1], 10
    for run in planned(traces, loads, policies, seeds):
        serve_one(meter, lines, run, requests if run.load is not None else min(requests, AT_ONCE), profile)
    meter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
