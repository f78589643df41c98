"""One HTML page about a comparison of schedulers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.comparison import Comparison
from servegym.evaluation.figures import FIGURES
from servegym.evaluation.reports import page
from servegym.evaluation.reports.figures_table import unit_of
from servegym.evaluation.reports.notes import COMPARISON_NOTES, profile_notes
from servegym.evaluation.summary import RATIO_TITLES, SHARE_OF_BOUND, classes_of, conclusion, ratio_of
from servegym.scenarios.load import load_title

if TYPE_CHECKING:
    import pandas as pd

CAPTION = (
    "Higher is better: how much of the ideal gain, and how many of the requests within their SLOs, remain as load "
    "grows to the right; whether two schedulers differ is said by the paired differences in the tables, not by bars."
)


def compare_report(
    comparison: Comparison, summary: pd.DataFrame, cells: pd.DataFrame, plot: str | Path, path: str | Path
) -> Path:
    """Write the page and return its path.

    cells: what `run_comparison` returns; summary: of `summarise`; plot: the PNG of `plot_comparison`.
    """
    at_loads = list(summary.groupby("load", sort=False))
    body = [
        page.paragraph(f"Saturation: {page.text_of(comparison.saturation_rate_per_s)} requests/s.", "lead"),
        page.section(
            "In short",
            page.bullets(conclusion(at_load) for _, at_load in at_loads),
            page.figure(page.inline_png(plot, CAPTION), CAPTION),
        ),
        *(_load_section(load, at_load) for load, at_load in at_loads),
        page.section(
            "What these figures are not", page.bullets([*profile_notes(comparison.profile), *COMPARISON_NOTES])
        ),
        page.section("All figures, means over seeds", *_all_figures(cells)),
        page.section("What was run", page.facts(_what_was_run(comparison))),
    ]
    Path(path).write_text(page.page(comparison.title, body), encoding="utf-8")
    return Path(path)


def _load_section(load: Any, at_load: pd.DataFrame) -> str:
    import pandas as pd

    first, ratio = at_load.iloc[0], ratio_of(at_load)
    figures = [
        {
            "scheduler": row["scheduler"],
            RATIO_TITLES[ratio]: with_interval(row, ratio),
            **({"of the bound": with_interval(row, SHARE_OF_BOUND)} if SHARE_OF_BOUND in row else {}),
            "SLO attainment": with_interval(row, "slo_attainment"),
            "of high priority": row["slo_attainment_high_priority"],
            "of low priority": row["slo_attainment_low_priority"],
            "violations": with_interval(row, "violations"),
            **{name: row[name] for name in classes_of(at_load)},
            "starved": row["starved"],
            "TTFT p99 (s)": row["ttft_p99_s"],
            "evictions": row["preemptions"],
        }
        for _, row in at_load.iterrows()
    ]
    differences = [
        {
            "difference to the reference": row["scheduler"],
            RATIO_TITLES[ratio]: with_interval(row, f"{ratio}_difference", "+"),
            "SLO attainment": with_interval(row, "slo_attainment_difference", "+"),
            "violations": with_interval(row, "violations_difference", "+"),
            f"{RATIO_TITLES[ratio]} is": row["verdict"],
        }
        for _, row in at_load[at_load["scheduler"] != first["reference"]].iterrows()
    ]
    remark = (
        f"{page.text_of(first['rate_per_s'])} requests/s; means over {first['seeds']} seeds ± 95 % interval. "
        f"The reference is {first['reference']}."
    )
    return page.section(
        f"Load {load_title(load)}",
        page.paragraph(remark),
        page.table(pd.DataFrame(figures), "whole"),
        *([page.table(pd.DataFrame(differences), "whole")] if differences else []),
    )


def with_interval(row: pd.Series, name: str, sign: str = "") -> str:
    """mean ± half the width of its interval, which is symmetric; the mean alone if one seed gives no interval."""
    half_width = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2
    mean = f"{row[name]:{sign}.4f}"
    return mean if math.isnan(half_width) else f"{mean} ± {half_width:.4f}"


def _all_figures(cells: pd.DataFrame) -> Iterator[str]:
    """A table for each load: a row a figure, a column a scheduler."""
    for load, at_load in cells.groupby("load", sort=False):
        figures = at_load.groupby("scheduler", sort=False)[[*FIGURES, *classes_of(at_load)]]
        means = figures.agg(lambda runs: runs.astype("f8").mean()).T
        means.insert(0, "figure", means.index)
        means.insert(1, "unit", [unit_of(name) for name in means.index])
        yield page.details(f"Load {load_title(load)}", page.table(means, "units"))


def _what_was_run(comparison: Comparison) -> dict[str, Any]:
    identity = comparison.identity
    schedulers = {
        label: {"settings": dict(policy.settings) or "defaults", "source": policy.source}
        for label, policy in comparison.policies.items()
    }
    return {**identity, "schedulers": schedulers}
