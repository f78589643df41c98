"""Fleets of PolyServe's device under several variants of policies: runs on two panels, paired by seed, and a page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from experiments.claims.harness.fleets import DEVICE, optimum, slo_of
from experiments.claims.harness.settings import Setting, seed_of
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

DURATION_S = 40.0  # of arrivals
VIOLATIONS, TDG, COST = "violations", "tdg_ratio", "engine_s"
COLUMNS = {"violations": VIOLATIONS, "TDG ratio": TDG, "engine-seconds a request": COST}


class Panel(NamedTuple):
    """Traces and the first seed that they are drawn with."""

    title: str
    families: tuple[str, ...]
    first_seed: int


PANELS = (
    Panel("Training traces", ("uniform-4096-1024", "azure-conv"), 71_100),
    Panel("Held-out traces", ("uniform-512-512", "azure-code"), 1_071_000),
)


def scenario(family: str, engines: int, share: float, seed: int) -> Scenario:
    """Co-located engines under PolyServe's policies, at a share of their optimal goodput."""
    rate_per_s = share * optimum(Setting(family, DEVICE), engines, False).requests_per_s
    return ServingSpec().with_overrides({
        "device": DEVICE, "engines": engines, "trace": family, "slo": slo_of(DEVICE), "keep_slos": True,
        "seed": seed_of(family, seed), "rate_per_s": rate_per_s, "requests": int(DURATION_S * rate_per_s),
        "scheduler": "polyserve", "router": "polyserve", "scaler": "polyserve",
    }).build()  # fmt: skip


def served(scenarios: list[Scenario]) -> dict[str, float]:
    """The figures of `COLUMNS` of fleets together, that serve apart."""
    found: list[dict[str, Any]] = [dict(figures(Simulation(one).run())) for one in scenarios]
    requests = np.array([len(one.workload) for one in scenarios], dtype=float)
    means = {name: float(np.average([one[name] for one in found], weights=requests)) for name in (VIOLATIONS, TDG)}
    return means | {COST: float(sum(one["cost_engine_s"] for one in found) / requests.sum())}


def runs(
    panel: Panel, variants: Mapping[str, Any], shares: tuple[float, ...], seeds: int,
    serve: Callable[[str, Any, float, int], dict[str, float]],
) -> pd.DataFrame:  # fmt: skip
    """A row a run: family, variant, share, seed, and the figures. serve: (family, variant, share, seed) -> figures."""
    import pandas as pd

    first = range(panel.first_seed, panel.first_seed + seeds)
    cells = list(itertools.product(panel.families, shares, first, variants))
    return pd.DataFrame([
        {"family": family, "variant": name, "share": share, "seed": seed}
        | serve(family, variants[name], share, seed)
        for family, share, seed, name in track(cells, panel.title, console=Console(stderr=True))
    ])  # fmt: skip


def more_than(rows: pd.DataFrame, name: str, base: str, column: str, share: float, relative: bool = False) -> Interval:
    """A figure of a variant less the base's, over the seeds' means of families; relative: over the base's, each."""
    of = rows[rows["share"] == share].pivot_table(index=["family", "seed"], columns="variant", values=column)
    less = of[name] / of[base] - 1 if relative else of[name] - of[base]
    return student_interval(less.groupby("seed").mean().to_numpy("f8"))


def tables(rows: pd.DataFrame, variants: Mapping[str, Any], shares: tuple[float, ...]) -> list[str]:
    """For each trace and share of the optimal goodput: a row a variant, means over seeds."""
    lines = header("trace", "rate, share of optimum", "", *COLUMNS)
    for family, share, name in itertools.product(dict.fromkeys(rows["family"]), shares, variants):
        here = rows[(rows["family"] == family) & (rows["share"] == share) & (rows["variant"] == name)]
        found = (student_interval(here[column].to_numpy("f8")).text(".4f") for column in COLUMNS.values())
        lines.append(row(family, f"{share:g}", name, *found))
    return lines


def write(
    path: Path, title: str, words: Path, how: str, variants: Mapping[str, Any], shares: tuple[float, ...], seeds: int,
    serve: Callable[[str, Any, float, int], dict[str, float]], answers: Callable[[pd.DataFrame], list[str]],
) -> None:  # fmt: skip
    """Run both panels and write the page. how: the command and the setting; answers: what holds, of a panel's rows."""
    by_panel = {panel: runs(panel, variants, shares, seeds, serve) for panel in PANELS}
    lines = [f"# {title}\n", words.read_text(encoding="utf-8"), how + f" {DURATION_S:g} s of arrivals on {DEVICE}, "
             f"{seeds} seeds a panel; means and 95 % intervals over seeds, differences paired by seed.\n"]  # fmt: skip
    for panel, rows in by_panel.items():
        lines += [f"## {panel.title}\n", f"{', '.join(panel.families)}; seeds from {panel.first_seed:,}.\n",
                  *answers(rows), "", *tables(rows, variants, shares), ""]  # fmt: skip
    path.write_text("\n".join(lines), encoding="utf-8")
