"""FlowPrefill, Figure 13: TTFT as it is, and as a polynomial of the prompt's tokens predicts it."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.flowprefill_fig12 import DEVICES, EXPERTS
from experiments.claims.harness import Cell, Check, Range, claim, drawing, grid, values
from experiments.claims.harness.first_tokens import ONE_AND_ONE, run_to_the_end
from experiments.claims.harness.settings import idle_prefill_s
from servegym.latency_models.forms import get_form
from servegym.latency_models.model import LatencyModel
from servegym.simulator.records.types import BATCH

OF_THE_FIGURE = tuple(device for device in DEVICES if device != EXPERTS)
LOAD, HIGHER = 0.5, 0.8
REQUESTS = 2000  # of a run in full size
SHORTEST, LONGEST, PROFILED = 64, 24_000, 300  # prompts of the offline profile, tokens; how many
CLOSE, OUTLIER = 0.2, 2.0
MOST, FEW, SMALL = Range(low=0.5), Range(high=0.1), Range(high=5.0)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def batches_of(prompt_tokens: np.ndarray) -> np.ndarray:
    batches = np.zeros(len(prompt_tokens), BATCH)
    batches["prefill_tokens"] = prompt_tokens
    return batches


@functools.cache
def predictor(device: str) -> tuple[LatencyModel, float]:
    """The polynomial, and how far it is off the prefills it was fitted to on average, %."""
    prompts = np.zeros(PROFILED, [("prompt_tokens", "i8")])
    prompts["prompt_tokens"] = np.geomspace(SHORTEST, LONGEST, PROFILED)
    batches, duration_s = batches_of(prompts["prompt_tokens"]), idle_prefill_s(device, prompts)
    form = get_form("polynomial")
    assert form.fit is not None
    fitted = LatencyModel.from_values(form.name, form.fit(batches, duration_s))
    return fitted, float(100 * np.abs(fitted.evaluate(batches) / duration_s - 1).mean())


def measure(cell: Cell) -> dict[str, Any]:
    """How far TTFTs are from their predictions."""
    run, _ = run_to_the_end(cell, cell.load, max(100, REQUESTS * cell.requests // 1000))
    table = run.scenario.workload.table
    fitted, off_percent = predictor(cell.device)
    real_s = run.arrays.outcomes["first_token_s"] - table["arrival_s"]
    over = real_s / fitted.evaluate(batches_of(table["prompt_tokens"]))
    return {
        "close": float((np.abs(over - 1) <= CLOSE).mean()),
        "outliers": float((over > OUTLIER).mean()),
        "fit_off_percent": off_percent,
        **{f"over_p{round(100 * q)}": float(np.quantile(over, q)) for q in QUANTILES},
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    devices = list(dict.fromkeys(rows["device"]))
    figure, panels = drawing.panels(devices, "share of the requests", "TTFT / predicted")
    for axes, device in zip(panels, devices, strict=True):
        here = rows[rows["device"] == device]
        for style, load in enumerate((LOAD, HIGHER)):
            over = [values(here, f"over_p{round(100 * q)}", load=load) for q in QUANTILES]
            drawing.curve(axes, QUANTILES, over, f"load {load:g}", style)
        axes.set_yscale("log")
    drawing.save(figure, panels, path)


@claim(
    "flowprefill-fig13",
    cells=grid(("flow-prefill",), (LOAD, HIGHER), engines=ONE_AND_ONE),
    measure=measure,
    picture=picture,
    families=("flowprefill",),
    devices=OF_THE_FIGURE,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = [Check("polynomial off its own prefills, %", values(rows, "fit_off_percent", load=LOAD), SMALL)]
    for load in (LOAD, HIGHER):
        examines = "" if load == LOAD else f"load {load:g}"
        checks += [
            Check("TTFT within 20 % of the prediction, share", values(rows, "close", load=load), MOST, examines),
            Check("TTFT over twice the prediction, share", values(rows, "outliers", load=load), FEW, examines),
        ]
    return checks
