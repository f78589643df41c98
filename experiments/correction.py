"""ProServe's Figure 10 with and without online correction, on the paper's own devices too.

    python -m experiments.correction docs/results/online-correction.md

Hypotheses: correction.md.
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
from experiments.claims.harness.checks import FAILS, HOLDS, UNDECIDED, Range
from experiments.claims.harness.rows import values
from experiments.claims.harness.selection import best, lead
from experiments.claims.harness.settings import FAMILIES, SHIFT, Size, slo_recipe
from experiments.claims.proserve_fig10 import BASELINES, CLIENTS, HIGH, METRICS, OF_THE_FIGURE, WHOLE
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("correction_reading.md")  # written after the run
THE_PAPERS = ("ascend910b-qwen2-7b", "ascend910b-qwen3-32b-tp4")
DEVICES = ("a100-llama3-8b", "a100-llama3-70b-tp4", "ascend910b-qwen3-8b", *THE_PAPERS)
FAR_OFF = "ascend910b-qwen3-8b"
FIRST_SEED, CHOOSING = 20_160, 3
EXPECTED_GAIN = Range(low=0.01)


def figures_of(cell: Cell, corrected: bool) -> dict[str, Any]:
    found = figures(Simulation(scenario(cell._replace(corrected=corrected))).run())
    return {column: found[column] for column in METRICS.values()}


def runs(size: Size) -> pd.DataFrame:
    """A row a run: family, device, load, seed, scheduler, corrected, and the figures of `METRICS`."""
    import pandas as pd

    seeds = (*size.seeds, *(seed + SHIFT for seed in size.seeds[:CHOOSING]))
    cells = list(itertools.product(size.settings, HIGH, seeds, (WHOLE, *BASELINES), (False, True)))
    rows = []
    for setting, load, seed, scheduler, corrected in track(cells, "runs", console=Console(stderr=True)):
        slo = f"{slo_recipe(setting.device)},{CLIENTS}"
        cell = Cell(*setting, scheduler, load, seed, size.requests_of(setting), slo=slo)
        keys = {"family": setting.family, "device": setting.device, "load": load, "seed": seed}
        rows.append(keys | {"scheduler": scheduler, "corrected": corrected} | figures_of(cell, corrected))
    return pd.DataFrame(rows)


def judging(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["seed"] < rows["seed"].min() + SHIFT]


def correction_gain(rows: pd.DataFrame, column: str) -> Interval:
    """What correction adds to slide-batching, the mean over families, paired by seed."""
    by_seed = judging(rows[rows["scheduler"] == WHOLE]).groupby(["corrected", "seed"])[column].mean()
    return student_interval(by_seed[True].to_numpy() - by_seed[False].to_numpy())


def lead_of(rows: pd.DataFrame, column: str, load: float, baselines: tuple[str, ...]) -> tuple[str, Interval]:
    """The best baseline of a setting, by the seeds that choose, and slide-batching's lead over it."""
    among = judging(rows)
    other = best(rows.drop(among.index), column, load, baselines)
    return other, student_interval(lead(among, column, load, WHOLE, other))


def counts(rows: pd.DataFrame, column: str, load: float, baselines: tuple[str, ...]) -> tuple[int, int, int]:
    """In how many settings it is ahead, behind, and how many there are."""
    leads = [lead_of(one, column, load, baselines)[1] for _, one in rows.groupby(["family", "device"], sort=False)]
    return sum(lead.low > 0 for lead in leads), sum(lead.high < 0 for lead in leads), len(leads)


def answers(rows: pd.DataFrame) -> list[str]:
    gain = correction_gain(rows[(rows["device"] == FAR_OFF) & (rows["load"] == HIGH[0])], "tdg_ratio")
    lines = [f"- 1. TDG ratio of slide-batching on {FAR_OFF} at load 1, with correction less without: "
             f"{gain.text('+.4f')}: {EXPECTED_GAIN.verdict(gain)}."]  # fmt: skip
    corrected = rows[rows["corrected"]]
    for (name, column), load in itertools.product(METRICS.items(), HIGH):
        ahead, behind, of = counts(corrected[corrected["device"].isin(THE_PAPERS)], column, load, OF_THE_FIGURE)
        verdict = HOLDS if ahead == of else FAILS if behind else UNDECIDED
        lines.append(f"- 2. {name} at load {load:g}: ahead in {ahead} of {of}, behind in {behind}: {verdict}.")
    for (name, column), load in itertools.product(METRICS.items(), HIGH):
        without, *_ = counts(rows[~rows["corrected"]], column, load, BASELINES)
        ahead, _, of = counts(corrected, column, load, BASELINES)
        verdict = HOLDS if ahead >= without else FAILS
        lines.append(f"- 3. {name} at load {load:g}: ahead in {ahead} of {of} with, {without} without: {verdict}.")
    return lines


def gains_table(rows: pd.DataFrame) -> list[str]:
    lines = header("device", *(f"{name}, load {load:g}" for name in METRICS for load in HIGH))
    for device, one in rows.groupby("device", sort=False):
        cells = [correction_gain(one[one["load"] == load], column).text("+.4f")
                 for column in METRICS.values() for load in HIGH]  # fmt: skip
        lines.append(row(str(device), *cells))
    return lines


def settings_table(rows: pd.DataFrame, column: str) -> list[str]:
    """Of each setting, with correction: slide-batching, and its lead over the best of the five and of the seven."""
    titles = [
        f"{what}, load {load:g}" for load in HIGH for what in ("slide-batching", "over the five", "over the seven")
    ]
    lines = header("setting", *titles)
    for (family, device), one in rows[rows["corrected"]].groupby(["family", "device"], sort=False):
        cells = []
        for load in HIGH:
            cells.append(f"{values(judging(one), column, load=load, scheduler=WHOLE).mean():.3f}")
            for baselines in (OF_THE_FIGURE, BASELINES):
                other, interval = lead_of(one, column, load, baselines)
                cells.append(f"{other} {interval.text('+.3f')}")
        lines.append(row(f"{family} on {device}", *cells))
    return lines


def page(rows: pd.DataFrame, size: Size) -> str:
    lines = [
        "# Online correction, and the paper's own devices\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.correction docs/results/online-correction.md`: "
        f"{size.requests} requests a run (a third as many of mooncake-conversation), "
        f"seeds {size.seeds[0]} to {size.seeds[-1]}, SLOs of ProServe, 26 clients. Intervals are 95 %, over seeds, "
        "paired by seed.\n",
        "## What holds\n",
        *answers(rows),
        "\n## What correction adds to slide-batching\n",
        "Means over the four traces.\n",
        *gains_table(rows),
    ]
    for name, column in METRICS.items():
        lines += [f"\n## {name} with correction\n", "The best baseline of each, and slide-batching's lead over it.\n",
                  *settings_table(rows, column)]  # fmt: skip
    lines += ["\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, devices=DEVICES, seeds=5, requests=2000)
    seeds = tuple(np.arange(FIRST_SEED, FIRST_SEED + asked.seeds).tolist())
    size = Size("correction", FAMILIES, tuple(asked.devices), seeds, asked.requests)
    asked.page.write_text(page(runs(size), size), encoding="utf-8")


if __name__ == "__main__":
    main()
