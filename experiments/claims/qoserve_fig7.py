"""QoServe, Figure 7: goodput of one engine shared by three classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import Check, Range
from experiments.claims.harness.claim import claim
from experiments.claims.harness.goodput import goodput
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import Setting, Size
from experiments.claims.harness.violations import QOSERVE, sarathi, slo_of

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("qoserve-code", "qoserve-conv", "sharegpt")
DEVICES = ("a100-llama3-8b", "a100-llama3-70b-tp4")
HOURS = 1.5  # of arrivals in full size
ABOVE = Range(low=1.0)
OVER_FCFS, OVER_EDF = Range(1.5, 2.4), Range(1.2, 1.4)  # what the paper prints


def schedulers(device: str) -> dict[str, str]:
    return {
        "Sarathi-FCFS": sarathi("fcfs", device),
        "Sarathi-EDF": sarathi("edf", device),
        "QoServe": QOSERVE,
    }


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for scheduler in schedulers(setting.device).values():
            yield Cell(*setting, scheduler, 1.0, seed, size.requests, slo=slo_of(setting.device))


def measure(cell: Cell) -> dict[str, Any]:
    return goodput(cell, HOURS * 3600 * cell.requests / 1000)


def goodputs(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """float64[seeds] of each scheduler, requests per second."""
    device = str(rows["device"].iloc[0])
    return {name: values(rows, "goodput_per_s", scheduler=text) for name, text in schedulers(device).items()}


def picture(rows: pd.DataFrame, path: Path) -> None:
    from experiments.claims.harness import drawing
    from servegym.evaluation.intervals import student_interval

    devices = list(dict.fromkeys(rows["device"]))
    figure, row = drawing.panels(devices, "", "goodput, requests/s", size=(4.4, 2.7), share_y=False)
    for axes, device in zip(row, devices, strict=True):
        here = rows[rows["device"] == device]
        families = list(dict.fromkeys(here["family"]))
        for style, name in enumerate(schedulers(device)):
            found = [student_interval(goodputs(here[here["family"] == family])[name]) for family in families]
            at = np.arange(len(families)) + (style - 1) * 0.25
            axes.bar(
                at, [interval.mean for interval in found], 0.23, label=name, color=drawing.STYLES[style]["color"],
                yerr=[0.0 if np.isnan(interval.low) else interval.half_width for interval in found], capsize=2,
            )  # fmt: skip
        axes.set_xticks(range(len(families)), families)
    drawing.save(figure, row, path)


@claim(
    "qoserve-fig7",
    cells=cells,
    measure=measure,
    families=FAMILIES,
    devices=DEVICES,
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    fcfs, edf, qoserve = goodputs(rows).values()
    return [
        Check("QoServe over Sarathi-FCFS, above 1", qoserve / fcfs, ABOVE),
        Check("QoServe over Sarathi-FCFS", qoserve / fcfs, OVER_FCFS),
        Check("QoServe over Sarathi-EDF, above 1", qoserve / edf, ABOVE),
        Check("QoServe over Sarathi-EDF", qoserve / edf, OVER_EDF),
    ]
