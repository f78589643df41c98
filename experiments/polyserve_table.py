"""How far PolyServe's latency table is off, over and under: on random batches and on those that its fleet forms.

    python -m experiments.polyserve_table docs/results/polyserve-table.md

Hypotheses: polyserve_table.md.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.checks import Range
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.evaluation.reports.iterations import iterations
from servegym.latency_models.estimators import range_of
from servegym.latency_models.fitting import REGIMES, regime
from servegym.latency_models.profile import load_profile
from servegym.latency_models.sampling import random_batches
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_suffix(".md")
DEVICE = "h200-llama3-8b"
TABLE, PRINTED, LINEAR = "table-shares", "table", "linear"
ESTIMATORS = (TABLE, PRINTED, LINEAR)
RANDOM, FORMED = "Random batches", "Batches that PolyServe forms"
MIXED = REGIMES[2]
FIRST_SEED = 96_020
BATCHES = 3000
COLUMNS = {
    "mean": "+.2f",
    "mean size": ".2f",
    "too short, share": ".0f",
    "too short, mean": ".2f",
    "too long, mean": ".2f",
    "5th percentile": "+.2f",
    "95th percentile": "+.2f",
}


class Errors(NamedTuple):
    """Estimates over times, less 1, in percent, float64[n], and the kind of each batch, an index into REGIMES."""

    percent: np.ndarray
    kinds: np.ndarray


def of_random(form: str, seed: int) -> Errors:
    profile = load_profile(f"{DEVICE}:estimator={form}")
    batches = random_batches(BATCHES, seed, range_of(profile))
    return Errors(
        100.0 * (profile.estimator.evaluate(batches) / profile.device.evaluate(batches) - 1.0), regime(batches)
    )


def of_formed(form: str, seed: int, requests: int) -> Errors:
    spec = ServingSpec().with_overrides({
        "device": f"{DEVICE}:estimator={form}", "engines": 20, "trace": "uniform-4096-1024", "rate_per_s": 50.0,
        "requests": requests, "slo": "polyserve", "seed": seed, "scheduler": "polyserve", "router": "polyserve",
        "scaler": "polyserve",
    })  # fmt: skip
    table = iterations(Simulation(spec.build(), record_timeline=True).run())
    table = table[table["ended"]]
    kinds = np.where(table["prefill_requests"] > 0, np.where(table["decode_requests"] > 0, 2, 1), 0)
    return Errors(100.0 * (table["estimated_s"] / table["ran_s"] - 1.0).to_numpy("f8"), kinds)


def figures_of(percent: np.ndarray) -> dict[str, float]:
    """The figures of COLUMNS; nan where no batch is too short, or none too long."""
    short, long = percent[percent < 0], percent[percent > 0]
    low, high = np.percentile(percent, [5, 95])
    found = (
        percent.mean(), np.abs(percent).mean(), 100.0 * len(short) / len(percent),
        -short.mean() if len(short) else np.nan, long.mean() if len(long) else np.nan, low, high,
    )  # fmt: skip
    return dict(zip(COLUMNS, map(float, found), strict=True))


def measured(seeds: int, requests: int) -> pd.DataFrame:
    """A row for each kind of batch of each estimator and seed, with the figures of COLUMNS."""
    cells = list(itertools.product(range(FIRST_SEED, FIRST_SEED + seeds), ESTIMATORS))
    found = []
    for seed, form in track(cells, "estimators", console=Console(stderr=True)):
        for of, errors in ((RANDOM, of_random(form, seed)), (FORMED, of_formed(form, seed, requests))):
            for number, kind in enumerate(REGIMES):
                here = errors.percent[errors.kinds == number]
                if len(here):
                    found.append({"of": of, "kind": kind, "form": form, "seed": seed} | figures_of(here))
    return pd.DataFrame(found)


def interval_of(rows: pd.DataFrame, of: str, kind: str, form: str, column: str) -> Interval:
    here = rows[(rows["of"] == of) & (rows["kind"] == kind) & (rows["form"] == form)]
    return student_interval(here[column].to_numpy("f8"))


def answers(rows: pd.DataFrame) -> Iterator[str]:
    for number, of, within in ((1, RANDOM, 0.25), (2, FORMED, 0.5)):
        for form, expected in ((TABLE, Range(-within, within)), (PRINTED, Range(high=-1.0))):
            mean = interval_of(rows, of, MIXED, form, "mean")
            yield f"- {number}. `{form}`, {of[0].lower()}{of[1:]}: {mean.text('+.2f')} %: {expected.verdict(mean)}."


def page(rows: pd.DataFrame, seeds: int, requests: int) -> str:
    lines = [
        "# PolyServe's latency table, over and under\n",
        WORDS.read_text(encoding="utf-8"),
        f"Measured by `python -m experiments.polyserve_table docs/results/polyserve-table.md`: {DEVICE}, {BATCHES:,} "
        "random batches of a seed within the profile's ranges; the batches of 20 engines with PolyServe's scheduler, "
        f"router and scaler, uniform-4096-1024 at 50 requests/s, {requests:,} requests; seeds {FIRST_SEED} to "
        f"{FIRST_SEED + seeds - 1}. Means and 95 % intervals over seeds, in percent. Too short: the estimate is below "
        "the time.\n",
        "## What holds\n",
        *answers(rows),
    ]
    for of in (RANDOM, FORMED):
        lines += [f"\n## {of}\n", *header("batches", "estimator", *COLUMNS)]
        for kind, form in itertools.product(REGIMES[::-1], ESTIMATORS):
            if ((rows["of"] == of) & (rows["kind"] == kind) & (rows["form"] == form)).any():
                cells = [interval_of(rows, of, kind, form, name).text(style) for name, style in COLUMNS.items()]
                lines.append(row(kind, f"`{form}`", *cells))
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=5, requests=2000)
    asked.page.write_text(page(measured(asked.seeds, asked.requests), asked.seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
