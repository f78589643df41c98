"""PolyServe, Figure 8: engine-seconds a request takes, where engines can be had."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.experiments.claims.harness import fleets as measuring
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import BELOW_0, Check, Range
from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.fleets import (
    DEVICE,
    ENGINES,
    FAMILIES,
    IN_TIME,
    JUDGED,
    POLYSERVE,
    Fleet,
    co_chunk,
    duration_s,
    is_served,
    judged,
    of_fleet,
    optimum,
    scenario,
)
from servegym.experiments.claims.harness.goodput import arrivals
from servegym.experiments.claims.harness.served import begin
from servegym.experiments.claims.harness.settings import Setting, Size
from servegym.experiments.claims.harness.violations import violated
from servegym.experiments.deployments import Engines

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (measuring,)
LOADS = (0.2, 0.5, 0.8)  # rates, as shares of the optimal goodput of 20 co-located engines
SUPPLY = 2 * ENGINES  # engines that PolyServe can have; of each role, disaggregated
MOST = 4 * ENGINES
ENOUGH = Range(low=IN_TIME)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for load in LOADS:
            for fleet in (*POLYSERVE, co_chunk(setting)):
                yield supplied(fleet.cell(setting, seed, size.requests, share=load), fleet)


def supplied(cell: Cell, fleet: Fleet) -> Cell:
    """With all the engines there are; their number, where it is looked for, is a result."""
    return cell._replace(engines=f"prefill={SUPPLY},decode={SUPPLY}" if fleet.is_disaggregated else f"engines={SUPPLY}")


def rate_of(cell: Cell) -> float:
    return cell.load * optimum(cell.setting, ENGINES, False).requests_per_s


def measure(cell: Cell) -> dict[str, Any]:
    """engine_s: engine-seconds in service over the requests, between the time from which requests are judged and that
    up to which they are. in_time: share of those requests. PolyServe: engines in a tier; else the fewest that are
    enough, all the time."""
    rate = rate_of(cell)
    if cell.router == "polyserve":
        return serve_supplied(cell, rate)
    engines = fewest(lambda number: is_served(cell, rate, Engines(engines=number)), ENGINES)
    return {"engine_s": None if engines is None else engines / rate, "in_time": IN_TIME, "engines_used": engines}


def serve_supplied(cell: Cell, rate: float) -> dict[str, Any]:
    workload = arrivals(cell.setting, cell.seed, cell.slo, rate, duration_s(cell))
    end_s = float(workload.table["arrival_s"][-1])
    whole, those = scenario(cell, workload), judged(cell, workload, end_s)
    run, service_s = begin(whole), []
    for time_s in (*(share * end_s for share in JUDGED), end_s):
        run.scenario = dataclasses.replace(whole, until_s=time_s)
        # Up to the pause, not to the last event before it.
        engines = run.run().arrays.engines
        since_s = time_s - engines["serving_since_s"]
        service_s.append(float((engines["service_s"] + np.where(np.isnan(since_s), 0.0, since_s)).sum()))
    used_s = service_s[1] - service_s[0]
    late = violated(run.arrays, workload, end_s)[those]
    return {
        "engine_s": used_s / max(1, int(those.sum())),
        "in_time": float(1 - late.mean()) if len(late) else 1.0,
        "engines_used": used_s / ((JUDGED[1] - JUDGED[0]) * end_s),
    }


def fewest(is_enough: Callable[[int], bool], first: int) -> int | None:
    """The smallest number that is enough, by bisection around a first guess; None: `MOST` are not."""
    is_enough = functools.cache(is_enough)
    too_few, enough = 0, first
    while not is_enough(enough):
        if enough >= MOST:
            return None
        too_few, enough = enough, min(MOST, round(enough * 1.3) + 1)
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
    from servegym.experiments.claims.harness import drawing

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


@claim(
    "polyserve-fig8",
    figure="Figure 8",
    paper="With as many engines as needed, PolyServe takes fewer engine-seconds a request than the best CO-Chunk with "
    "just enough engines, at every rate, all with at least 90 % of the requests in time.",
    hypothesis="Rates 0.2, 0.5 and 0.8 of the optimal goodput of 20 co-located engines, arrivals as in polyserve-fig6. "
    "PolyServe's engines are charged while they are in a tier, of 40 (of each role); CO-Chunk, with the static budget "
    "best for the trace, the fewest with which 90 % are in time, all the time. PD- and CO-PolyServe less CO-Chunk: "
    "below 0, relative to CO-Chunk; at least 0.9 of the requests in time.",
    refuted_by="An interval of a difference wholly above 0, or of a share in time wholly below 0.9.",
    cells=cells,
    measure=measure,
    families=FAMILIES,
    devices=(DEVICE,),
    picture=picture,
    caption="Engine-seconds a request; rates are shares of the optimal goodput of 20 co-located engines, bars are 95 % "
    "intervals over seeds.",
    reading="PolyServe is cheaper by half on mooncake-conversation and not elsewhere: there it costs up to a third "
    "more at a rate of 0.2 of the optimal goodput, and is within a few per cent at 0.5 and 0.8. The number of"
    " engines of CO-Chunk is found by hindsight for each rate, so that 90 % are just in time, while "
    "PolyServe's engines, scaled as requests come, keep 94 to 100 % in time: part of the cost buys what is "
    "not asked for. At low rates each tier has an engine that is not full. On mooncake-conversation 87 to 92 "
    "% are in time.",
)
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
