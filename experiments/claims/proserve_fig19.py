"""ProServe, Figure 19: an industrial day on 32 engines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Check, claim, drawing, series, values
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.clusters import (
    BASELINES,
    CLIENTS,
    GOROUTING,
    LEAST_LOADED,
    MIN_LOAD,
    ROUND_ROBIN,
    WITHIN_1_PERCENT,
    name_of,
)
from experiments.claims.harness.measures import by_priority
from experiments.claims.harness.settings import FULL, Setting, Size, saturation_per_s, slo_recipe
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row

DEVICE = "ascend910b-qwen3-32b-tp4"
ENGINES = 32
DAY_S = 720.0  # a full size's day: 120 times as fast as one; shorter in a smaller size
BINS = 48  # half-hours
QUIET, BUSY = 0.45, 0.7  # mean loads; the higher peak of a day is 2.25 times its mean: 1.0 and 1.6
SLIDE = "slide-batching"
OURS = (SLIDE, GOROUTING)
OTHERS = tuple(
    (scheduler, router)
    for scheduler in (SLIDE, *BASELINES)
    for router in (MIN_LOAD, GOROUTING)
    if (scheduler, router) != OURS
)
OTHER_ROUTERS = {"round-robin": ROUND_ROBIN, "GoRouting, fallback to the least loaded": LEAST_LOADED}
METRICS = {"TDG ratio": "tdg_ratio", "SLO attainment": "slo_attainment"}


def day_s(size: Size) -> float:
    return DAY_S * size.requests / FULL.requests


def saturation(setting: Setting) -> float:
    """Requests per second at load 1: of 32 engines that are loaded alike (served together they reach 2 % less)."""
    return ENGINES * saturation_per_s(setting)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    # Recipe industrial has the same SLOs and priorities, and no clients, which weighted-vtc needs.
    slo, arrivals = f"{slo_recipe(setting.device)},{CLIENTS}", f"industrial-day:duration_s={day_s(size)!r}"
    for seed in size.seeds:
        for load in (QUIET, BUSY):
            requests = round(load * saturation(setting) * day_s(size))
            ours = Cell(
                *setting, SLIDE, load, seed, requests, arrivals=arrivals, slo=slo, engines=f"engines={ENGINES}",
                router=GOROUTING,
            )  # fmt: skip
            yield ours
            for scheduler, router in OTHERS:
                yield ours._replace(scheduler=scheduler, router=router)
        for router in OTHER_ROUTERS.values():
            yield ours._replace(router=router)
        for router in (MIN_LOAD, GOROUTING):
            yield ours._replace(router=router, exact_estimator=True)


def serve_day(cell: Cell) -> dict[str, Any]:
    """Figures, by priority too, and by half-hour of arrival: requests, gain and ideal gain."""
    result = simulation(cell).run()
    requests = result.requests
    end_s = float(cell.arrivals.rpartition("=")[2])
    # Of as many arrivals as a day has on average, the last may come a moment after its end.
    half_hour = np.minimum(BINS * requests["arrival_s"].to_numpy() / end_s, BINS - 1).astype("i8")

    def by_half_hour(weights: pd.Series | None = None) -> list[float]:
        return np.bincount(half_hour, weights, minlength=BINS).tolist()

    return {
        **figures(result),
        **by_priority(result),
        "requests_by_half_hour": by_half_hour(),
        "gain_by_half_hour": by_half_hour(requests["gain"]),
        "ideal_by_half_hour": by_half_hour(requests["ideal_gain"]),
    }


def of(rows: pd.DataFrame, column: str, load: float, candidate: tuple[str, str], exact: bool = False) -> np.ndarray:
    """float64[seeds]: a column of a scheduler under a router."""
    scheduler, router = candidate
    return values(rows, column, load=load, scheduler=scheduler, router=router, exact_estimator=exact)


def checks_of(rows: pd.DataFrame, name: str, column: str, examines: str = "") -> list[Check]:
    """Ours against the best of others in each seed, which favours them."""
    ours = {load: of(rows, column, load, OURS) for load in (QUIET, BUSY)}
    best = np.max([of(rows, column, QUIET, other) for other in OTHERS], axis=0)
    baselines = [other for other in OTHERS if other[0] != SLIDE]
    best_baseline = np.max([of(rows, column, BUSY, other) for other in baselines], axis=0)
    return [
        Check(
            f"{name}: % over the best of the others, mean load {QUIET:g}",
            100 * (ours[QUIET] - best) / best,
            WITHIN_1_PERCENT,
            examines,
        ),
        Check(
            f"{name}: lead over the best baseline and router, mean load {BUSY:g}",
            ours[BUSY] - best_baseline,
            ABOVE_0,
            examines,
        ),
        Check(
            f"{name}: lead over SlideBatching + {MIN_LOAD}, mean load {BUSY:g}",
            ours[BUSY] - of(rows, column, BUSY, (SLIDE, MIN_LOAD)),
            ABOVE_0,
            examines,
        ),
    ]


def examined_checks(rows: pd.DataFrame) -> list[Check]:
    checks = checks_of(
        rows, "attainment by deadlines", "deadline_attainment", "the first and last token's deadlines, not mean TPOT"
    )
    under_min_load = of(rows, "tdg_ratio", BUSY, (SLIDE, MIN_LOAD))
    for examines, router in OTHER_ROUTERS.items():
        other = of(rows, "tdg_ratio", BUSY, (SLIDE, router))
        name = f"TDG ratio: SlideBatching with it less with {MIN_LOAD}, mean load {BUSY:g}"
        checks.append(Check(name, other - under_min_load, ABOVE_0, examines))
    exact = [of(rows, "tdg_ratio", BUSY, (SLIDE, router), True) for router in (GOROUTING, MIN_LOAD)]
    name = f"TDG ratio: SlideBatching, {GOROUTING} - {MIN_LOAD}, mean load {BUSY:g}"
    checks.append(Check(name, exact[0] - exact[1], ABOVE_0, "the device takes what the estimator says"))
    checks += [
        Check(
            f"TDG ratio: {scheduler}, {GOROUTING} - {MIN_LOAD}, mean load {BUSY:g}",
            of(rows, "tdg_ratio", BUSY, (scheduler, GOROUTING)) - of(rows, "tdg_ratio", BUSY, (scheduler, MIN_LOAD)),
            ABOVE_0,
            "what GoRouting adds to baselines",
        )
        for scheduler in BASELINES
    ]
    return checks


def picture(rows: pd.DataFrame, path: Path) -> None:
    plain = rows[~rows["exact_estimator"]]
    titles = ["offered load", f"TDG ratio, mean load {BUSY:g}"]
    figure, (offered, gained) = drawing.panels(titles, "hour of the day", "", size=(4.6, 2.7), share_y=False)
    hours = 24 * (np.arange(BINS) + 0.5) / BINS

    def summed(name: str, load: float, candidate: tuple[str, str]) -> np.ndarray:
        of_load = plain[plain["load"] == load]
        return np.sum(series(of_load, f"{name}_by_half_hour", scheduler=candidate[0], router=candidate[1]), axis=0)

    for load in (QUIET, BUSY):
        arrived = summed("requests", load, OURS)
        rate = BINS * load * arrived / arrived.sum()
        dashes = "-" if load == BUSY else "--"
        offered.plot(hours, rate, color="black", linewidth=1.4, linestyle=dashes, label=f"mean load {load:g}")
    offered.legend(loc="upper right", frameon=False, fontsize=8)
    offered.axhline(1, color="0.6", linewidth=0.9)
    offered.set_ylim(0, 1.8)
    offered.set_ylabel("rate / saturation", fontsize=9)
    for style, candidate in enumerate([OURS, *((scheduler, MIN_LOAD) for scheduler in (SLIDE, *BASELINES))]):
        ratio = summed("gain", BUSY, candidate) / np.maximum(summed("ideal", BUSY, candidate), 1e-9)
        look = {**drawing.STYLES[style], "marker": None, "linewidth": 1.5}
        gained.plot(hours, ratio, label=" + ".join(candidate) if candidate[0] == SLIDE else candidate[0], **look)
    gained.set_ylim(0, 1.03)
    gained.set_ylabel("share", fontsize=9)
    for axes in (offered, gained):
        axes.set_xlim(0, 24)
        axes.set_xticks(range(0, 25, 4))
    drawing.save(figure, [gained], path)


def appendix(rows: pd.DataFrame, folder: Path) -> str:
    """All candidates."""
    del folder
    plain = rows[~rows["exact_estimator"]]
    columns = {**METRICS, "attainment by deadlines": "deadline_attainment"}
    lines = header(
        "scheduler + router",
        *(f"{name}, mean load {load:g}" for load in (QUIET, BUSY) for name in columns),
        f"Miss_TDG_Ratio, mean load {BUSY:g}",
    )
    for candidate in (OURS, *OTHERS):
        found = [
            student_interval(of(plain, column, load, candidate))
            for load in (QUIET, BUSY)
            for column in columns.values()
        ]
        intervals = [interval.text(".4f", ".2g") for interval in found]
        miss = 1 - of(plain, "tdg_ratio", BUSY, candidate).mean()
        lines.append(row(" + ".join(map(name_of, candidate)), *intervals, f"{miss:.4f}"))
    return "\n".join(lines) + "\n"


@claim(
    "proserve-fig19",
    cells=cells,
    measure=serve_day,
    picture=picture,
    families=("azure-conv",),
    devices=(DEVICE,),
    appendix=appendix,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = [check for name, column in METRICS.items() for check in checks_of(rows, name, column)]
    return checks + examined_checks(rows)
