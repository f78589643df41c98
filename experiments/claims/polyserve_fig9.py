"""PolyServe, Figure 9: goodput per engine over the number of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servegym.experiments.claims.harness import fleets as measuring
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import ABOVE_0, BELOW_0, Check, Range
from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.fleets import DEVICE, POLYSERVE, Fleet, fleets, goodput, of_fleet
from servegym.experiments.claims.harness.settings import Setting, Size

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (measuring,)
SIZES = (8, 16, 32, 64)
ABOVE = Range(low=1.0)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for engines in SIZES:
            for fleet in fleets(setting):
                yield fleet.cell(setting, seed, size.requests, engines)


def per_engine(rows: pd.DataFrame, fleet: Fleet, engines: int) -> np.ndarray:
    """float64[seeds]: requests per second of an engine."""
    return of_fleet(of_size(rows, engines), fleet, "goodput_per_s") / engines


def of_size(rows: pd.DataFrame, engines: int) -> pd.DataFrame:
    counts = [sum(int(pair.split("=")[1]) for pair in text.split(",")) for text in rows["engines"]]
    return rows[np.array(counts) == engines]


def all_fleets(rows: pd.DataFrame) -> tuple[Fleet, ...]:
    return fleets(Setting(str(rows["family"].iloc[0]), str(rows["device"].iloc[0])))


def best_baseline(rows: pd.DataFrame, engines: int) -> Fleet:
    """The one with the highest mean of these seeds."""
    baselines = [fleet for fleet in all_fleets(rows) if fleet not in POLYSERVE]
    return max(baselines, key=lambda fleet: np.nan_to_num(per_engine(rows, fleet, engines)).mean())


def picture(rows: pd.DataFrame, path: Path) -> None:
    from servegym.experiments.claims.harness import drawing

    family = rows["family"].iloc[0]
    figure, row = drawing.panels([family], "engines", "goodput per engine, requests/s", size=(8.4, 3.2))
    for style, fleet in enumerate(all_fleets(rows)):
        drawing.curve(row[0], SIZES, [per_engine(rows, fleet, engines) for engines in SIZES], fleet.name, style)
    row[0].set_xscale("log", base=2)
    row[0].set_xticks(SIZES, [str(size) for size in SIZES])
    row[0].set_ylim(bottom=0)
    drawing.save(figure, row, path)


@claim(
    "polyserve-fig9",
    figure="Figure 9",
    paper="From 8 to 64 engines, on uniform-4096-1024, PolyServe's goodput per engine rises until it saturates, and is "
    "above all baselines at every size.",
    hypothesis="8, 16, 32 and 64 engines, goodput as in polyserve-fig6. PD- and CO-PolyServe: goodput per engine with "
    "64 over that with 8, less 1, above 0; what the last doubling adds is below what the first adds; over the best "
    "baseline (highest mean of the same seeds) above 1 at each size.",
    refuted_by="An interval wholly on the other side of one of these limits.",
    cells=cells,
    measure=goodput,
    families=("uniform-4096-1024",),
    devices=(DEVICE,),
    picture=picture,
    caption="Goodput per engine; bars are 95 % intervals over seeds.",
    reading="Both are above the best baseline at each size but the smallest of PD-PolyServe, which is undecided "
    "(1.03), by 5 to 10 and 15 to 17 %. That goodput per engine rises with the size is not seen: 6 % ± 8 % "
    "from 8 to 64 engines for PD, 0 ± 5 % for CO. Eight engines are cut into four tiers here too, but engines"
    " of tighter tiers take requests of looser ones, so that little is left of the fragmentation of which the"
    " paper speaks.",
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = []
    for fleet in POLYSERVE:
        found = {engines: per_engine(rows, fleet, engines) for engines in SIZES}
        first, last = found[16] / found[8] - 1, found[64] / found[32] - 1
        checks.append(Check(f"{fleet.name}: 64 over 8 engines, - 1", found[64] / found[8] - 1, ABOVE_0))
        checks.append(Check(f"{fleet.name}: gain of 32 to 64 less gain of 8 to 16", last - first, BELOW_0))
        for engines in SIZES:
            best = best_baseline(rows, engines)
            ratio = found[engines] / per_engine(rows, best, engines)
            checks.append(Check(f"{fleet.name} over {best.name}, {engines} engines", ratio, ABOVE))
    return checks
