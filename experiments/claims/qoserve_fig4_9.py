"""QoServe, Figures 4 and 9: what a chunk's size costs, and which sizes dynamic chunking takes."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Check, Range, claim, grid, values
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.settings import profile
from experiments.claims.harness.violations import QOSERVE, slo_of
from servegym.evaluation.reports.iterations import iterations
from servegym.simulator.records.types import BATCH

DEVICE = "a100-llama3-8b"
SMALL, MOST, BEYOND = 256, 2500, 4096  # tokens; throughput saturates around 2500
PROMPT, DECODES, CONTEXT = (1024, 4096), 32, 1024  # cached tokens of the prompt, drawn; decodes beside the chunk
TBT_S = 0.05
ITERATIONS = 200  # in a row
LOAD = 0.9
TWICE, SATURATED = Range(1.8, 2.2), Range(0.95, 1.1)


def measure(cell: Cell) -> dict[str, Any]:
    """throughput_N: tokens a second in batches with a chunk of N. time_N_s. smallest, largest: chunk (5 and 95 % of
    those with prefill) within `ITERATIONS` in a row, mean over such windows. The first tenth of a run is left out."""
    cached = float(np.random.default_rng(cell.seed).integers(*PROMPT))
    times = {chunk: batch_s(cell.device, chunk, cached) for chunk in (SMALL, MOST, BEYOND)}
    table = iterations(simulation(cell, record_timeline=True).run())
    chunks = table["prefill_tokens"].to_numpy("f8")[len(table) // 10 :]
    windows = chunks[: len(chunks) // ITERATIONS * ITERATIONS].reshape(-1, ITERATIONS)
    spans = np.array([np.quantile(window[window > 0], (0.05, 0.95)) for window in windows if (window > 0).any()])
    return {
        **{f"throughput_{chunk}": chunk / time_s for chunk, time_s in times.items()},
        f"time_{SMALL}_s": times[SMALL],
        "smallest": float(spans[:, 0].mean()),
        "largest": float(spans[:, 1].mean()),
        "above_small": float((chunks > SMALL).sum() / (chunks > 0).sum()),
    }


def batch_s(device: str, chunk: int, cached: float) -> float:
    """Time of a batch with one chunk of a prompt of which `cached` tokens are done, and the decodes."""
    batch = np.zeros(1, BATCH)
    batch["prefill_requests"], batch["decode_requests"] = 1, DECODES
    batch["prefill_tokens"] = batch["longest_prefill_tokens"] = chunk
    batch["prefill_tokens_squared"], batch["prefill_tokens_cached"] = float(chunk) ** 2, chunk * cached
    batch["prefill_cached_tokens"] = cached
    batch["decode_cached_tokens"], batch["longest_decode_cached"] = DECODES * CONTEXT, CONTEXT
    return float(profile(device).device.evaluate(batch)[0])


@claim(
    "qoserve-fig4-9",
    cells=grid((QOSERVE,), (LOAD,), slo=slo_of),
    measure=measure,
    families=("qoserve-conv",),
    devices=(DEVICE,),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    speed = {chunk: values(rows, f"throughput_{chunk}") for chunk in (SMALL, MOST, BEYOND)}
    return [
        Check(f"throughput, chunks of {MOST} over {SMALL}", speed[MOST] / speed[SMALL], TWICE),
        Check(f"throughput, chunks of {BEYOND} over {MOST}", speed[BEYOND] / speed[MOST], SATURATED),
        Check(f"time with a chunk of {SMALL}, s", values(rows, f"time_{SMALL}_s"), Range(high=TBT_S)),
        Check(f"smallest chunks of {ITERATIONS} iterations, tokens", values(rows, "smallest"), Range(high=512)),
        Check(f"largest chunks of {ITERATIONS} iterations, tokens", values(rows, "largest"), Range(low=1500)),
        Check(f"share of chunks above {SMALL}, - 0.5", values(rows, "above_small") - 0.5, ABOVE_0),
    ]
