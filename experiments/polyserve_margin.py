"""PolyServe with a margin below its tiers' TPOT: violations and engine-seconds.

    python -m experiments.polyserve_margin docs/results/polyserve-margin.md

Hypotheses: polyserve_margin.md.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.checks import Range
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
SLOS = {"0.3, 0.5 and 1 s by tier": "ttft_s=0.3-0.5-1", "1 s": "ttft_s=1"}
DEVICE = "h200-llama3-8b"
FIRST_SEED = 96_010
FEW, LITTLE = Range(high=0.25), Range(high=0.05)  # violations and engine-seconds, as shares
COST, VIOLATIONS = "cost_engine_s", "violations"
COLUMNS = {"violations": VIOLATIONS, "SLO attainment": "slo_attainment", "TDG ratio": "tdg_ratio",
           "TTFT p99, s": "ttft_p99_s", "starved": "starved", "engine-seconds": COST}  # fmt: skip
STYLES = {
    VIOLATIONS: ".4f",
    "slo_attainment": ".4f",
    "tdg_ratio": ".4f",
    "ttft_p99_s": ".2f",
    "starved": ".4f",
    COST: ".0f",
}


class Variant(NamedTuple):
    """What PolyServe forecasts with."""

    margin: float
    estimator: str = "table"
    corrected: bool = False


WITHOUT, SMALL = "no margin", "margin 0.03"
LINEAR, CORRECTED = "no margin, estimator `linear`", "no margin, corrected online"
VARIANTS = {
    WITHOUT: Variant(0.0), SMALL: Variant(0.03), "margin 0.06": Variant(0.06), "margin 0.1": Variant(0.1),
    LINEAR: Variant(0.0, "linear"), CORRECTED: Variant(0.0, corrected=True),
}  # fmt: skip


def spec_of(variant: Variant, ttft: str, seed: int, requests: int) -> ServingSpec:
    return ServingSpec().with_overrides({
        "device": f"{DEVICE}:estimator={variant.estimator}", "engines": 20, "trace": "uniform-4096-1024",
        "rate_per_s": 50.0, "requests": requests, "slo": f"polyserve:shares=40-30-20-10,{ttft}", "seed": seed,
        "scheduler": f"polyserve:margin={variant.margin}", "router": f"polyserve:margin={variant.margin}",
        "scaler": "polyserve", "correction": variant.corrected,
    })  # fmt: skip


def runs(seeds: int, requests: int) -> pd.DataFrame:
    """A row a run: slo, variant, seed, and the figures of `COLUMNS`."""
    import pandas as pd

    cells = list(itertools.product(SLOS, VARIANTS, range(FIRST_SEED, FIRST_SEED + seeds)))
    rows: list[dict[str, Any]] = []
    for slo, name, seed in track(cells, "runs", console=Console(stderr=True)):
        found = figures(Simulation(spec_of(VARIANTS[name], SLOS[slo], seed, requests).build()).run())
        rows.append({"slo": slo, "variant": name, "seed": seed} | {column: found[column] for column in STYLES})
    return pd.DataFrame(rows)


def by_seed(rows: pd.DataFrame, slo: str, name: str, column: str) -> np.ndarray:
    """float64[seeds]."""
    return rows[(rows["slo"] == slo) & (rows["variant"] == name)].sort_values("seed")[column].to_numpy("f8")


def answers(rows: pd.DataFrame) -> list[str]:
    lines = []
    for number, name in ((1, SMALL), (3, LINEAR), (3, CORRECTED)):
        for slo in SLOS:
            share = student_interval(by_seed(rows, slo, name, VIOLATIONS) / by_seed(rows, slo, WITHOUT, VIOLATIONS))
            lines.append(
                f"- {number}. {name}, TTFT {slo}: {share.text('.3f')} of the violations: {FEW.verdict(share)}."
            )
    for slo in SLOS:
        more = student_interval(by_seed(rows, slo, SMALL, COST) / by_seed(rows, slo, WITHOUT, COST) - 1)
        lines.append(
            f"- 2. {SMALL}, TTFT {slo}: {more.text('+.3f')} engine-seconds, as a share: {LITTLE.verdict(more)}."
        )
    return lines


def page(rows: pd.DataFrame, seeds: int, requests: int) -> str:
    lines = [
        "# A margin for PolyServe\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.polyserve_margin docs/results/polyserve-margin.md`: 20 engines of "
        f"{DEVICE} with PolyServe's scheduler, router and scaler, uniform-4096-1024 at 50 requests/s, "
        f"{requests:,} requests, seeds {FIRST_SEED} to {FIRST_SEED + seeds - 1}, four TPOT tiers with shares of 40, "
        "30, 20 and 10 %. Means and 95 % intervals over seeds.\n",
        "## What holds\n",
        *answers(rows),
    ]
    for slo in SLOS:
        lines += [f"\n## TTFT {slo}\n", *header("", *COLUMNS)]
        for name in VARIANTS:
            cells = [
                student_interval(by_seed(rows, slo, name, column)).text(STYLES[column]) for column in COLUMNS.values()
            ]
            lines.append(row(name, *cells))
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=5, requests=20_000)
    asked.page.write_text(page(runs(asked.seeds, asked.requests), asked.seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
