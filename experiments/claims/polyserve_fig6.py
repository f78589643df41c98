"""PolyServe, Figure 6: goodput of 20 engines against random, least-loaded and statically chunked ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.fleets import DEVICE, POLYSERVE, SEEDS, Fleet, fleets, goodput, in_time, of_fleet
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row

# Where its table is right (on mooncake-conversation it is not: polyserve-optimal), and runs are not the longest.
FAMILIES = ("uniform-4096-1024", "azure-conv")
ABOVE = Range(low=1.0)
EVEN = Range(high=0.1)  # between the tiers with most and least in time
PAPER = {"PD-PolyServe": 1.23, "CO-PolyServe": 1.18}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds[:SEEDS]:
        for fleet in fleets(setting):
            yield fleet.cell(setting, seed, size.requests)


def measure(cell: Cell) -> dict[str, Any]:
    """Goodput, and at that rate PolyServe's shares in time of each TPOT."""
    found = goodput(cell)
    rate, asked = found["goodput_per_s"], (cell.scheduler, cell.router) == ("polyserve", "polyserve")
    return {**found, "in_time": in_time(cell, rate) if asked and rate is not None else None}


def goodputs(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """float64[seeds] of each fleet, requests per second."""
    setting = Setting(str(rows["family"].iloc[0]), str(rows["device"].iloc[0]))
    return {fleet.name: of_fleet(rows, fleet, "goodput_per_s") for fleet in fleets(setting)}


def best_baseline(found: dict[str, np.ndarray], mode: str = "") -> str:
    """The one with the highest mean; mode: of those that begin so."""
    polyserve = [fleet.name for fleet in POLYSERVE]
    names = [name for name in found if name not in polyserve and name.startswith(mode)]
    return max(names, key=lambda name: np.nan_to_num(found[name]).mean())


def spread(rows: pd.DataFrame, fleet: Fleet) -> np.ndarray:
    """float64[seeds]: share in time of the best tier less that of the worst."""
    shares = of_fleet(rows, fleet, "in_time", as_numbers=False)
    tiers = [[value for name, value in one.items() if name != "all"] if one else [np.nan] for one in shares]
    return np.array([np.max(values) - np.min(values) for values in tiers])


def picture(rows: pd.DataFrame, path: Path) -> None:
    """A row of marks a trace: goodput of each fleet over the optimal one of co-located engines."""
    families = list(dict.fromkeys(rows["family"]))
    figure, panels = drawing.panels([""], "share of the optimal goodput of 20 co-located engines", "", size=(8.4, 3.6))
    axes = panels[0]
    for style, fleet in enumerate(fleets(Setting(families[0], DEVICE))):
        for place, family in enumerate(families):
            here = rows[rows["family"] == family]
            optimal = of_fleet(here, POLYSERVE[1], "optimal_per_s")
            interval = student_interval(goodputs(here)[fleet.name] / optimal)
            half = 0.0 if np.isnan(interval.low) else interval.half_width
            look = {**drawing.STYLES[style], "linestyle": "", "markerfacecolor": "white" if style > 1 else None}
            axes.errorbar(
                interval.mean, len(families) - 1 - place + 0.09 * (3 - style), xerr=half, markersize=6, capsize=2,
                label=fleet.name, **look,
            )  # fmt: skip
    axes.set_yticks(range(len(families)), families[::-1])
    axes.set_xlim(left=0)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    drawing.save(figure, panels, path)


def appendix(rows: pd.DataFrame, folder: Path) -> str:
    """Goodputs, and the means over traces that the paper prints."""
    del folder
    lines: list[str] = []
    over: dict[str, list[np.ndarray]] = {name: [] for name in PAPER}
    by_family = dict(list(rows.groupby("family", sort=False)))
    names = [fleet.name for fleet in fleets(Setting(next(iter(by_family)), DEVICE))]
    lines += ["**Goodput**, requests/s (means of seeds); bold: the best baseline.\n", *header("trace", *names)]
    for family, here in by_family.items():
        found = goodputs(here)
        best = best_baseline(found)
        for name, ratios in over.items():
            ratios.append(found[name] / found[best])
        means = {name: f"{value.mean():.1f}" for name, value in found.items()}
        lines.append(row(family, *(f"**{means[name]}**" if name == best else means[name] for name in names)))
    lines.append("")
    for name, ratios in over.items():
        interval = student_interval(np.mean(ratios, axis=0))
        lines.append(f"{name} over the best baseline, mean of the traces: {interval.text('.2f')} "
                     f"(the paper: {PAPER[name]}).\n")  # fmt: skip
    return "\n".join(lines)


@claim(
    "polyserve-fig6",
    cells=cells,
    measure=measure,
    families=FAMILIES,
    devices=(DEVICE,),
    picture=picture,
    appendix=appendix,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    found = goodputs(rows)
    checks = []
    for fleet in POLYSERVE:
        best = best_baseline(found)
        checks.append(Check(f"goodput, {fleet.name} over {best}", found[fleet.name] / found[best], ABOVE))
        checks.append(Check(f"in time, {fleet.name}: best less worst tier", spread(rows, fleet), EVEN))
    for fleet in POLYSERVE:
        best = best_baseline(found, fleet.name[:2])
        examines = "the best baseline of its own mode"
        checks.append(Check(f"goodput, {fleet.name} over {best}", found[fleet.name] / found[best], ABOVE, examines))
    return checks
