"""PolyServe, Figures 2 to 4: the batch that a TPOT allows, and what a request then costs, by the paper's formulas."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim, values
from experiments.claims.harness.fleets import DEVICE
from experiments.claims.harness.polyserve_optimal import SteadyDevice, colocated_cost_s, disaggregated_costs_s
from experiments.claims.harness.settings import Setting, Size, profile

P, D = 1000, 4000  # of the paper's example
TTFT_S = 0.7  # of Figure 4
SHORT, LONG = (500, 500), (4000, 1000)  # p, d: the paper's are not in its text
TPOTS_S = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1)
AROUND = 0.1  # lengths are drawn within so much of these


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        yield Cell(*setting, "polyserve", 1.0, seed, size.requests)


@functools.cache
def steady(device: str) -> SteadyDevice:
    served = profile(device)
    return SteadyDevice(served.device, served.kv.total_blocks * served.kv.block_tokens)


def decode_batch(device: SteadyDevice, p: float, d: float, tpot_s: float) -> int:
    """Largest B with GEMM(B) + DcAttn(B (p + d/2)) < TPOT and B (p + d/2) < C; 0: none."""
    tokens = device.batch_tokens
    cached = tokens * (p + d / 2)
    fits = (device.gemm_of_decodes_s + device.decode_attention_s(cached) < tpot_s) & (cached < device.capacity_tokens)
    return int(tokens[fits].max(initial=0))


def token_batch(device: SteadyDevice, p: float, d: float, tpot_s: float) -> int:
    """Largest B co-located with GEMM(B) + DcAttn(d/(p+d) B (p + d/2) + p) < TPOT and memory for it; 0: none."""
    tokens = device.batch_tokens
    cached = d / (p + d) * tokens * (p + d / 2) + p
    iteration_s = device.gemm_of_both_s(p / (p + d)) + device.decode_attention_s(cached)
    return int(tokens[(iteration_s < tpot_s) & (cached < device.capacity_tokens)].max(initial=0))


def measure(cell: Cell) -> dict[str, Any]:
    """Batches and costs by TPOT in ms; lengths are those of the figures times a factor drawn by seed."""
    device = steady(cell.device)
    factor = np.random.default_rng(cell.seed).uniform(1 - AROUND, 1 + AROUND)
    measured: dict[str, Any] = {}
    for tpot_s in TPOTS_S:
        ms = f"{1e3 * tpot_s:g}"
        measured[f"decodes_{ms}"] = decode_batch(device, factor * P, factor * D, tpot_s)
        measured[f"tokens_{ms}"] = token_batch(device, factor * P, factor * D, tpot_s)
        measured[f"pd_cost_{ms}"] = sum(disaggregated_costs_s(device, factor * P, factor * D, TTFT_S, tpot_s))
        for name, (p, d) in {"short": SHORT, "long": LONG}.items():
            pd_s = sum(disaggregated_costs_s(device, factor * p, factor * d, TTFT_S, tpot_s))
            co_s = colocated_cost_s(device, factor * p, factor * d, TTFT_S, tpot_s)
            measured[f"co_over_pd_{name}_{ms}"] = co_s / pd_s if np.isfinite(co_s + pd_s) else None
    return measured


@claim("polyserve-fig2-4", cells=cells, measure=measure, families=("uniform-4096-1024",), devices=(DEVICE,))
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(name: str, ms: int) -> np.ndarray:
        return values(rows, f"{name}_{ms}")

    def bends(name: str) -> np.ndarray:
        """Growth from 40 to 60 ms over that from 20 to 40 ms."""
        return (of(name, 60) - of(name, 40)) / (of(name, 40) - of(name, 20))

    return [
        Check("decodes of 1000 + 4000 tokens in a batch, TPOT 40 ms", of("decodes", 40), Range(120, 180)),
        Check("decodes of 1000 + 4000 tokens in a batch, TPOT 20 ms", of("decodes", 20), Range(40, 60)),
        Check("growth of decodes, 40 to 60 over 20 to 40 ms", bends("decodes"), Range(0.7, 1.3)),
        Check("tokens of a co-located batch, 40 - 20 ms", of("tokens", 40) - of("tokens", 20), ABOVE_0),
        Check("growth of tokens, 40 to 60 over 20 to 40 ms", bends("tokens"), Range(0.7, 1.3)),
        Check("cost, disaggregated, TPOT 20 over 40 ms", of("pd_cost", 20) / of("pd_cost", 40), Range(1.3, 1.7)),
        Check("cost, short requests, co-located over disaggregated, 40 ms", of("co_over_pd_short", 40),
              Range(0.85, 1.15)),
        Check("cost, long requests, co-located over disaggregated, 100 ms", of("co_over_pd_long", 100), Range(high=1)),
    ]  # fmt: skip
