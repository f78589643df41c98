"""The event loop beside that of Vidur, on the requests of "one engine", taking turns.

Both have one engine under Sarathi with the same KV blocks, 512 tokens and 128 sequences to a batch. Vidur looks the
times of operators up in tables; it is given tables that add up to the iterations of our device model, so that both
make about as many. What the tables leave out: cached tokens are rounded up to 64, chunks to 32, and the constant part
of attention counts once in a batch with prefills and decodes.
"""

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.benchmarks import vidur_replay
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.others import check_same_work, paired_ratio, run_script
from experiments.benchmarks.scenarios import MAX_SEQUENCES, TOKEN_BUDGET, Sizes, scenario, workload
from experiments.benchmarks.single_engine import loop_s
from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records import batches
from servegym.simulator.records.types import BATCH
from servegym.simulator.runs.simulation import Simulation

CACHED_STEP_TOKENS = 64  # ours to choose; by default Vidur rounds to 256
CHUNK_STEP_TOKENS = 32  # Vidur's
DATE = "2023-11-16"  # Vidur takes the rows of one date; which one it is changes nothing
QUIET = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}


def measure(sizes: Sizes, vidur_python: str) -> list[Figure]:
    simulation = Simulation(scenario(workload(sizes.requests)))
    ours = simulation.run()  # compiles, or reads what was compiled
    ours_s, theirs = take_turns(simulation, vidur_python, sizes.repetitions)
    for done in theirs:
        check_same_work("Vidur", done, simulation.scenario.workload.table, ours.summary)
    tpot_error = theirs[0]["mean_tpot_s"] / ours.requests["tpot_s"].mean() - 1
    vidur_s = median(done["loop_s"] for done in theirs)
    return [
        Figure(
            "vidur_ratio",
            paired_ratio([done["loop_s"] for done in theirs], ours_s),
            f"event loops, our requests/s over Vidur's, iterations as long as ours (mean TPOT {tpot_error:+.0%})",
        ),
        Figure("vidur_requests_per_s", sizes.requests / vidur_s, "Vidur's event loop, metrics and traces off"),
        Figure("vidur_our_requests_per_s", sizes.requests / median(ours_s), "our event loop, taking turns with it"),
    ]


def take_turns(simulation: Simulation, vidur_python: str, repetitions: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Seconds of our event loop, and Vidur's replays."""
    ours_s, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        trace, settings = Path(folder) / "requests.csv", Path(folder) / "settings.json"
        write_trace(simulation.scenario.workload, trace)
        settings.write_text(json.dumps(settings_of(simulation)), encoding="utf-8")
        for _ in range(repetitions):
            ours_s.append(loop_s(simulation))
            theirs.append(replay(vidur_python, trace, settings))
    return ours_s, theirs


def write_trace(served: Workload, path: Path) -> None:
    """Write the requests in the format of Vidur's trace replay."""
    with path.open("w", encoding="utf-8") as file:
        file.write("Date,Time,PromptTokenCount,CompletionTokenCount\n")
        for row in served.table:
            file.write(f"{DATE},{float(row['arrival_s'])!r},{row['prompt_tokens']},{row['output_tokens']}\n")


def replay(vidur_python: str, trace: Path, settings: Path) -> dict[str, Any]:
    """One run of Vidur. Raises ExperimentError if it fails."""
    return run_script("Vidur", vidur_python, vidur_replay.__file__, str(trace), str(settings), settings=QUIET)


def settings_of(simulation: Simulation) -> dict[str, Any]:
    """What vidur_replay.py is told of the engine and of its iterations."""
    deployment, table = simulation.scenario.deployment.pools[0], simulation.scenario.workload.table
    max_tokens = int((table["prompt_tokens"] + table["output_tokens"]).max())
    return {
        "date": DATE,
        "max_tokens": max_tokens,
        "max_num_batched_tokens": TOKEN_BUDGET,
        "max_num_seqs": MAX_SEQUENCES,
        "block_tokens": deployment.block_tokens,
        "total_blocks": deployment.total_blocks,
        "watermark": deployment.watermark,
        "cached_step_tokens": CACHED_STEP_TOKENS,
        "chunk_step_tokens": CHUNK_STEP_TOKENS,
        **operator_seconds(deployment.device, max_tokens),
    }


def operator_seconds(device: LatencyModel, max_tokens: int) -> dict[str, Any]:
    """The tables `vidur_replay.operator_tables` reads. A batch of decodes is the device's time exactly."""
    steps = range(max_tokens // CACHED_STEP_TOKENS + 2)
    chunks = range(CHUNK_STEP_TOKENS, TOKEN_BUDGET + 1, CHUNK_STEP_TOKENS)

    def decodes_s(count: int, cached: int) -> float:
        batch = np.zeros(1, BATCH)
        batch["decode_requests"], batch["decode_cached_tokens"] = count, count * cached
        batch["longest_decode_cached"] = cached
        return seconds(batch)

    def prefill_s(tokens: int, end: int) -> float:
        batch, cached = np.zeros(1, BATCH), max(0, end - tokens)
        batches.add(batch[0], tokens, cached, False)
        return seconds(batch)

    def seconds(batch: np.ndarray) -> float:
        return float(device.batch_s.entry(batch[0], device.coefficients))

    return {
        # Vidur rounds the tokens of a batch up to 8.
        "batch_s": [decodes_s(tokens, 0) for tokens in range(1, TOKEN_BUDGET + 9)],
        "decodes_s": [
            [decodes_s(n, CACHED_STEP_TOKENS * k) - decodes_s(n, 0) for k in steps] for n in range(1, MAX_SEQUENCES + 1)
        ],
        "prefill_s": [
            [prefill_s(tokens, CACHED_STEP_TOKENS * k) - decodes_s(tokens, 0) for tokens in chunks] for k in steps
        ],
    }
