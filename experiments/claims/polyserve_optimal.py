"""PolyServe, section 5.2: goodput as a share of the optimal one, and disaggregated against co-located."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.fleets import DEVICE, POLYSERVE, SEEDS, goodput, of_fleet

FAMILIES = ("uniform-4096-1024", "uniform-512-512", "mooncake-conversation", "azure-conv")
SHARES = {"PD-PolyServe": Range(0.83, 1.02), "CO-PolyServe": Range(0.63, 0.83)}  # 92.5 % and 72.9 % in print
PD_OVER_CO = Range(0.926, 1.159)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds[:SEEDS]:
        for fleet in POLYSERVE:
            yield fleet.cell(setting, seed, size.requests)


def shares(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """float64[seeds] of each mode: goodput over the optimal goodput of that mode."""
    return {
        fleet.name: of_fleet(rows, fleet, "goodput_per_s") / of_fleet(rows, fleet, "optimal_per_s")
        for fleet in POLYSERVE
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    families = list(dict.fromkeys(rows["family"]))
    figure, row = drawing.panels([""], "", "share of the mode's optimal goodput", size=(6.8, 2.8))
    for style, fleet in enumerate(POLYSERVE):
        found = [shares(rows[rows["family"] == family])[fleet.name] for family in families]
        place, colour = (style - 0.5) * 0.36, ("#0072B2", "#E69F00")[style]
        drawing.bars(row[0], found, fleet.name, at=place, width=0.34, color=colour, edgecolor="black", linewidth=0.6)
    row[0].set_xticks(range(len(families)), families, fontsize=8)
    drawing.save(figure, row, path)


@claim("polyserve-optimal", cells=cells, measure=goodput, families=FAMILIES, devices=(DEVICE,), picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    found = shares(rows)
    both = [of_fleet(rows, fleet, "goodput_per_s") for fleet in POLYSERVE]
    return [
        *(Check(f"{name}, share of the optimal goodput", found[name], SHARES[name]) for name in found),
        Check("goodput, PD-PolyServe over CO-PolyServe", both[0] / both[1], PD_OVER_CO),
    ]
