"""ProServe, Figure 18: what the weight of high priority does."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, Setting, Size, claim, drawing, values
from experiments.claims.harness.measures import serve

SLIDE, PRIORITY = "slide-batching", "sarathi-priority"
WEIGHTS = (1.0, 2.0, 4.0, 8.0)
LOADS = (0.7, 1.0)
FLAT = Range(-0.05, 0.05)  # change of overall attainment from the smallest weight to the largest: 5 points
WHO = {"high": "_high_priority", "low": "_low_priority", "overall": ""}
METRICS = {
    "": ("slo_attainment", True),
    "the first and last token's deadlines, not mean TPOT": ("deadline_attainment", True),
    "deadlines counted from an early first token": ("slo_attainment", False),
}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for load in LOADS:
        for seed in size.seeds:
            requests = size.requests_of(setting)
            yield Cell(*setting, PRIORITY, load, seed, requests)
            for weight in WEIGHTS:
                for buffered in (True, False):
                    yield Cell(*setting, SLIDE, load, seed, requests, high_weight=weight, buffered=buffered)


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    shown = {
        (column, load): f"{title}, load {load:g}"
        for column, title in {"slo_attainment": "mean TPOT", "deadline_attainment": "by deadlines"}.items()
        for load in LOADS
    }
    figure, row = drawing.panels(list(shown.values()), "weight of high priority (low: 1)", "attainment, share")
    for axes, (column, load) in zip(row, shown, strict=True):
        for style, (who, suffix) in enumerate(WHO.items()):
            by_weight = [
                values(here, column + suffix, load=load, scheduler=SLIDE, high_weight=weight, buffered=True)
                for weight in WEIGHTS
            ]
            drawing.curve(axes, WEIGHTS, by_weight, f"SlideBatching, {who}", style)
        for style, who in ((3, "high"), (4, "low")):
            constant = [values(here, column + WHO[who], load=load, scheduler=PRIORITY)] * len(WEIGHTS)
            drawing.curve(axes, WEIGHTS, constant, f"Sarathi-Priority, {who}", style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(WEIGHTS, [f"{weight:g}" for weight in WEIGHTS])
        axes.set_ylim(0, 1.02)
    drawing.save(figure, row, path)


@claim("proserve-fig18", cells=cells, measure=serve, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = []
    for examines, (column, buffered) in METRICS.items():
        for load in LOADS:
            light, heavy = (
                {
                    who: values(
                        rows, column + suffix, load=load, scheduler=SLIDE, high_weight=weight, buffered=buffered
                    )
                    for who, suffix in WHO.items()
                }
                for weight in (WEIGHTS[0], WEIGHTS[-1])
            )
            strict = {who: values(rows, column + suffix, load=load, scheduler=PRIORITY) for who, suffix in WHO.items()}
            at = f"load {load:g}"
            checks += [
                Check(f"high, weight 8 - 1, {at}", heavy["high"] - light["high"], ABOVE_0, examines),
                Check(f"low, weight 8 - 1, {at}", heavy["low"] - light["low"], BELOW_0, examines),
                Check(f"overall, weight 8 - 1, {at}", heavy["overall"] - light["overall"], FLAT, examines),
                Check(f"high, weight 1 - Sarathi-Priority, {at}", light["high"] - strict["high"], BELOW_0, examines),
                Check(f"high, weight 8 - Sarathi-Priority, {at}", heavy["high"] - strict["high"], ABOVE_0, examines),
                Check(f"low, weight 8 - Sarathi-Priority, {at}", heavy["low"] - strict["low"], ABOVE_0, examines),
                Check(
                    f"overall, weight 8 - Sarathi-Priority, {at}",
                    heavy["overall"] - strict["overall"],
                    ABOVE_0,
                    examines,
                ),
            ]
    return checks
