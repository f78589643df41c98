"""The first quarter of an hour on a GPU: does vLLM serve there, with and without the plug-in, and what do batches take?

    python3 -m experiments.gpu.first_life --out $OUT --limit-s 420

In this order, each leaving a line in OUT/runs.jsonl: the engine's start, requests served by vLLM's own scheduler, the
same by the policies, then designed batches until the time is up (OUT/batches.csv and profile.json, which `servegym
calibrate` reads). Where the engine does not start, the status is 1: `--compilation eager` is worth a try.
"""

import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu.driving import serve
from experiments.gpu.records import Lines, coded
from experiments.gpu.starting import Shape, lines_of, parser_of, started
from experiments.gpu.workloads import STOCK, artifact, profile_of, workload_of
from servegym.adapters.profiling.measuring import Plan, measure
from servegym.adapters.profiling.vllm_engine import VllmMeter

REQUESTS, RATE_PER_S = 50, 8.0
POLICIES = (STOCK, "expected-gain", "slide-batching")
SERVED_S, START_LEAST_S, BATCHES_LEAST_S, STOP_S = 40.0, 60.0, 20.0, 5.0


class TimeIsUp(Exception):
    """Batches are measured until then."""


def start(lines: Lines, shape: Shape, models: Path, rehearse: bool) -> VllmMeter | None:
    """The engine; None where it does not start. What it took of the GPU is free when the process ends, not before."""
    made: list[VllmMeter] = []

    def begin() -> dict[str, Any]:
        meter, facts = started(shape, models, rehearse)
        made.append(meter)
        return facts

    name = f"start {shape.compilation}"
    lines.found.pop(name, None)  # of another process
    lines.attempt(name, START_LEAST_S, begin)
    return made[0] if made else None


def requests(meter: VllmMeter, lines: Lines, rehearse: bool) -> None:
    """A few requests by each policy."""
    profile = profile_of(None)
    count, rate_per_s = (8, 4.0) if rehearse else (REQUESTS, RATE_PER_S)
    workload = workload_of("azure-conv", count, rate_per_s, 0, meter.space.context_tokens, profile)

    def run(policy: str) -> dict[str, Any]:
        path = artifact(policy, lines.path.parent / "policies", workload, profile)
        served = serve(meter, workload, path, SERVED_S)
        return {
            "trace": "azure-conv", "policy": policy, "rate_per_s": rate_per_s, "seed": 0, "digest": workload.digest,
            "profile": profile.name,
            **served.figures(workload), "arrays": coded(served.arrays(workload)),
        }  # fmt: skip

    for policy in POLICIES:
        lines.attempt(f"first {policy}", 15.0, functools.partial(run, policy))


def batches(meter: VllmMeter, lines: Lines, plan: Plan) -> dict[str, Any]:
    """Measure the design, as far as the time goes."""
    counted = [0, plan.batches]

    def progress(done: int, in_all: int) -> None:
        counted[0] = done
        if lines.budget.left_s < STOP_S:
            raise TimeIsUp

    with contextlib.suppress(TimeIsUp):
        measure(meter, plan, lines.path.parent, progress)
    return {"done": counted[0] == counted[1], "batches": counted[0], "of": counted[1], "repeats": plan.repeats}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, 420.0)
    parser.add_argument("--batches", type=int, default=120, help="of the design; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="of each; default: %(default)s")
    given = parser.parse_args(arguments)
    lines = lines_of(given)
    meter = start(lines, Shape(compilation=given.compilation), given.models, given.rehearse)
    if meter is None:
        return 1
    requests(meter, lines, given.rehearse)
    plan = Plan(6, 2) if given.rehearse else Plan(given.batches, given.repeats)
    lines.attempt(f"batches {plan.batches}", BATCHES_LEAST_S, lambda: batches(meter, lines, plan))
    meter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
