"""FlowPrefill, Figure 9: TTFT attainment against the request rate and against the tightness of the SLOs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, drawing, grid, series, values
from experiments.claims.harness.first_tokens import ATTAINMENT, ONE_AND_ONE, attainment, goodput_per_s, least_scale

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
    cells=grid((*SCHEDULERS.values(), *ALONE.values()), (FIXED_LOAD,), engines=ONE_AND_ONE),
    measure=measure,
    families=("flowprefill",),
    devices=DEVICES,
    picture=picture,
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
