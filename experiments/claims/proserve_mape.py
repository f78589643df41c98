"""ProServe, section 4.1: how far the batch latency estimator is off."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Check, Range, claim, values
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.settings import FAMILIES, NO_FAMILY, Setting, Size, profile
from servegym.evaluation.reports.iterations import iterations
from servegym.latency_models.estimators import range_of
from servegym.latency_models.sampling import random_batches

ABOUT = Range(3.0, 6.0)  # percent: "about 4.5 %", half as much again either way
BATCHES = 1800
LOAD = 1.0
# Prefill tokens about where a device stops waiting for weights and starts to be busy with them: its time bends there,
# which a linear form cannot.
BEND_TOKENS = (256, 1024)
EXAMINED = "the batches that slide-batching forms of {} at load 1"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    """Of a device, which is one setting: random batches have no family, and those served have all of them."""
    for family in FAMILIES:
        of_family = Setting(family, setting.device)
        for seed in size.seeds:
            yield Cell(*of_family, "slide-batching", LOAD, seed, size.requests_of(of_family))


def measure(cell: Cell) -> dict[str, Any]:
    """Mean absolute percentage error of the estimator: of random batches, and of those that a run forms."""
    return {"mape_random_percent": mape_random(cell.device, cell.seed), **errors_served(cell)}


@functools.cache
def mape_random(device: str, seed: int) -> float:
    """Of batches drawn as those of the fit were, in the range the profile names, by seeds the fit did not see."""
    served = profile(device)
    batches = random_batches(BATCHES, seed, range_of(served))
    return percent(served.estimator.evaluate(batches), served.device.evaluate(batches))


def errors_served(cell: Cell) -> dict[str, float]:
    """Of the iterations of a run: what was estimated at their start, and what they took.

    The bias is the mean of the signed error: of batches at the bend of the device, and of all others.
    """
    table = iterations(simulation(cell, record_timeline=True).run())
    estimated_s, real_s = table["estimated_s"].to_numpy(), (table["end_s"] - table["start_s"]).to_numpy()
    error_percent = 100 * (estimated_s - real_s) / real_s
    at_bend = table["prefill_tokens"].between(*BEND_TOKENS).to_numpy()
    return {
        "mape_served_percent": percent(estimated_s, real_s),
        "bias_at_bend_percent": float(error_percent[at_bend].mean()),
        "bias_elsewhere_percent": float(error_percent[~at_bend].mean()),
        "share_at_bend_percent": float(100 * at_bend.mean()),
    }


def percent(estimated_s: np.ndarray, real_s: np.ndarray) -> float:
    return float(100 * np.mean(np.abs(estimated_s - real_s) / real_s))


@claim("proserve-mape", cells=cells, measure=measure, families=NO_FAMILY)
def judge(rows: pd.DataFrame) -> list[Check]:
    served = (
        ("MAPE, %", "mape_served_percent", ABOUT),
        ("signed error of those with 256 to 1024 prefill tokens, %", "bias_at_bend_percent", Range(5.0, 30.0)),
        ("signed error of the others, %", "bias_elsewhere_percent", Range(-5.0, 5.0)),
        ("share of batches with 256 to 1024 prefill tokens, %", "share_at_bend_percent", Range(30.0, 100.0)),
    )
    random_percent = values(rows.drop_duplicates("seed"), "mape_random_percent")  # the same whatever is served
    return [
        Check("MAPE on held-out batches, %", random_percent, ABOUT),
        *(
            Check(name, values(rows, column, family=family), expected, EXAMINED.format(family))
            for family in FAMILIES
            for name, column, expected in served
        ),
    ]
