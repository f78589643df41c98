"""The table of settings on a page: what the runs of the claim served, from their rows."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness.served import MOST_VALUES, Facts
from experiments.claims.harness.settings import Setting
from servegym.evaluation.markdown import header, row

SLOS = {"TTFT SLO, s": ("ttft_slo_s", 1.0), "TPOT SLO, ms": ("tpot_slo_s", 1e3), "TTLT SLO, s": ("ttlt_slo_s", 1.0)}
INTRODUCTION = """\
## Settings

What ran, over all runs of a setting (least to most; tokens and the share of prompts are means). No load: there are
several rates in a cell, as a goodput is looked for, runs are repeated, or classes have engines of their own.
"""


def settings_table(rows: pd.DataFrame) -> str:
    """rows: of all settings, each with `served.Facts` in column "served" (None: it simulated nothing)."""
    lines = header(
        "setting", "engines", "requests a run", "load", "requests/s", "mean prompt / output, tokens", *SLOS,
        "largest request, share of KV memory", "prompts no idle engine prefills within the TTFT SLO",
    )  # fmt: skip
    for (family, device), of_setting in rows.groupby(["family", "device"], sort=False):
        simulated = of_setting[of_setting["served"].notna()]
        if len(simulated):
            lines.append(row(Setting(str(family), str(device)).name, *cells_of(simulated)))
    return "\n".join([INTRODUCTION, *lines]) + "\n"


def cells_of(rows: pd.DataFrame) -> list[str]:
    """The row of one setting."""
    served: list[Facts] = list(rows["served"])

    def mean(fact: str) -> float:
        return float(np.mean([facts[fact] for facts in served]))

    return [
        span(number for facts in served for number in facts["engines"]),
        span(number for facts in served for number in facts["requests"]),
        *loads_and_rates(rows),
        f"{mean('mean_prompt_tokens'):.0f} / {mean('mean_output_tokens'):.0f}",
        *(some(scale * value for facts in served for value in facts[slo]) for slo, scale in SLOS.values()),
        f"{max(facts['largest_share_of_kv'] for facts in served):.0%}",
        f"{mean('beyond_ttft_when_idle'):.0%}",
    ]


def loads_and_rates(rows: pd.DataFrame) -> tuple[str, str]:
    """The loads, and the mean rates of the seeds at the least and the most of them. No load, and all rates, where a
    cell has several."""
    timed = rows[[facts["rate_per_s"] is not None for facts in rows["served"]]]
    if not len(timed):
        return "all at once", "-"
    rates = np.array([facts["rate_per_s"] for facts in timed["served"]])
    if (rates[:, 0] < rates[:, 1]).any():
        return "-", span(rates.ravel())
    return span(timed["load"]), span(timed.assign(rate=rates[:, 0]).groupby("load")["rate"].mean())


def span(numbers: Iterable[Any]) -> str:
    """The least and the most."""
    ascending = sorted(numbers)
    found = [f"{number:.4g}" if number < 1e4 else f"{number:.0f}" for number in (ascending[0], ascending[-1])]
    return " to ".join(dict.fromkeys(found))


def some(numbers: Iterable[float]) -> str:
    """The different ones, or their span if they are many; "-": none."""
    values = sorted({float(f"{number:.4g}") for number in numbers})
    if not values:
        return "-"
    return ", ".join(f"{value:g}" for value in values) if len(values) <= MOST_VALUES else span(values)
