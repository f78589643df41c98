"""Normalised waiting time by urgency, as the semantic scheduling paper measures, with predictors and host memory."""

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness.cells import Cell, spec_of
from experiments.claims.harness.rows import values
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import Setting, Size, profile, saturation_per_s, seed_of
from servegym.simulator.inputs.deployment import HostMemory
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.recipes import URGENCY_LEVELS

DEVICES = ("a100-qwen1.5-4b", "a100-qwen1.5-7b", "a5000-qwen1.5-7b")
LEVELS = range(URGENCY_LEVELS)
BUCKETS = "length_buckets=5"
WAVES = 100  # of a run, as in the public simulation
FULL_REQUESTS = 1000  # of a full size's runs: what the number of waves is scaled by
MOST_REPEATS = 20


class PublicCodePredictor(Predictor):
    """Mistakes about urgency as the paper's public simulation makes them.

    Levels are 0 to 4, but wrong ones are clipped to 1 to 5; a distance is rounded down.
    """

    def _urgency(self, workload: Workload) -> np.ndarray:
        true, levels = workload.table["urgency"], self.urgency_levels
        draw = np.random.default_rng([self.seed, 0]).random((2, len(true)))
        wrong = np.argsort(np.argsort(draw[0])) < round(self.urgency_error * len(true))
        distance = int(levels * self.urgency_error)
        above, below = np.clip(true + distance, 1, levels), np.clip(true - distance, 1, levels)
        either = np.where(draw[1] < 0.5, above, below)
        taken = np.where(above == true, below, np.where(below == true, above, either))
        return np.where(wrong, taken, true).astype("i4")


def waves(n: int, gap_s: float) -> str:
    """Arrivals: 0 to n requests together, each number as likely, every gap_s."""
    return f"waves:n={n},gap_s={gap_s}"


def requests_of(n: int, size: Size, waves: int = WAVES) -> int:
    """Requests of a run of waves of 0 to n; fewer in a smaller size."""
    return math.ceil(waves * n / 2 * min(1.0, size.requests / FULL_REQUESTS))


def load_of(setting: Setting, n: int, gap_s: float) -> float:
    """Mean rate of such waves over saturation."""
    return n / 2 / gap_s / saturation_per_s(setting)


def cell_of_waves(
    setting: Setting,
    size: Size,
    scheduler: str,
    seed: int,
    n: int,
    gap_s: float,
    waves_of_run: int = WAVES,
    **more: Any,
) -> Cell:
    """A run of waves of 0 to n requests every gap_s. more: other fields of the cell."""
    load, requests = load_of(setting, n, gap_s), requests_of(n, size, waves_of_run)
    return Cell(*setting, scheduler, load, seed, requests, arrivals=waves(n, gap_s), **more)


def settings_of(text: str) -> dict[str, Any]:
    """Settings of "key=value,key=value": whole numbers, numbers, or words."""
    pairs = (pair.split("=") for pair in filter(None, text.split(",")))
    return {key: _value(value) for key, value in pairs}


def _value(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def simulation(cell: Cell, seed: int) -> Simulation:
    """A run of a cell with a seed of its own, of lengths, arrivals, urgencies and errors."""
    deployment = profile(cell.device).deployment()
    if cell.host:
        deployment = dataclasses.replace(deployment, host=HostMemory(**settings_of(cell.host)))
    chosen = settings_of(cell.predictor)
    kind = PublicCodePredictor if chosen.pop("clip", "") == "public-code" else Predictor
    predictor = kind(**chosen, seed=seed)
    scenario = spec_of(cell).build(seed_of(cell.family, seed), deployment=deployment)
    return begin(dataclasses.replace(scenario, predictor=predictor))


def serve_waiting(cell: Cell, requests_at_least: int) -> dict[str, Any]:
    """Waiting time per output token, overall and by true urgency level (None: no request has it).

    A run is repeated until it has served `requests_at_least`, at most MOST_REPEATS times; all of it counts together.
    waiting_s: waiting time (arrival to finish) of all requests over their output tokens, "the average waiting time per
    generated token". mean_waiting_s: the mean of each request's own ratio, in which a one-token answer counts as much
    as a long one. Both in seconds a token.
    """
    repeats = max(1, min(MOST_REPEATS, requests_at_least // cell.requests))
    served = [_served(simulation(cell, cell.seed * 1000 + repeat)) for repeat in range(repeats)]
    level, waited_s, tokens = (np.concatenate(part) for part in list(zip(*served, strict=True))[:3])
    moved = np.sum([part[3:] for part in served], axis=0) / len(level)
    measured: dict[str, Any] = {"evictions_per_request": moved[0], "saved_tokens_per_request": moved[1]}
    for name, chosen in {"": level >= 0, **{f"_{urgency}": level == urgency for urgency in LEVELS}}.items():
        some = chosen.any()
        measured[f"waiting_s{name}"] = float(waited_s[chosen].sum() / tokens[chosen].sum()) if some else None
        measured[f"mean_waiting_s{name}"] = float((waited_s[chosen] / tokens[chosen]).mean()) if some else None
    return measured


def _served(run: Simulation) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Of each request its urgency, waiting time and output tokens; evictions, and tokens saved to host memory."""
    requests, totals = run.run().requests, run.arrays.engines["totals"]
    urgency = run.scenario.workload.table["urgency"]
    waited_s, tokens = requests["ttlt_s"].to_numpy("f8"), requests["output_tokens"].to_numpy("f8")
    return urgency, waited_s, tokens, int(totals["evictions"].sum()), int(totals["saved_tokens"].sum())


def waited(rows: pd.DataFrame, level: int | None = None, column: str = "waiting_s", **where: Any) -> np.ndarray:
    """float64[seeds]: waiting time per output token of a level (None: of all), s."""
    return values(rows, column if level is None else f"{column}_{level}", **where)
