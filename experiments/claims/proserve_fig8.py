"""ProServe, Figure 8: a balanced fleet has no room for a long prompt, an unbalanced one does."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Check, Range, claim, values
from experiments.claims.harness.cells import Cell, deployment_of, spec_of
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import Setting, Size, idle_prefill_s
from servegym.simulator.inputs.workload import Workload

MIN_LOAD, GOROUTING = "min-load", "gorouting"
ROUTERS = {"Min-Load": MIN_LOAD, "GoRouting": GOROUTING}
SCHEDULER, CHUNK_TOKENS = "sarathi-fcfs", 512
TTFT_S = 1.0
ENGINES = "prefill=2,decode=1"
# How long an idle engine prefills each request: least, most. The first and third make instance A moderately loaded, the
# second B lightly; then come R1 and R2. Each comes STEP_S after the one before.
PREFILL_S = ((0.25, 0.28), (0.2, 0.22), (0.2, 0.24), (0.2, 0.23), (0.66, 0.7))
STEP_S = 0.002
R1, R2 = 3, 4
DRAWS = 40  # a seed in full size
NONE, ALL = Range(high=0.01), Range(low=0.99)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for router in ROUTERS.values():
            yield Cell(*setting, SCHEDULER, 1.0, seed, size.requests, engines=ENGINES, router=router)


def tokens_of(device: str, seconds: np.ndarray) -> np.ndarray:
    """int[...]: prompts that an idle engine prefills in about so long."""
    known = np.arange(64, 16385, 64)
    table = np.zeros(len(known), [("prompt_tokens", "i4")])
    table["prompt_tokens"] = known
    return np.interp(seconds, idle_prefill_s(device, table, CHUNK_TOKENS), known).astype("i4")


def measure(cell: Cell) -> dict[str, Any]:
    """Shares of the draws in which R1, R2 and all requests meet their TTFT; mean TTFT of R1."""
    draws = max(1, DRAWS * cell.requests // 1000)
    least_s, most_s = np.transpose(PREFILL_S)
    seconds = np.random.default_rng(cell.seed).uniform(least_s, most_s, size=(draws, len(PREFILL_S)))
    spec, deployment = spec_of(cell), deployment_of(cell.device, cell.engines)
    ttft_s = np.array([
        begin(spec.build(workload=workload_of(prompts), deployment=deployment)).run().requests["ttft_s"]
        for prompts in tokens_of(cell.device, seconds)
    ])  # fmt: skip
    met = ttft_s < TTFT_S
    return {
        "r1_met": float(met[:, R1].mean()), "r2_met": float(met[:, R2].mean()), "all_met": float(met.all(1).mean()),
        "r1_ttft_s": float(ttft_s[:, R1].mean()),
    }  # fmt: skip


def workload_of(prompts: np.ndarray) -> Workload:
    """The requests, of one output token each."""
    count = len(prompts)
    return Workload.from_columns({
        "arrival_s": (STEP_S * np.arange(count)).tolist(), "prompt_tokens": prompts.tolist(),
        "output_tokens": [1] * count, "ttft_slo_s": [TTFT_S] * count, "tpot_slo_s": [0.05] * count,
    })  # fmt: skip


@claim("proserve-fig8", cells=cells, measure=measure, families=("uniform-4096-1024",), devices=("a100-llama3-8b",))
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, router: str) -> np.ndarray:
        return values(rows, column, router=router)

    return [
        Check("Min-Load, R1 in time", of("r1_met", MIN_LOAD), ALL),
        Check("Min-Load, R2 in time", of("r2_met", MIN_LOAD), NONE),
        Check("GoRouting, all in time", of("all_met", GOROUTING), ALL),
        Check("TTFT of R1, GoRouting - Min-Load, s", of("r1_ttft_s", GOROUTING) - of("r1_ttft_s", MIN_LOAD), ABOVE_0),
    ]
