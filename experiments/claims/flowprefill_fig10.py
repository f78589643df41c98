"""FlowPrefill, Figure 10: slack-aware EDF against EDF and deadline-aware EDF."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, drawing, grid, series, values
from experiments.claims.harness.first_tokens import ATTAINMENT, ONE_AND_ONE, attainment, goodput_per_s, least_scale

SCHEDULERS = {name: f"flow-prefill:priority={name.lower()}" for name in ("S-EDF", "D-EDF", "EDF")}
LATE_BY_DEADLINE = "flow-prefill:late_order=edf"
LOADS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 1.8, 2.2)
SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
FIXED_LOADS = (0.6, 0.9)  # where the SLOs are scaled
DURATION_S = 900.0  # of arrivals in full size
ABOVE = Range(low=1.0)


def measure(cell: Cell) -> dict[str, Any]:
    duration_s = DURATION_S * cell.requests / 1000
    return {
        "goodput_per_s": goodput_per_s(cell, duration_s),
        **{f"least_scale_{load}": least_scale(cell, load, duration_s) for load in FIXED_LOADS},
        "attainment_of_loads": [attainment(cell, load, duration_s) for load in LOADS],
        "attainment_of_scales": [attainment(cell, FIXED_LOADS[1], duration_s, scale) for scale in SCALES],
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    titles = ["by rate", f"by SLO scale, load {FIXED_LOADS[1]:g}"]
    figure, row = drawing.panels(titles, "", "share of first tokens in time", (3.6, 2.6))
    for axes, column, x in zip(row, ("loads", "scales"), (LOADS, SCALES), strict=True):
        for style, (name, scheduler) in enumerate(SCHEDULERS.items()):
            of_seeds = series(rows, f"attainment_of_{column}", scheduler=scheduler)
            drawing.curve(axes, x, np.transpose(of_seeds), name, style)
        axes.axhline(ATTAINMENT, color="0.4", linewidth=0.8)
        axes.set_ylim(-0.03, 1.03)
    row[0].set_xlabel("load", fontsize=9)
    row[1].set_xlabel("SLO scale", fontsize=9)
    drawing.save(figure, row, path)


@claim(
    "flowprefill-fig10",
    cells=grid((*SCHEDULERS.values(), LATE_BY_DEADLINE), FIXED_LOADS[:1], engines=ONE_AND_ONE),
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, scheduler: str) -> np.ndarray:
        return values(rows, column, scheduler=scheduler)

    slack = SCHEDULERS["S-EDF"]
    checks = []
    for name, other in SCHEDULERS.items():
        if other == slack:
            continue
        over = of("goodput_per_s", slack) / of("goodput_per_s", other)
        checks.append(Check(f"goodput of S-EDF over {name}", over, ABOVE))
        for load in FIXED_LOADS:
            column = f"least_scale_{load}"
            examines = "" if load == FIXED_LOADS[0] else f"load {load:g}"
            tighter = of(column, other) / of(column, slack)
            checks.append(Check(f"least SLO scale of {name} over S-EDF, load {load:g}", tighter, ABOVE, examines))
    over = of("goodput_per_s", slack) / of("goodput_per_s", LATE_BY_DEADLINE)
    checks.append(Check("goodput, latest deadline first over earliest", over, ABOVE, "order of those that are late"))
    return checks
