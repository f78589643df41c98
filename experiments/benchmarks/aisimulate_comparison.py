"""The event loop beside that of NVIDIA AISimulate's offline replay, on the same requests, taking turns.

Once on the engine and requests of `dynamo_comparison`, and once on 8 workers that cache prefixes, on Mooncake's
conversations (12,031 requests of an hour; the trace of 23,608 that its authors use is another of Mooncake's), beside
Dynamo's replay too where there is one. AISimulate's own iteration times are a polynomial; the equal ones are ours: the
mean iteration with decodes only, and what a chunk of a prompt adds to it.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmarks import aisimulate_replay, dynamo_comparison
from experiments.benchmarks.dynamo_comparison import EQUAL_TIMES, engine_options
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.others import check_same_work, paired_ratio, run_script
from experiments.benchmarks.scenarios import DEVICE, Sizes, scenario, workload
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH_END, BATCH_START, SCHEDULED
from servegym.simulator.runs.simulation import Simulation

NAME = "AISimulate"
TRACE = "traces/mooncake_fast25_conversation.parquet"  # in $SERVEGYM_DATA
WORKERS, LIMITS = 8, {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
POLICY = "vllm-v1:" + ",".join(f"{name}={value}" for name, value in LIMITS.items())
KINDS = {"": "its own iteration times", "_equal_times": "iterations as long as ours"}


class Compared(NamedTuple):
    """Seconds of our runs, of the clock and of the processor, and replays of the same requests, by kind."""

    simulation: Simulation
    ours: list[tuple[float, float]]
    theirs: dict[str, list[dict[str, Any]]]


def measure(sizes: Sizes, aisimulate_python: str, dynamo_python: str | None = None) -> list[Figure]:
    one = Simulation(scenario(workload(sizes.requests)))
    rank = engine_options(one.scenario.deployment.pools[0])
    found = [
        *figures_of(
            "aisimulate",
            "one engine",
            compared(
                one, {"": rank, "_equal_times": rank | EQUAL_TIMES}, 1, aisimulate_python, None, sizes.repetitions
            ),
        )
    ]
    trace = Path(os.environ.get("SERVEGYM_DATA", "")) / TRACE
    if trace.is_file():
        fleet, times = mooncake(trace, sizes.compared_trace_requests)
        rank = engine_options(fleet.scenario.deployment.pools[0]) | LIMITS | {"enable_prefix_caching": True}
        kinds = {"": rank, "_equal_times": rank | times}
        pairs = compared(fleet, kinds, WORKERS, aisimulate_python, dynamo_python, sizes.repetitions)
        found += figures_of("aisimulate_mooncake", f"{WORKERS} workers, Mooncake, prefixes cached", pairs)
    return found


def mooncake(trace: Path, requests: int | None) -> tuple[Simulation, dict[str, Any]]:
    """Mooncake's conversations at their own times on workers that cache prefixes, and our times as a timing model."""
    spec = ServingSpec().replaced(
        trace=str(trace), requests=requests, device=DEVICE, engines=WORKERS, scheduler=POLICY, router="round-robin",
        prefix_caching="on",
    )  # fmt: skip
    scenario = spec.build(0)
    recorded = Simulation(scenario, record_timeline=True)
    recorded.run()
    return Simulation(scenario), iteration_times(recorded)


def iteration_times(recorded: Simulation) -> dict[str, Any]:
    """Times of a run's iterations as a timing model: the mean of those with decodes only, and what a prompt adds."""
    events = recorded.arrays.timeline[: recorded.arrays.status[0].timeline_used]
    decodes_s, prefills_s = [], []
    for engine in range(len(recorded.arrays.engines)):
        own = events[events["engine"] == engine]
        iteration = np.cumsum(own["kind"] == BATCH_START)
        longest = np.zeros(int(iteration[-1]) + 1, "i8")  # chunk of each iteration; 1: decodes only
        scheduled = own["kind"] == SCHEDULED
        np.maximum.at(longest, iteration[scheduled], own["tokens"][scheduled])
        ends = own["kind"] == BATCH_END
        took_s, chunk = own["value"][ends], longest[iteration[ends]]
        decodes_s.append(took_s[chunk <= 1])
        prefills_s.append(took_s[chunk > 1])
    decode_ms, prefill_ms = (1e3 * float(np.concatenate(some).mean()) for some in (decodes_s, prefills_s))
    # Both are added in an iteration with both phases.
    return {"timing_model": {"type": "fixed", "prefill_ms": prefill_ms - decode_ms, "decode_ms": decode_ms}}


def compared(
    simulation: Simulation,
    kinds: dict[str, dict[str, Any]],
    workers: int,
    python: str,
    dynamo_python: str | None,
    repetitions: int,
) -> Compared:
    """Our runs and replays with each kind of engine, in turns. Raises ExperimentError unless all do the same work."""
    simulation.run()  # compiles, or reads what was compiled
    served, ours = simulation.scenario.workload, []
    theirs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in (*kinds, *(["_dynamo"] if dynamo_python else []))}
    block_tokens = simulation.scenario.deployment.pools[0].block_tokens
    size = block_tokens if served.prefixes is None else served.prefixes.chunk_tokens
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "requests.jsonl"
        write_trace(served, trace, block_tokens)
        for _ in range(repetitions):
            ours.append(our_seconds(simulation))
            for kind, rank in kinds.items():
                chosen = json.dumps({"rank": rank, "workers": workers, "trace_block_size": size})
                done = run_script(NAME, python, aisimulate_replay.__file__, str(trace), chosen, settings={})
                theirs[kind].append(done)
            if dynamo_python is not None:
                engine = {"extra_engine_args": {"engine": kinds[""]}, "num_workers": workers}
                theirs["_dynamo"].append(dynamo_comparison.replay(dynamo_python, trace, size, **engine))
    for kind, replays in theirs.items():
        for done in replays:
            check_same_work("Dynamo" if kind == "_dynamo" else NAME, done, served.table, simulation.result().summary)
    return Compared(simulation, ours, theirs)


def our_seconds(simulation: Simulation) -> tuple[float, float]:
    """Seconds of the event loop of one run, of the clock and of the processor."""
    simulation.reset()
    begin_s = time.process_time()
    return simulation.run().wall_s, time.process_time() - begin_s


def write_trace(served: Workload, path: Path, block_tokens: int) -> None:
    """Write the requests in Mooncake's format, with the chunks of their prompts where they have some."""
    if served.prefixes is None:
        dynamo_comparison.write_mooncake(served, path, block_tokens)
        return
    offsets, chunks = served.prefixes.of_prompts(served.table["prompt_tokens"])
    own = int(chunks.max()) + 1  # of a last block that is not full, which nothing shares
    with path.open("w", encoding="utf-8") as file:
        for r, row in enumerate(served.table):
            blocks = chunks[offsets[r] : offsets[r + 1]].tolist()
            if row["prompt_tokens"] % served.prefixes.chunk_tokens:
                blocks.append(own + r)
            line = {
                "timestamp": 1e3 * float(row["arrival_s"]),
                "input_length": int(row["prompt_tokens"]),
                "output_length": int(row["output_tokens"]),
                "hash_ids": blocks,
            }
            file.write(json.dumps(line) + "\n")


def figures_of(key: str, what: str, pairs: Compared) -> list[Figure]:
    """Ratios of event loops and of whole calls, medians of the pairs."""
    walls, processors = zip(*pairs.ours, strict=True)
    requests, tpot_s = len(pairs.simulation.scenario.workload), pairs.simulation.result().requests["tpot_s"].mean()
    found = []
    for kind, replays in pairs.theirs.items():
        other = "Dynamo" if kind == "_dynamo" else NAME
        meaning = KINDS.get(kind, "its own iteration times")
        gap = f"{meaning} (mean TPOT {replays[0]['mean_tpot_s'] / tpot_s - 1:+.0%})"
        loops = paired_ratio([done["loop_s"] for done in replays], walls)
        found.append(Figure(f"{key}{kind}_ratio", loops, f"event loops, {what}: requests/s over {other}'s, {gap}"))
        calls = paired_ratio([done["call_s"] for done in replays], walls)
        found.append(Figure(f"{key}{kind}_whole_call_ratio", calls, "our loop over its whole call, trace read"))
        if "cpu_s" in replays[0]:
            busy = paired_ratio([done["cpu_s"] for done in replays], processors)
            found.append(Figure(f"{key}{kind}_processor_ratio", busy, "our loop over its whole call in processor time"))
    found.append(Figure(f"{key}_our_requests_per_s", requests / median(walls), f"our event loop, {what}"))
    return found
