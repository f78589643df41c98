"""FlowPrefill, Figure 16: prefill and decode on one engine."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim, grid, over_loads
from experiments.claims.harness.drawing import by_load
from experiments.claims.harness.first_tokens import scenario_at
from experiments.claims.harness.served import begin

SCHEDULERS = {"FlowPrefill": "flow-prefill", "vLLM-CP2K": "vllm-v1:max_num_batched_tokens=2048"}
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0)
HIGH = LOADS[-2:]
DURATION_S = 600.0  # of arrivals in full size
MOST = Range(1.0, 1.6)


def measure(cell: Cell) -> dict[str, Any]:
    """TTFT and TBT attainment over all requests; a request that has not finished has not met its TBT.

    A request meets its TBT when the mean time between its tokens is below it; in the last column when each is.
    """
    whole = scenario_at(cell, cell.load, DURATION_S * cell.requests / 1000)
    result = begin(dataclasses.replace(whole, until_s=np.inf)).run()
    requests, longest_s = result.requests, result.arrays.outcomes["longest_tbt_s"]
    many = (requests["output_tokens"] > 1).to_numpy()
    slo_s = requests["tpot_slo_s"].to_numpy()
    return {
        "ttft_attainment": float((requests["ttft_s"] < requests["ttft_slo_s"]).mean()),
        "tbt_attainment": float((requests["tpot_s"].to_numpy() < slo_s)[many].mean()),
        "every_tbt_attainment": float((longest_s < slo_s)[many].mean()),
        "tokens_per_s": float(result.summary["throughput_tokens_per_s"]),
    }


@claim(
    "flowprefill-fig16",
    cells=grid(SCHEDULERS.values(), LOADS, slo="flowprefill-colocated"),
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
    picture=by_load(
        {"ttft_attainment": "TTFT", "tbt_attainment": "mean TBT"},
        SCHEDULERS,
        LOADS,
        "share of requests that meet it",
        (3.6, 2.6),
        (-0.03, 1.03),
    ),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str) -> list[np.ndarray]:
        return [over_loads(rows, column, HIGH, scheduler=text).mean(axis=0) for text in SCHEDULERS.values()]

    (ttft, their_ttft), (tbt, their_tbt), (every, their_every) = (
        of(f"{column}_attainment") for column in ("ttft", "tbt", "every_tbt")
    )
    return [
        Check("TTFT attainment less vLLM-CP2K's", ttft - their_ttft, ABOVE_0),
        Check("TBT attainment less vLLM-CP2K's", tbt - their_tbt, ABOVE_0),
        Check("TBT attainment over vLLM-CP2K's", tbt / their_tbt, MOST),
        Check("every TBT in time, less vLLM-CP2K's", every - their_every, ABOVE_0, "each TBT instead of the mean"),
    ]
