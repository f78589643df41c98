"""The event loop beside that of NVIDIA Dynamo's offline replay, on the same requests, taking turns.

Both have one engine with the same KV blocks, 512 tokens and 128 sequences to a batch and no prefix caching. They
differ in how long an iteration takes: Dynamo's default is a polynomial of its own, faster than our A100, so that it
makes more iterations; `EQUAL_TIMES` gives it the times that ours has, and then about as many. Both ratios are reported.
"""

import json
import math
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import dynamo_replay
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.others import check_same_work, run_script
from experiments.benchmarks.scenarios import MAX_SEQUENCES, TOKEN_BUDGET, Sizes, scenario, workload
from experiments.benchmarks.single_engine import loop_s
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

# Dynamo adds the two in an iteration with both phases. Ours takes 18 ms (median) with decodes only, 45 ms with a chunk.
EQUAL_TIMES = {"timing_model": {"type": "fixed", "prefill_ms": 26.0, "decode_ms": 17.0}}


def measure(sizes: Sizes, dynamo_python: str) -> list[Figure]:
    simulation = Simulation(scenario(workload(sizes.requests)))
    ours = simulation.run()  # compiles, or reads what was compiled
    ours_s, defaults, equals = take_turns(simulation, dynamo_python, sizes.repetitions)
    for done in (*defaults, *equals):
        check_same_work("Dynamo", done, simulation.scenario.workload.table, ours.summary)
    tpot_error = equals[0]["mean_tpot_s"] / ours.requests["tpot_s"].mean() - 1

    def ratio(replays: list[dict[str, Any]], seconds: str) -> float:
        return median(done[seconds] for done in replays) / median(ours_s)

    return [
        Figure(
            "dynamo_ratio",
            ratio(defaults, "loop_s"),
            "event loops, our requests/s over Dynamo's at its own iteration times; aim: 12",
            at_least=8,
        ),
        Figure(
            "dynamo_equal_times_ratio",
            ratio(equals, "loop_s"),
            f"the same where its iterations take as long as ours (mean TPOT {tpot_error:+.0%})",
            at_least=8,
        ),
        Figure("dynamo_whole_call_ratio", ratio(defaults, "call_s"), "our loop over its whole call, trace read"),
        Figure(
            "dynamo_requests_per_s",
            sizes.requests / median(done["loop_s"] for done in defaults),
            "Dynamo's event loop, its own iteration times",
        ),
        Figure("dynamo_our_requests_per_s", sizes.requests / median(ours_s), "our event loop, taking turns with it"),
    ]


def take_turns(
    simulation: Simulation, dynamo_python: str, repetitions: int
) -> tuple[list[float], list[dict[str, Any]], list[dict[str, Any]]]:
    """Seconds of our event loop, and Dynamo's replays with its own iteration times and with ours."""
    served, deployment = simulation.scenario.workload, simulation.scenario.deployment.pools[0]
    engine = engine_options(deployment)
    ours_s, defaults, equals = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "requests.jsonl"
        write_mooncake(served, trace, deployment.block_tokens)
        for _ in range(repetitions):
            ours_s.append(loop_s(simulation))
            defaults.append(replay(dynamo_python, trace, deployment.block_tokens, extra_engine_args={"engine": engine}))
            equals.append(
                replay(
                    dynamo_python, trace, deployment.block_tokens, extra_engine_args={"engine": engine | EQUAL_TIMES}
                )
            )
    return ours_s, defaults, equals


def write_mooncake(served: Workload, path: Path, block_tokens: int) -> None:
    """Write the requests in Mooncake's format; every block has an id of its own, so that no prefix is shared."""
    first_block = 0
    with path.open("w", encoding="utf-8") as file:
        for row in served.table:
            end_block = first_block + math.ceil(row["prompt_tokens"] / block_tokens)
            line = {
                "timestamp": 1e3 * float(row["arrival_s"]),
                "input_length": int(row["prompt_tokens"]),
                "output_length": int(row["output_tokens"]),
                "hash_ids": list(range(first_block, end_block)),
            }
            file.write(json.dumps(line) + "\n")
            first_block = end_block


def engine_options(deployment: Deployment) -> dict[str, Any]:
    """Dynamo's options for one of our engines."""
    return {
        "backend": "vllm",
        "block_size": deployment.block_tokens,
        "num_gpu_blocks": deployment.total_blocks,
        "max_num_batched_tokens": TOKEN_BUDGET,
        "max_num_seqs": MAX_SEQUENCES,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
    }


def replay(dynamo_python: str, trace: Path, block_tokens: int, **options: Any) -> dict[str, Any]:
    """One replay of a trace with these blocks. options: more of `run_trace_replay`. Raises ExperimentError."""
    chosen = json.dumps({"trace_block_size": block_tokens, **options})
    quiet = {"DYN_LOG": "error"}  # by default its router writes a line a request, which takes time
    return run_script("Dynamo", dynamo_python, dynamo_replay.__file__, str(trace), chosen, settings=quiet)
