"""FlowPrefill, Figure 12: how long a preemption waits for the end of an operator, and of a layer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, drawing, values
from experiments.claims.harness.first_tokens import ONE_AND_ONE, run_to_the_end
from experiments.claims.harness.settings import Setting, Size, rules_of

DEVICES = ("a100-llama3-8b", "a100-qwen2.5-14b-tp2", "a100-llama3-70b-tp4", "a100-qwen3-30b-a3b")
BOUNDARIES = {"operator": "flow-prefill", "layer": "flow-prefill:boundary=layer"}
LOAD = 0.8
REQUESTS = 4000  # of a run in full size
RATIO = Range(3.5, 4.2)
MOST_S = 4.5e-3
# The paper gives no number for a check ("simple concurrency primitive operations, negligible overhead") nor for how far
# ranks of tensor parallelism are apart; both are 0. These are ours, examined: a check at each boundary, and ranks.
COSTLY = "check_s=1e-05,jitter_s=0.0005"
EXAMINED = (
    "a check takes 10 us, ranks are up to 0.5 ms apart (ours: the paper calls checks negligible, without a number)"
)
EXPERTS = "a100-qwen3-30b-a3b"  # whose times of experts are derived, not measured; not in the paper's figure


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for scheduler in BOUNDARIES.values():
            free = Cell(*setting, scheduler, LOAD, seed, size.requests, engines=ONE_AND_ONE)
            yield free
            yield free._replace(operators=COSTLY)


def measure(cell: Cell) -> dict[str, Any]:
    requests = max(100, REQUESTS * cell.requests // 1000)
    run, measured = run_to_the_end(cell, LOAD, requests)
    engine = run.arrays.engines[0]
    return {
        **measured,
        "preemptions_per_request": float(engine.totals.suspensions / requests),
        "blocking_mean_s": float(engine.totals.blocking_s / engine.totals.suspensions)
        if engine.totals.suspensions
        else None,
        "blocking_longest_s": float(engine.totals.longest_blocking_s) if engine.totals.suspensions else None,
    }


def blocking_s(rows: pd.DataFrame, operators: str = "") -> dict[str, np.ndarray]:
    """float64[seeds]: mean blocking time by boundary."""
    return {
        name: values(rows, "blocking_mean_s", scheduler=scheduler, operators=operators)
        for name, scheduler in BOUNDARIES.items()
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    devices = list(dict.fromkeys(rows["device"]))
    figure, (axes,) = drawing.panels([""], "", "mean blocking time, ms", (1.9 * max(2, len(devices)), 2.6))
    for k, name in enumerate(BOUNDARIES):
        found = [1e3 * blocking_s(rows[rows["device"] == device])[name] for device in devices]
        place, colour = (k - 0.5) * 0.36, ("0.15", "0.65")[k]
        bars = drawing.bars(axes, found, f"end of {name}", at=place, width=0.34, color=colour)
        axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    axes.set_xticks(range(len(devices)), devices)
    drawing.save(figure, [axes], path)


@claim("flowprefill-fig12", cells=cells, measure=measure, families=("flowprefill",), devices=DEVICES, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    at, costly = blocking_s(rows), blocking_s(rows, COSTLY)
    experts = rules_of(rows["device"].iloc[0]) == EXPERTS
    return [
        Check("layer over operator, above 1", at["layer"] / at["operator"], Range(low=1.0)),
        Check("layer over operator", at["layer"] / at["operator"], RATIO,
              "a mixture of experts, whose times are derived" if experts else ""),
        Check("mean at operators, ms", 1e3 * at["operator"], Range(high=1e3 * MOST_S), "the absolute value"),
        Check("layer over operator", costly["layer"] / costly["operator"], RATIO, EXAMINED),
        Check("mean at operators, ms", 1e3 * costly["operator"], Range(high=1e3 * MOST_S), EXAMINED),
    ]  # fmt: skip
