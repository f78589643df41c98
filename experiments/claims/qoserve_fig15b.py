"""QoServe, Figure 15b: engines that two interactive classes need, shared or in silos with PolyServe's chunking."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import BELOW_0, Cell, Check, Range, claim, drawing, values
from experiments.claims.harness.goodput import arrivals, serves
from experiments.claims.harness.settings import Setting, Size, profile, saturation_per_s
from experiments.without_steps import scheduler_without_steps
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload

DEVICE = "a100-llama3-8b"
RATE_PER_S, DURATION_S = 50.0, 1200.0  # the latter in full size
TBT_S = (0.05, 0.1)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the class with the tighter TBT
SHARED, SILOS = "round-robin", "silo"
# (shared by all, in silos): PolyServe's chunking is that of Medha, a chunk as long as the TBT allows.
PAIRS = {
    "": ("qoserve", "medha"),
    "QoServe in silos too: what sharing alone saves": ("qoserve", "qoserve"),
    "no margin for the predictor's error": ("qoserve:safety=1", "medha:safety=1"),
    "chunk sizes of the public code": ("qoserve:dynamic_chunking=code,relegation=code", "medha"),
}
NEVER_MORE = Range(high=0.5)  # engines
CLASS_STREAM = 15  # of random numbers that say the class of a request, beside the seed


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    load = RATE_PER_S / saturation_per_s(setting)
    for seed in size.seeds:
        for shared, silos in PAIRS.values():
            yield Cell(*setting, shared, load, seed, size.requests, router=SHARED)
            yield Cell(*setting, silos, load, seed, size.requests, router=SILOS)


def measure(cell: Cell) -> dict[str, Any]:
    """The fewest engines that serve each mix: at most 1 % of each class violate their SLOs."""
    return {column(share): fewest_engines(cell, mix(cell, share)) for share in SHARES}


def mix(cell: Cell, share: float) -> Workload:
    """The requests of a seed, all interactive (TTFT 6 s); a share of them with the tighter TBT."""
    workload = arrivals(cell.setting, cell.seed, cell.slo, RATE_PER_S, DURATION_S * cell.requests / 1000)
    drawn = np.random.default_rng([cell.seed, CLASS_STREAM]).random(len(workload))
    return workload.replace(ttlt_slo_s=np.inf, tpot_slo_s=np.where(drawn < share, *TBT_S))


def fewest_engines(cell: Cell, workload: Workload) -> int:
    """Engines that all requests share in turn; or of silos, each class apart, as they have nothing to do with each
    other."""
    tpot_slo_s = workload.table["tpot_slo_s"]
    classes = np.array([tpot_slo_s == tbt_s for tbt_s in TBT_S])
    if cell.router == SHARED:
        return fewest(functools.partial(is_served, cell, workload, classes), guess(cell, workload))
    total = 0
    for mine in classes[classes.any(axis=1)]:
        silo = Workload(workload.table[mine], workload.name)
        total += fewest(functools.partial(is_served, cell, silo, np.ones((1, len(silo)), bool)), guess(cell, silo))
    return total


def is_served(cell: Cell, workload: Workload, classes: np.ndarray, engines: int) -> bool:
    """classes: bool[classes, requests]."""
    served = profile(cell.device)
    whole = Scenario(
        workload, served.deployment(engines), scheduler_without_steps(cell.scheduler), front_end=served.front_end
    )  # fmt: skip
    return serves(whole, classes)


def guess(cell: Cell, workload: Workload) -> int:
    """Engines that the requests, at their mean rate, saturate."""
    rate_per_s = len(workload) / float(workload.table["arrival_s"][-1])
    return max(1, round(rate_per_s / saturation_per_s(cell.setting)))


def fewest(is_enough: Callable[[int], bool], first: int) -> int:
    """The smallest number that is enough, from a first guess on by doubled steps and then by bisection."""
    too_few, enough, step, tried = 0, None, 1, first
    while enough is None or enough - too_few > 1:
        if is_enough(tried):
            enough = tried
        else:
            too_few = tried
        if enough is None:
            tried, step = too_few + step, 2 * step
        elif too_few == 0 and enough > 1:
            tried, step = max(1, enough - step), 2 * step
        else:
            tried = (too_few + enough) // 2
    return enough


def column(share: float) -> str:
    return f"engines at {share:.0%}"


def engines_of(rows: pd.DataFrame, pair: tuple[str, str], share: float) -> tuple[np.ndarray, np.ndarray]:
    """float64[seeds] each: engines shared, and in silos."""
    shared, silos = pair
    return (
        values(rows, column(share), scheduler=shared, router=SHARED),
        values(rows, column(share), scheduler=silos, router=SILOS),
    )


def picture(rows: pd.DataFrame, path: Path) -> None:
    figure, row = drawing.panels([f"{RATE_PER_S:g} requests/s"], "share of requests with TBT 50 ms (others: 100 ms)",
                                 "engines needed", size=(4.6, 2.7))  # fmt: skip
    of_mixes = [engines_of(rows, PAIRS[""], share) for share in SHARES]
    for style, name in enumerate(("QoServe, shared", "PolyServe, silos")):
        drawing.curve(row[0], SHARES, [pair[style] for pair in of_mixes], name, style)
    row[0].set_ylim(bottom=0)
    row[0].set_xticks(SHARES)
    drawing.save(figure, row, path)


@claim("qoserve-fig15b", cells=cells, measure=measure, families=("qoserve-conv",), devices=(DEVICE,), picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = []
    for examines, pair in PAIRS.items():
        fewer = [np.subtract(*engines_of(rows, pair, share)) for share in SHARES]
        checks += [
            Check(f"shared - silos, {share:.0%} with 50 ms", saved, NEVER_MORE, examines)
            for share, saved in zip(SHARES, fewer, strict=True)
        ]
        checks.append(Check("shared - silos, mean of the mixes", np.mean(fewer, axis=0), BELOW_0, examines))
    return checks
