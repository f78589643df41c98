"""PolyServe, Figure 8: engine-seconds a request takes, where engines can be had."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import BELOW_0, Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.fleets import (
    DEVICE,
    ENGINES,
    IN_TIME,
    POLYSERVE,
    ROUGH,
    SEEDS,
    Fleet,
    co_chunk,
    is_served,
    judged,
    of_fleet,
    optimum,
    requests_of,
    scenario,
    settled,
    window_s,
)
from experiments.claims.harness.served import begin

FAMILIES = ("uniform-4096-1024", "azure-conv")  # for processor time
LOADS = (0.2, 0.5, 0.8)  # rates, as shares of the optimal goodput of 20 co-located engines
SUPPLY = 2 * ENGINES  # engines that PolyServe can have; of each role, disaggregated
MOST = 4 * ENGINES
ENOUGH = Range(low=IN_TIME)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds[:SEEDS]:
        for load in LOADS:
            for fleet in (*POLYSERVE, co_chunk(setting)):
                yield supplied(fleet.cell(setting, seed, size.requests, share=load), fleet)


def supplied(cell: Cell, fleet: Fleet) -> Cell:
    """With all the engines there are; their number, where it is looked for, is a result."""
    return cell._replace(engines=f"prefill={SUPPLY},decode={SUPPLY}" if fleet.is_disaggregated else f"engines={SUPPLY}")


def rate_of(cell: Cell) -> float:
    return cell.load * optimum(cell.setting, ENGINES, False).requests_per_s


def measure(cell: Cell) -> dict[str, Any]:
    """engine_s: engine-seconds in service over the mean number of requests that arrive, between the times between which
    those arrive that are judged. in_time: share of these. PolyServe: engines in a tier; else the fewest that are
    enough, all the time."""
    rate = rate_of(cell)
    if cell.router == "polyserve":
        return serve_supplied(cell, rate)
    near = fewest(lambda number: is_served(cell, rate, number, ROUGH), ENGINES)
    engines = fewest(lambda number: is_served(cell, rate, number), near or MOST, 1)
    return {"engine_s": None if engines is None else engines / rate, "in_time": IN_TIME, "engines_used": engines}


def serve_supplied(cell: Cell, rate: float) -> dict[str, Any]:
    workload, window = requests_of(cell, rate), window_s(cell)
    whole, those = scenario(cell, workload), judged(cell, workload, window)
    run, service_s = begin(whole), []
    for time_s in window:
        run.scenario = dataclasses.replace(whole, until_s=time_s)
        # Up to the pause, not to the last event before it.
        engines = run.run().arrays.engines
        since_s = time_s - engines["totals"]["serving_since_s"]
        service_s.append(float((engines["totals"]["service_s"] + np.where(np.isnan(since_s), 0.0, since_s)).sum()))
    used_s, long_s = service_s[1] - service_s[0], window[1] - window[0]
    late = settled(run, those, window)[those]
    return {
        "engine_s": used_s / (rate * long_s),
        "in_time": float(1 - late.mean()) if len(late) else 1.0,
        "engines_used": used_s / long_s,
    }


def fewest(is_enough: Callable[[int], bool], first: int, step: int | None = None) -> int | None:
    """The smallest number that is enough, by bisection from a first guess in growing steps (None: large ones); None:
    `MOST` are not."""
    is_enough = functools.cache(is_enough)
    step = step or max(1, first // 4)
    if is_enough(first):
        too_few, enough = first - step, first
        while too_few > 0 and is_enough(too_few):
            too_few, enough, step = too_few - 2 * step, too_few, 2 * step
        too_few = max(0, too_few)
    else:
        too_few, enough = first, min(MOST, first + step)
        while not is_enough(enough):
            if enough >= MOST:
                return None
            too_few, enough, step = enough, min(MOST, enough + 2 * step), 2 * step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            too_few = middle
    return enough


def costs(rows: pd.DataFrame, fleet: Fleet, load: float) -> np.ndarray:
    return of_fleet(rows, fleet, "engine_s", load=load)


def picture(rows: pd.DataFrame, path: Path) -> None:
    families = list(dict.fromkeys(rows["family"]))
    figure, row = drawing.panels(
        families, "rate, share of optimum", "engine-seconds a request", size=(2.4, 2.6), share_y=False
    )
    for axes, family in zip(row, families, strict=True):
        here = rows[rows["family"] == family]
        for style, fleet in enumerate((*POLYSERVE, co_chunk(Setting(family, DEVICE)))):
            drawing.curve(axes, LOADS, [costs(here, fleet, load) for load in LOADS], fleet.name, style)
        axes.set_ylim(bottom=0)
    drawing.save(figure, row, path)


@claim("polyserve-fig8", cells=cells, measure=measure, families=FAMILIES, devices=(DEVICE,), picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    baseline = co_chunk(Setting(str(rows["family"].iloc[0]), str(rows["device"].iloc[0])))
    checks = []
    for fleet in POLYSERVE:
        for load in LOADS:
            chunked = costs(rows, baseline, load)
            less = (costs(rows, fleet, load) - chunked) / chunked
            checks.append(Check(f"{fleet.name} over CO-Chunk - 1, rate {load:g}", less, BELOW_0))
            shares = of_fleet(rows, fleet, "in_time", load=load)
            checks.append(Check(f"{fleet.name}, share in time, rate {load:g}", shares, ENOUGH))
    return checks
