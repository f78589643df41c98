"""Claims about a router and the schedulers behind it: local schedulers x routers x loads on several engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.claims.harness import drawing
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.checks import ABOVE_0, Check, Range
from experiments.claims.harness.measures import by_priority
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import Setting, Size, slo_recipe
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row
from servegym.simulator.runs.results import Result

# Of ProServe's Figure 10. Behind prefill engines all of them see prefills only.
BASELINES = ("vllm-fcfs", "weighted-vtc", "sarathi-fcfs", "sarathi-priority", "fairbatching")
GOROUTING, MIN_LOAD, ROUND_ROBIN = "gorouting", "min-load", "round-robin"
ROUTERS = (ROUND_ROBIN, MIN_LOAD, GOROUTING)
CLIENTS = "clients=26"  # only weighted-vtc looks at them
ENGINES = 8
LIGHT, HIGH = 0.3, (1.0, 1.4)
WITHIN_1_PERCENT = Range(low=-1.0)
IN_TIME = Range(low=0.99)
LEAST_LOADED = f"{GOROUTING}:fallback=least-loaded"


def serve_first_tokens(cell: Cell) -> dict[str, Any]:
    """Figures, by priority too, and of the first tokens alone."""
    result = simulation(cell).run()
    return {**figures(result), **by_priority(result), **first_tokens(result)}


def first_tokens(result: Result) -> dict[str, float | None]:
    """TDG ratio where only first tokens count, and the share of decode tokens in time of the requests whose first token
    was in time (None where there are none)."""
    requests = result.requests
    first = requests["ttft_s"] < requests["ttft_slo_s"]
    decodes = (requests["output_tokens"] - 1)[first].sum()
    in_time = (requests["on_time_tokens"] - 1)[first].sum()
    return {
        "first_token_tdg_ratio": float(requests["weight"][first].sum() / requests["weight"].sum()),
        "decodes_in_time_after_early_first": float(in_time / decodes) if decodes else None,
    }


class Variant(NamedTuple):
    """GoRouting with other settings, or all of it where the device takes what the estimator says."""

    router: str
    exact_estimator: bool = False

    @property
    def reference(self) -> Variant:
        """What it is compared with."""
        return self._replace(router=MIN_LOAD)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Local schedulers under routers.

    slide: SlideBatching as it is set here. orders: of local schedulers, the `local_order` in which GoRouting's
    ESTIMATEGAIN follows them; none: its default. metric, column: the TDG ratio that judges, in words and in rows.
    engines: of a setting, as in `Cell`. variants: what is examined at high load, in words.
    """

    slide: str
    metric: str
    column: str
    engines: Callable[[Setting], str]
    variants: dict[str, Variant]
    orders: dict[str, str] = dataclasses.field(default_factory=dict)

    def router(self, router: str, scheduler: str) -> str:
        """A router in front of a local scheduler."""
        order = self.orders.get(scheduler)
        if name_of(router) != GOROUTING or order is None or "local_order=" in router:
            return router
        return f"{router}{',' if ':' in router else ':'}local_order={order}"

    @property
    def schedulers(self) -> tuple[str, ...]:
        return (self.slide, *BASELINES)

    def cells(self, setting: Setting, size: Size) -> Iterator[Cell]:
        requests, engines = size.requests_of(setting, 3), self.engines(setting)
        slo = f"{slo_recipe(setting.device)},{CLIENTS}"
        examined = [one for variant in self.variants.values() for one in (variant, variant.reference)]
        for seed in size.seeds:
            for scheduler in self.schedulers:
                light = Cell(*setting, scheduler, LIGHT, seed, requests, slo=slo, engines=engines)
                yield light._replace(router=MIN_LOAD)
                yield light._replace(router=self.router(GOROUTING, scheduler))
                for load in HIGH:
                    for variant in (*map(Variant, ROUTERS), *examined):
                        following = variant._replace(router=self.router(variant.router, scheduler))
                        yield light._replace(load=load, **following._asdict())

    def judge(self, rows: pd.DataFrame) -> list[Check]:
        main, reference = Variant(GOROUTING), Variant(MIN_LOAD)
        plain = rows[~rows["exact_estimator"]]
        return [
            *self.leads(rows, main, reference, ""),
            *self.light_checks(plain),
            *self.scheduler_checks(plain),
            *(
                check
                for load in HIGH
                for check in self.leads(rows, main, reference, f"load {load:g} alone", loads=(load,))
            ),
            *(
                check
                for examines, variant in self.variants.items()
                for check in self.leads(rows, variant, variant.reference, examines)
            ),
            *self.leads(rows, main, Variant(ROUND_ROBIN), "against round-robin"),
            *self.leads(rows, main, reference, "SLO attainment (TTFT and mean TPOT)", column="slo_attainment"),
        ]

    def leads(
        self,
        rows: pd.DataFrame,
        one: Variant,
        other: Variant,
        examines: str,
        *,
        loads: tuple[float, ...] = HIGH,
        column: str = "",
    ) -> list[Check]:
        """One router less another, under each local scheduler."""
        where = "load " + " and ".join(f"{load:g}" for load in loads)

        def at(variant: Variant, scheduler: str) -> np.ndarray:
            return self.high(rows, scheduler, variant, loads, column or self.column)

        return [
            Check(
                f"{name_of(scheduler)}: {name_of(one.router)} - {other.router}, {where}",
                at(one, scheduler) - at(other, scheduler),
                ABOVE_0,
                examines,
            )
            for scheduler in self.schedulers
        ]

    def high(
        self, rows: pd.DataFrame, scheduler: str, variant: Variant, loads: tuple[float, ...] = HIGH, column: str = ""
    ) -> np.ndarray:
        """float64[seeds]: mean of the high loads."""
        where = {**variant._asdict(), "scheduler": scheduler, "router": self.router(variant.router, scheduler)}
        return np.mean([values(rows, column or self.column, load=load, **where) for load in loads], axis=0)

    def light_checks(self, plain: pd.DataFrame) -> list[Check]:
        checks = []
        for scheduler in self.schedulers:
            ours, other = (
                values(plain, self.column, load=LIGHT, scheduler=scheduler, router=self.router(router, scheduler))
                for router in (GOROUTING, MIN_LOAD)
            )
            over = 100 * (ours - other) / other.mean()
            name = f"{name_of(scheduler)}: % of {GOROUTING} over {MIN_LOAD}, load {LIGHT:g}"
            checks.append(Check(name, over, WITHIN_1_PERCENT))
        return checks

    def scheduler_checks(self, plain: pd.DataFrame) -> list[Check]:
        """What SlideBatching adds to a baseline less what GoRouting adds to it, both from Min-Load on."""
        slide = self.high(plain, self.slide, Variant(MIN_LOAD))
        return [
            Check(
                f"SlideBatching + {MIN_LOAD} less {baseline} + {GOROUTING}",
                slide - self.high(plain, baseline, Variant(GOROUTING)),
                ABOVE_0,
            )
            for baseline in BASELINES
        ]

    def picture(self, rows: pd.DataFrame, path: Path) -> None:
        """At high loads: what the scheduler gives, and what the router adds. Of the first device."""
        here = rows[(rows["device"] == rows["device"].iloc[0]) & ~rows["exact_estimator"]]
        families = list(here["family"].unique())
        figure, grid = drawing.panel_rows(
            families, f"{self.metric}, share", [f"load {load:g}" for load in HIGH], size=(2.7, 1.9)
        )
        places = np.arange(len(self.schedulers))[::-1]
        looks: dict[str, dict[str, Any]] = {
            ROUND_ROBIN: {"marker": "x", "color": "#777777", "markeredgewidth": 1.5},
            MIN_LOAD: {"marker": "o", "color": "black", "markerfacecolor": "white", "zorder": 3},
            GOROUTING: {"marker": "D", "color": "#0072B2"},
        }
        for load, panels in zip(HIGH, grid, strict=True):
            for axes, family in zip(panels, families, strict=True):
                at = here[(here["family"] == family) & (here["load"] == load)]
                for router, look in looks.items():
                    means = [
                        values(at, self.column, scheduler=scheduler, router=self.router(router, scheduler)).mean()
                        for scheduler in self.schedulers
                    ]
                    axes.plot(means, places, linestyle="", markersize=5.5, label=router, **look)
                axes.set_xlim(-0.03, 1.03)
                axes.grid(axis="x", color="0.9", linewidth=0.8)
                axes.set_ylim(-0.6, len(places) - 0.4)
            panels[0].set_yticks(places, [name_of(one) for one in self.schedulers])  # the others share them
        drawing.save(figure, grid[0], path)

    def appendix(self, rows: pd.DataFrame, folder: Path) -> str:
        """Miss_TDG_Ratio = 1 - TDG ratio under Min-Load and under GoRouting."""
        del folder
        plain = rows[~rows["exact_estimator"]]
        lines = [
            f"**Miss_TDG_Ratio** (1 - {self.metric}), {MIN_LOAD} / {GOROUTING}. Bold: less with {GOROUTING}, italic: "
            "more, by more than the interval of the difference.\n"
        ]
        for load in (LIGHT, *HIGH):
            lines += header(f"load {load:g}", "engines", *(name_of(scheduler) for scheduler in self.schedulers))
            for (family, device), of_setting in plain[plain["load"] == load].groupby(["family", "device"], sort=False):
                engines = of_setting["engines"].iloc[0].replace(",", ", ").replace("=", " ")
                missed = (self.miss(of_setting, scheduler) for scheduler in self.schedulers)
                lines.append(row(f"{family} on {device}", engines, *missed))
            lines.append("")
        return "\n".join(lines)

    def miss(self, rows: pd.DataFrame, scheduler: str) -> str:
        other, ours = (
            np.maximum(1 - values(rows, self.column, scheduler=scheduler, router=router), 0)  # summing rounds
            for router in (MIN_LOAD, self.router(GOROUTING, scheduler))
        )
        difference = student_interval(ours - other)
        mark = "**" if difference.high < 0 else "*" if difference.low > 0 else ""
        return f"{other.mean():.3f} / {mark}{ours.mean():.3f}{mark}"


def name_of(text: str) -> str:
    """A policy without its settings."""
    return text.partition(":")[0]
