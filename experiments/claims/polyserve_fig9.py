"""PolyServe, Figure 9: goodput per engine over the number of engines."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.fleets import DEVICE, POLYSERVE, SEEDS, Fleet, co_chunk, goodput, of_fleet

SIZES = (8, 16, 32, 64)
ABOVE = Range(low=1.0)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds[:SEEDS]:
        for engines in SIZES:
            for fleet in compared(setting):
                yield fleet.cell(setting, seed, size.requests, engines)


def compared(setting: Setting) -> tuple[Fleet, ...]:
    """PolyServe, and the best baseline of 20 engines (polyserve-fig6)."""
    return (*POLYSERVE, co_chunk(setting))


def per_engine(rows: pd.DataFrame, fleet: Fleet, engines: int) -> np.ndarray:
    """float64[seeds]: requests per second of an engine."""
    return of_fleet(of_size(rows, engines), fleet, "goodput_per_s") / engines


def of_size(rows: pd.DataFrame, engines: int) -> pd.DataFrame:
    counts = [sum(int(pair.split("=")[1]) for pair in text.split(",")) for text in rows["engines"]]
    return rows[np.array(counts) == engines]


def all_fleets(rows: pd.DataFrame) -> tuple[Fleet, ...]:
    return compared(Setting(str(rows["family"].iloc[0]), str(rows["device"].iloc[0])))


def picture(rows: pd.DataFrame, path: Path) -> None:
    family = rows["family"].iloc[0]
    figure, row = drawing.panels([family], "engines", "goodput per engine, requests/s", size=(8.4, 3.2))
    for style, fleet in enumerate(all_fleets(rows)):
        drawing.curve(row[0], SIZES, [per_engine(rows, fleet, engines) for engines in SIZES], fleet.name, style)
    row[0].set_xscale("log", base=2)
    row[0].set_xticks(SIZES, [str(size) for size in SIZES])
    row[0].set_ylim(bottom=0)
    drawing.save(figure, row, path)


@claim(
    "polyserve-fig9", cells=cells, measure=goodput, families=("uniform-4096-1024",), devices=(DEVICE,), picture=picture
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks, chunked = [], all_fleets(rows)[-1]
    for fleet in POLYSERVE:
        found = {engines: per_engine(rows, fleet, engines) for engines in SIZES}
        fewest, more, fewer, most = *SIZES[:2], *SIZES[-2:]
        first, last = found[more] / found[fewest] - 1, found[most] / found[fewer] - 1
        whole = f"{fleet.name}: {most} over {fewest} engines, - 1"
        ends = f"{fleet.name}: gain of {fewer} to {most} less gain of {fewest} to {more}"
        checks.append(Check(whole, found[most] / found[fewest] - 1, ABOVE_0))
        checks.append(Check(ends, last - first, BELOW_0))
        for engines in SIZES:
            ratio = found[engines] / per_engine(rows, chunked, engines)
            checks.append(Check(f"{fleet.name} over {chunked.name}, {engines} engines", ratio, ABOVE))
    return checks
