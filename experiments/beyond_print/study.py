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
from experiments.panels import Panel
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
ATTAINMENT, WAIT, STARVED = "slo_attainment", "ttft_p99_s", "starved"
COLUMNS = {"violations": VIOLATIONS, "TDG ratio": TDG, "engine-seconds a request": COST}
WITH_WAITS = {**COLUMNS, "SLO attainment": ATTAINMENT, "TTFT p99, s": WAIT, "starved": STARVED}

PANELS = (
    Panel("Training traces", ("uniform-4096-1024", "azure-conv"), 71_100),
    Panel("Held-out traces", ("uniform-512-512", "azure-code"), 1_071_000),
)


def scenario(family: str, engines: int, share: float, seed: int, **other: Any) -> Scenario:
    """Engines under PolyServe's policies, at a share of the optimal goodput of as many co-located ones.

    other: fields of the spec, in place of co-located engines and of these policies.
    """
    rate_per_s = share * optimum(Setting(family, DEVICE), engines, False).requests_per_s
    counts = {} if "prefill" in other else {"engines": engines}
    return ServingSpec().with_overrides(counts | {
        "device": DEVICE, "trace": family, "slo": slo_of(DEVICE), "keep_slos": True,
        "seed": seed_of(family, seed), "rate_per_s": rate_per_s, "requests": int(DURATION_S * rate_per_s),
        "scheduler": "polyserve", "router": "polyserve", "scaler": "polyserve", **other,
    }).build()  # fmt: skip


def served(scenarios: list[Scenario]) -> dict[str, float]:
    """The figures of `COLUMNS` of fleets together, that serve apart; of one fleet also those of `WITH_WAITS`."""
    found: list[dict[str, Any]] = [dict(figures(Simulation(one).run())) for one in scenarios]
    requests = np.array([len(one.workload) for one in scenarios], dtype=float)
    means = {name: float(np.average([one[name] for one in found], weights=requests)) for name in (VIOLATIONS, TDG)}
    alone = {name: float(found[0][name]) for name in (ATTAINMENT, WAIT, STARVED)} if len(found) == 1 else {}
    return means | alone | {COST: float(sum(one["cost_engine_s"] for one in found) / requests.sum())}


class Study(NamedTuple):
    """What a study compares, and what it says of it.

    words: the file of its hypotheses. how: the command and the engines. shares: of the optimal goodput. serve: (family,
    variant, share, seed) -> figures. answers: what holds, of a panel's rows. columns: of its tables, by title. reading:
    a file, written after the run. panels: training traces, then held-out ones.
    """

    title: str
    words: Path
    how: str
    variants: Mapping[str, Any]
    shares: tuple[float, ...]
    serve: Callable[[str, Any, float, int], dict[str, float]]
    answers: Callable[[pd.DataFrame], list[str]]
    columns: Mapping[str, str] = COLUMNS
    reading: Path | None = None
    panels: tuple[Panel, ...] = PANELS


def runs(study: Study, panel: Panel, seeds: int) -> pd.DataFrame:
    """A row a run: family, variant, share, seed, and the figures."""
    import pandas as pd

    cells = list(itertools.product(panel.families, study.shares, panel.seeds(seeds), study.variants.items()))
    return pd.DataFrame([
        {"family": family, "variant": name, "share": share, "seed": seed} | study.serve(family, variant, share, seed)
        for family, share, seed, (name, variant) in track(cells, panel.title, console=Console(stderr=True))
    ])  # fmt: skip


def more_than(rows: pd.DataFrame, name: str, base: str, column: str, share: float, relative: bool = False) -> Interval:
    """A figure of a variant less the base's, over the seeds' means of families; relative: over the base's, each."""
    of = rows[rows["share"] == share].pivot_table(index=["family", "seed"], columns="variant", values=column)
    less = of[name] / of[base] - 1 if relative else of[name] - of[base]
    return student_interval(less.groupby("seed").mean().to_numpy("f8"))


def tables(rows: pd.DataFrame, study: Study) -> list[str]:
    """For each trace and share of the optimal goodput: a row a variant, means over seeds."""
    lines = header("trace", "rate, share of optimum", "", *study.columns)
    for family, share, name in itertools.product(dict.fromkeys(rows["family"]), study.shares, study.variants):
        here = rows[(rows["family"] == family) & (rows["share"] == share) & (rows["variant"] == name)]
        found = (student_interval(here[column].to_numpy("f8")).text(".4f") for column in study.columns.values())
        lines.append(row(family, f"{share:g}", name, *found))
    return lines


def write(path: Path, study: Study, seeds: int) -> None:
    """Run both panels and write the page."""
    by_panel = {panel: runs(study, panel, seeds) for panel in study.panels}
    words, arrivals = study.words.read_text(encoding="utf-8"), f" {DURATION_S:g} s of arrivals on {DEVICE}, "
    lines = [f"# {study.title}\n", words, f"{study.how}{arrivals}{seeds} seeds a panel; means and 95 % intervals over "
             "seeds, differences paired by seed.\n"]  # fmt: skip
    for panel, rows in by_panel.items():
        lines += [f"## {panel.title}\n", f"{', '.join(panel.families)}; seeds from {panel.first_seed:,}.\n",
                  *study.answers(rows), "", *tables(rows, study), ""]  # fmt: skip
    if study.reading is not None:
        lines += ["## Reading (written after the run)\n", study.reading.read_text(encoding="utf-8")]
    path.write_text("\n".join(lines), encoding="utf-8")
