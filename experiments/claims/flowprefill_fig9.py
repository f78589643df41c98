"""FlowPrefill, Figure 9: TTFT attainment against the request rate and against the tightness of the SLOs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.experiments.claims.harness import first_tokens, goodput, slo_scale
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import Check, Range
from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.first_tokens import (
    ATTAINMENT,
    ONE_AND_ONE,
    attainment,
    goodput_per_s,
    least_scale,
)
from servegym.experiments.claims.harness.rows import series, values
from servegym.experiments.claims.harness.settings import Setting, Size

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (first_tokens, goodput, slo_scale)
DEVICES = ("a100-llama3-8b", "a100-qwen2.5-14b-tp2", "a100-llama3-70b-tp4")
FLOW = "flow-prefill"
SCHEDULERS = {
    "FlowPrefill": FLOW,
    "DistServe": "distserve",
    "DistServe-CP2K": "distserve-cp2k",
    "DistServe-CP8K": "distserve-cp8k",
}
# FlowPrefill without what it is made of is chunked prefill by deadline, a prompt alone in its batch.
ALONE = {
    f"CP{size}K alone": f"{FLOW}:priority=edf,boundary=none,batch_token_budget=0,chunk_tokens={1024 * size}"
    for size in (2, 8)
}
LOADS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0)
SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
FIXED_LOAD = 0.6  # where the SLOs are scaled
DURATION_S = 900.0  # of arrivals in full size
ABOVE = Range(low=1.0)
OVER = {"DistServe": Range(4.7, 5.6), "DistServe-CP2K": Range(1.0, 2.0), "DistServe-CP8K": Range(1.0, 4.5)}
TIGHTER = {"DistServe-CP2K": Range(1.5, 2.3), "DistServe-CP8K": Range(2.1, 3.1)}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for scheduler in (*SCHEDULERS.values(), *ALONE.values()):
            yield Cell(*setting, scheduler, FIXED_LOAD, seed, size.requests, engines=ONE_AND_ONE)


def measure(cell: Cell) -> dict[str, Any]:
    duration_s = DURATION_S * cell.requests / 1000
    drawn = cell.scheduler in SCHEDULERS.values()
    return {
        "goodput_per_s": goodput_per_s(cell, duration_s),
        "least_scale": least_scale(cell, FIXED_LOAD, duration_s),
        "attainment_of_loads": [attainment(cell, load, duration_s) for load in LOADS] if drawn else [],
        "attainment_of_scales": [attainment(cell, FIXED_LOAD, duration_s, scale) for scale in SCALES] if drawn else [],
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    from servegym.experiments.claims.harness import drawing

    devices = list(dict.fromkeys(rows["device"]))
    figure, (above, below) = drawing.panel_rows(devices, "", ["share of first tokens in time"] * 2, (3.1, 2.5))
    for device, by_rate, by_scale in zip(devices, above, below, strict=True):
        here = rows[rows["device"] == device]
        for style, (name, scheduler) in enumerate(SCHEDULERS.items()):
            for axes, column, x in ((by_rate, "loads", LOADS), (by_scale, "scales", SCALES)):
                of_seeds = series(here, f"attainment_of_{column}", scheduler=scheduler)
                drawing.curve(axes, x, np.transpose(of_seeds), name, style)
        by_rate.set_xlabel("load", fontsize=9)
        by_scale.set_xlabel("SLO scale", fontsize=9)
        by_scale.set_xscale("log")
        by_scale.set_xticks([0.25, 0.5, 1, 2, 5], ["0.25", "0.5", "1", "2", "5"])
        by_scale.minorticks_off()
        for axes in (by_rate, by_scale):
            axes.axhline(ATTAINMENT, color="0.4", linewidth=0.8)
            axes.set_ylim(-0.03, 1.03)
    drawing.save(figure, above, path)


@claim(
    "flowprefill-fig9",
    figure="Figure 9",
    paper="At 90 % TTFT attainment FlowPrefill's goodput is 4.7 to 5.6 times DistServe's, up to 2.0 times "
    "DistServe-CP2K's and up to 4.5 times DistServe-CP8K's; at a fixed rate it supports SLOs 1.5 to 2.3 times tighter "
    "than CP2K and 2.1 to 3.1 times tighter than CP8K.",
    hypothesis="One prefill and one decode engine, the prompts of the paper's Table 1, Poisson arrivals for 900 s, "
    "bisection to 2 %: FlowPrefill's goodput over each baseline's is above 1, and within 4.7 to 5.6, 1 to 2.0 and 1 "
    "to 4.5; at load 0.6 (of one whole prompt after the other) the least SLO scale of CP2K and CP8K over "
    "FlowPrefill's is above 1, and within 1.5 to 2.3 and 2.1 to 3.1.",
    refuted_by="An interval of a ratio wholly outside its range.",
    cells=cells,
    measure=measure,
    families=("flowprefill",),
    devices=DEVICES,
    picture=picture,
    reading="FlowPrefill leads every baseline on every model. Its goodput is 4.7 to 5.6 times DistServe's, as in the "
    "paper, but each interval reaches out of that range. Over DistServe-CP2K it is 1.8 and 2.0 times on the larger "
    "models and 4.2 times on Llama3-8B, where a batch of 2048 tokens takes 156 of the 250 ms a text has (140 of 400 "
    "and 408 of 1000 ms on the others). SLOs are 3.0 to 3.2 times tighter than CP2K's on all three, more than the "
    "paper's 2.3. Where a chunk has its batch to itself (examined) goodput is 1.9 to 2.1 times CP2K's and SLOs are "
    "2.0 to 2.3 times tighter, near or within the paper's ranges; the paper does not say whether its chunks run so. "
    "CP8K's goodput hardly differs from DistServe's, which fills batches of 8192 tokens too: FlowPrefill's is 4.8 to "
    "5.7 times it. Alone in their batches CP8K's chunks serve 1.3 to 1.9 times DistServe's rate, and FlowPrefill 2.7 "
    "to 4.5 times theirs. Its SLOs are 8.7 to 10 times tighter than CP8K's, and still 4.0 to 4.5 times where chunks "
    "are alone, above the paper's 3.1: 8192 tokens take longer than a text's SLO here on all three. The last run, "
    "with other arrivals, had 5.5 to 7.1 times DistServe's goodput. Llama3-8B, on one GPU and so without all-reduces, "
    "fell from 7.1 to 5.6: the mended profiles are not all of the change.",
    in_short="Ahead of every baseline on all models, but by more than in the paper: SLOs 3.0 to 3.2 times tighter "
    "than CP2K's, 8.7 to 10 than CP8K's.",
    caption="First tokens in time by load and, at load 0.6, by SLO scale; the grey line is 90 %.",
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, scheduler: str) -> np.ndarray:
        return values(rows, column, scheduler=scheduler)

    served, scale = of("goodput_per_s", FLOW), of("least_scale", FLOW)
    checks = []
    for expected in (dict.fromkeys(OVER, ABOVE), OVER):
        for name, wanted in expected.items():
            more = ", above 1" if wanted is ABOVE else ""
            checks.append(Check(f"goodput over {name}{more}", served / of("goodput_per_s", SCHEDULERS[name]), wanted))
    for expected in (dict.fromkeys(TIGHTER, ABOVE), TIGHTER):
        for name, wanted in expected.items():
            more = ", above 1" if wanted is ABOVE else ""
            checks.append(Check(f"SLOs tighter than {name}{more}", of("least_scale", SCHEDULERS[name]) / scale, wanted))
    examines = "chunks that share their batch with no other prompt"
    for (name, alone), baseline in zip(ALONE.items(), TIGHTER, strict=True):
        checks.append(Check(f"goodput over {name}", served / of("goodput_per_s", alone), OVER[baseline], examines))
        checks.append(Check(f"SLOs tighter than {name}", of("least_scale", alone) / scale, TIGHTER[baseline], examines))
        more_than_whole = of("goodput_per_s", alone) / of("goodput_per_s", SCHEDULERS["DistServe"])
        checks.append(Check(f"goodput of {name} over DistServe", more_than_whole, ABOVE, examines))
    return checks
