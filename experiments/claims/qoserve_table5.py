"""QoServe, Table 5: what dynamic chunking, eager relegation and hybrid priority add to Sarathi-EDF."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.claims.harness import BELOW_0, Cell, Check, Range, claim, drawing, values
from experiments.claims.harness.goodput import goodput
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.violations import QOSERVE, QOSERVE_CODE, sarathi, serve_violations, slo_of

DEVICE = "a100-llama3-8b"
STEPS = {
    "Sarathi-EDF": sarathi("edf", DEVICE),
    "DC": "qoserve:alpha_s_per_token=0,relegation=off",
    "DC+ER": "qoserve:alpha_s_per_token=0",
    "DC+ER+HP": QOSERVE,
}
CODE = "public code"
EDF, DC, ER, HP = STEPS
GOODPUT_LOAD = 1.0  # marks the cells that look for goodput
HIGH_LOAD = 2.2  # the paper's 6 requests/s over the 2.75 that its Sarathi-EDF serves
HOURS = 1.0  # of arrivals in full size
RATIOS = {DC: Range(1.1, 1.3), ER: Range(1.0, 1.18), HP: Range(0.98, 1.05)}  # around the paper's 1.2, 1.09 and 1.014


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    slo = slo_of(setting.device)
    requests = round(HIGH_LOAD * saturation_per_s(setting) * HOURS * 3600 * size.requests / 1000)
    for seed in size.seeds:
        for scheduler in (*STEPS.values(), QOSERVE_CODE):
            yield Cell(*setting, scheduler, GOODPUT_LOAD, seed, size.requests, slo=slo)
            yield Cell(*setting, scheduler, HIGH_LOAD, seed, requests, slo=slo)


def measure(cell: Cell) -> dict[str, Any]:
    if cell.load == GOODPUT_LOAD:
        return goodput(cell, HOURS * 3600 * cell.requests / 1000)
    return serve_violations(cell)


def picture(rows: pd.DataFrame, path: Path) -> None:
    shown = {
        "goodput_per_s": ("goodput, requests/s", GOODPUT_LOAD),
        "violations": (f"violations at load {HIGH_LOAD:g}, share", HIGH_LOAD),
    }
    figure, row = drawing.panels([title for title, _ in shown.values()], "", "", size=(3.8, 2.7), share_y=False)
    for axes, (column, (_, load)) in zip(row, shown.items(), strict=True):
        drawing.bars(axes, (values(rows, column, scheduler=text, load=load) for text in STEPS.values()))
        axes.set_xticks(range(len(STEPS)), list(STEPS))
    figure.savefig(path, dpi=drawing.DOTS_PER_INCH)


@claim("qoserve-table5", cells=cells, measure=measure, families=("qoserve-code",), devices=(DEVICE,), picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    texts = {**STEPS, CODE: QOSERVE_CODE}
    goodputs = {name: values(rows, "goodput_per_s", scheduler=text, load=GOODPUT_LOAD) for name, text in texts.items()}
    violations = {name: values(rows, "violations", scheduler=text, load=HIGH_LOAD) for name, text in texts.items()}
    checks = []
    for before, after in pairwise(STEPS):
        checks += [
            Check(f"goodput, {after} over {before}", goodputs[after] / goodputs[before], RATIOS[after]),
            Check(f"violations at load {HIGH_LOAD:g}, {after} - {before}", violations[after] - violations[before],
                  BELOW_0),
        ]  # fmt: skip
    examines = "chunk sizes and relegation of the public code"
    return [
        *checks,
        Check("goodput over DC+ER+HP", goodputs[CODE] / goodputs[HP], RATIOS[HP], examines),
        Check(
            f"violations at load {HIGH_LOAD:g}, less DC+ER+HP's", violations[CODE] - violations[HP], BELOW_0, examines
        ),
    ]
