"""The CPU's share of an iteration: what whole-engine measurements take beyond the composed device time."""

import numpy as np

from experiments.profiles.device_specs import device
from experiments.profiles.products import H100, dense
from experiments.profiles.shapes import QWEN3_8B
from servegym.latency_models.building.tables import read_table
from servegym.simulator.records.types import BATCH

PROMPT_TOKENS, OUTPUT_TOKENS = 233, 221  # means of the ShareGPT requests behind the measured points
STEP_S = 1e-4

CPU_OVERHEAD_SOURCE = (
    "Mean over concurrency 1, 2, 4 and 8 of the measured TPOT of Qwen3-8B on an H100 (vLLM 0.11.0, gpustack) "
    "less the composed device time of such a decode batch, rounded to 0.1 ms. Used for every profile whose device "
    "times are without it: it is the cost of the engine's CPU loop, not of the device. The one point for Llama-3-8B on "
    "an A100, a TPOT of 15.6 ms, is of a PCIe card and of vLLM of August 2024, before its loop was rewritten; it is "
    "not used."
)


def cpu_overhead_s() -> float:
    """Seconds an iteration. Raises ProfileError where a table is absent."""
    points = read_table("gpu_engine_points", ".csv")
    points = points[(points["model"] == "Qwen3-8B") & points["engine"].str.startswith("vLLM")]
    batches = np.zeros(len(points), dtype=BATCH)
    cached = PROMPT_TOKENS + OUTPUT_TOKENS // 2
    batches["decode_requests"] = points["concurrency"]
    batches["decode_cached_tokens"] = points["concurrency"] * cached
    batches["longest_decode_cached"] = cached
    measured_s = points["mean_tpot_ms"].astype(float).to_numpy() * 1e-3
    overhead_s = float((measured_s - dense(H100, device("H100-SXM"), QWEN3_8B).duration_s(batches)).mean())
    return round(round(overhead_s / STEP_S) * STEP_S, 6)
