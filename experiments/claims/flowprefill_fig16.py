"""FlowPrefill, Figure 16: prefill and decode on one engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.experiments.claims.harness import first_tokens, goodput
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import ABOVE_0, Check, Range
from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.first_tokens import scenario_at
from servegym.experiments.claims.harness.rows import over_loads
from servegym.experiments.claims.harness.served import begin
from servegym.experiments.claims.harness.settings import Setting, Size

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (first_tokens, goodput)
SCHEDULERS = {"FlowPrefill": "flow-prefill", "vLLM-CP2K": "vllm-v1:token_budget=2048"}
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0)
HIGH = LOADS[-2:]
DURATION_S = 600.0  # of arrivals in full size
MOST = Range(1.0, 1.6)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for scheduler in SCHEDULERS.values():
            for load in LOADS:
                yield Cell(*setting, scheduler, load, seed, size.requests, slo="flowprefill-colocated")


def measure(cell: Cell) -> dict[str, Any]:
    """TTFT and TBT attainment over all requests; who has not finished has not met its TBT.

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


def picture(rows: pd.DataFrame, path: Path) -> None:
    from servegym.experiments.claims.harness import drawing

    figure, row = drawing.panels(["TTFT", "mean TBT"], "load", "share of requests that meet it", (3.6, 2.6))
    for axes, column in zip(row, ("ttft_attainment", "tbt_attainment"), strict=True):
        for style, (name, scheduler) in enumerate(SCHEDULERS.items()):
            drawing.load_curve(axes, rows, column, LOADS, name, style, scheduler=scheduler)
        axes.set_ylim(-0.03, 1.03)
    drawing.save(figure, row, path)


@claim(
    "flowprefill-fig16",
    figure="Figure 16",
    paper="With prefill and decode on one device group TTFT attainment is substantially above that of vLLM with "
    "chunks of 2048 tokens as the rate rises, and TBT attainment up to 1.6 times as high.",
    hypothesis="Llama3-8B on one engine, 600 s of arrivals, TTFT SLOs three times as long, TBT 0.1 s (text, image) "
    "and 0.2 s. At loads 0.8 and 1.0 (of the prefills alone; mean): attainment of TTFT and of mean TBT less that of "
    "vLLM-CP2K is above 0, and TBT attainment over vLLM-CP2K's within 1 to 1.6. Our engine runs slices of prefill and "
    "decode iterations in turn, where the paper's runs them at the same time.",
    refuted_by="An interval wholly outside its range.",
    cells=cells,
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
    picture=picture,
    reading="FlowPrefill leads in both. Its TBT attainment stays at 1.0, and is 5.2 times vLLM-CP2K's because that "
    "falls to 0.2 at loads 0.8 and 1.0: a batch with 2048 prefill tokens takes 156 ms and more, longer than the TBT "
    "of text and image, while slices of prefill and decodes in turn keep to 90 % of the smallest TBT by construction. "
    "At load 0.6 vLLM still meets 0.86 of the TBTs. Counted by each TBT instead of the mean (examined) FlowPrefill is "
    "50 points ahead. Taking turns costs throughput: 4.9 and 4.6 % fewer tokens per second at loads 0.8 and 1.0 (in "
    "the rows).",
    in_short="Ahead in TTFT and TBT; TBT attainment is 5.2 times vLLM-CP2K's (paper: to 1.6), as that falls to 0.2 at "
    "loads 0.8 and 1.0.",
    caption="One engine for prefill and decode: requests that meet TTFT, and mean TBT, by load.",
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
