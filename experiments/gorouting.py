"""GoRouting taken apart, behind it SlideBatching on prefill engines: what is lost against Min-Load, and by which rule.

    python -m experiments.gorouting docs/results/gorouting.md

Hypotheses: gorouting.md.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.cells import Cell, scenario
from experiments.claims.harness.checks import ABOVE_0, BELOW_0, Range
from experiments.claims.harness.clusters import CLIENTS, HIGH, MIN_LOAD, first_tokens
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import LONGER, Setting, slo_recipe
from experiments.claims.proserve_fig11 import SLIDE, engines
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("gorouting_reading.md")  # written after the run
DEVICE, FAMILIES = "a100-llama3-8b", ("azure-conv", "azure-code", "sharegpt")
FIRST_SEED = 41_100
LOCAL = "gorouting:local_order=slide-batching"
PRINTED, LEAST_LOADED, LEAST_EXEC, TOKENS = "printed", "least loaded instead", "least EXEC alone", "fewest tokens"
ROUTERS = {
    PRINTED: LOCAL,
    "in order of deadlines": "gorouting:local_order=deadline",
    LEAST_LOADED: f"{LOCAL},fallback=least-loaded",
    LEAST_EXEC: f"{LOCAL},fallback=least-loaded,alpha=0,mu=1,lambda=2",
    TOKENS: "min-tokens",
}
COLUMN, OVERLOAD, ALIKE = "first_token_tdg_ratio", HIGH[-1], Range(-0.01, 0.01)


def runs(seeds: tuple[int, ...], requests: int) -> pd.DataFrame:
    """A row a run: family, load, seed, router and `COLUMN`."""
    import pandas as pd

    cells = list(itertools.product(FAMILIES, HIGH, seeds, (MIN_LOAD, *ROUTERS.values())))
    rows: list[dict[str, Any]] = []
    for family, load, seed, router in track(cells, "runs", console=Console(stderr=True)):
        setting = Setting(family, DEVICE)
        slo = f"{slo_recipe(DEVICE)},{CLIENTS}"
        cell = Cell(*setting, SLIDE, load, seed, requests, slo=slo, engines=engines(setting), router=router)
        found = first_tokens(Simulation(scenario(cell)).run())[COLUMN]
        rows.append({"family": family, "load": load, "seed": seed, "router": router, COLUMN: found})
    return pd.DataFrame(rows)


def over_min_load(rows: pd.DataFrame, name: str, **where: Any) -> np.ndarray:
    """float64[seeds]: what a router has more than Min-Load."""
    ours, other = (values(rows, COLUMN, router=router, **where) for router in (ROUTERS[name], MIN_LOAD))
    return ours - other


def answers(rows: pd.DataFrame) -> list[str]:
    lines = []
    for family in rows["family"].unique():
        printed, instead, least, tokens = (
            over_min_load(rows, name, family=family, load=OVERLOAD)
            for name in (PRINTED, LEAST_LOADED, LEAST_EXEC, TOKENS)
        )
        said = {
            f"1. {PRINTED}": (printed, BELOW_0),
            f"2. {LEAST_LOADED}, less half of {PRINTED}": (instead - printed / 2, ABOVE_0),
            f"3. {LEAST_EXEC}": (least, BELOW_0),
            f"3. {LEAST_EXEC}, less {LEAST_LOADED}": (least - instead, ALIKE),
            f"4. {TOKENS}": (tokens, BELOW_0),
        }
        for name, (differences, expected) in said.items():
            interval = student_interval(differences)
            lines.append(f"- {name}, {family}: {interval.text('+.4f')}: {expected.verdict(interval)}.")
    return lines


def table(rows: pd.DataFrame, load: float) -> list[str]:
    lines = header("", "Min-Load", *ROUTERS)
    for family in rows["family"].unique():
        whole = values(rows, COLUMN, router=MIN_LOAD, family=family, load=load).mean()
        leads = [student_interval(over_min_load(rows, name, family=family, load=load)).text("+.4f") for name in ROUTERS]
        lines.append(row(family, f"{whole:.3f}", *leads))
    return lines


def page(rows: pd.DataFrame, seeds: tuple[int, ...], requests: int) -> str:
    lines = [
        "# GoRouting, rule by rule\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.gorouting docs/results/gorouting.md`: "
        f"{requests} requests a run, seeds {seeds[0]} to {seeds[-1]}, SLOs of ProServe, `{SLIDE}` on the prefill "
        "engines. Intervals are 95 %, over seeds, paired by seed.\n",
        "## What holds\n",
        *answers(rows),
    ]
    for load in reversed(HIGH):
        of_others = "First-token TDG ratio under Min-Load, and the differences of the others to it.\n"
        lines += [f"\n## Load {load:g}\n", of_others, *table(rows, load)]
    lines += ["\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=5, requests=1000 * LONGER)
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + asked.seeds))
    asked.page.write_text(page(runs(seeds, asked.requests), seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
