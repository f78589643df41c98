"""QoServe, Figure 7: goodput of one engine shared by three classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, drawing, grid, values
from experiments.claims.harness.goodput import goodput
from experiments.claims.harness.violations import QOSERVE, sarathi, slo_of

FAMILIES = ("qoserve-code", "qoserve-conv", "sharegpt")
DEVICES = ("a100-llama3-8b", "a100-llama3-70b-tp4")
HOURS = 1.5  # of arrivals in full size
ABOVE = Range(low=1.0)
OVER_FCFS, OVER_EDF = Range(1.5, 2.4), Range(1.2, 1.4)  # what the paper prints


def schedulers(device: str) -> dict[str, str]:
    return {"Sarathi-FCFS": sarathi("fcfs", device), "Sarathi-EDF": sarathi("edf", device), "QoServe": QOSERVE}


def measure(cell: Cell) -> dict[str, Any]:
    return goodput(cell, HOURS * 3600 * cell.requests / 1000)


def goodputs(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """float64[seeds] of each scheduler, requests per second."""
    device = str(rows["device"].iloc[0])
    return {name: values(rows, "goodput_per_s", scheduler=text) for name, text in schedulers(device).items()}


def picture(rows: pd.DataFrame, path: Path) -> None:
    devices = list(dict.fromkeys(rows["device"]))
    figure, row = drawing.panels(devices, "", "goodput, requests/s", size=(4.4, 2.7), share_y=False)
    for axes, device in zip(row, devices, strict=True):
        here = rows[rows["device"] == device]
        families = list(dict.fromkeys(here["family"]))
        for style, name in enumerate(schedulers(device)):
            by_family = (goodputs(here[here["family"] == family])[name] for family in families)
            drawing.bars(axes, by_family, name, style, (style - 1) * 0.25, 0.23)
        axes.set_xticks(range(len(families)), families)
    drawing.save(figure, row, path)


@claim(
    "qoserve-fig7",
    cells=grid(lambda device: schedulers(device).values(), (1.0,), slo=slo_of),
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
