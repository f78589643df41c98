"""All registered schedulers side by side: every family and load, on one engine of one device."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, claim, heat_map
from experiments.claims.harness.drawing import DOTS_PER_INCH
from experiments.claims.harness.league import league, markdown
from experiments.claims.harness.measures import serve_by_first_token
from experiments.claims.harness.page import TABLES
from experiments.claims.harness.selection import best, lead, relative_lead, split, with_selection
from experiments.claims.harness.settings import DEVICES, FAMILIES, Setting, Size, slo_recipe
from servegym.baselines.registry import scheduler_names
from servegym.evaluation.markdown import header, row
from servegym.scenarios.values import LOADS

ID = "schedulers-table"
WHOLE = "slide-batching"
# What the families' papers look at beside lengths: clients, of which each has one priority, or low importance.
ASSIGNED = {"proserve": "clients=26", "qoserve": "low_share=0.2"}
TTLT_FAMILIES = ("qoserve-code",)
LOW, HIGH = (LOADS["light"], LOADS["medium"]), (LOADS["high"], LOADS["overload"])
EXCLUDE, STATIC = f"{WHOLE}:hopeless=exclude", f"{WHOLE}:ablation=no-latency"
SHORT = "batches of 512 tokens (ablation=no-latency), not as long as deadlines allow"
EXCLUDED = "hopeless requests set no budget (hopeless=exclude)"
LAST_DEADLINE = "the first and last token's deadlines, not mean TPOT"
EARLY, EXACT = "deadlines counted from an early first token, for both", "the device takes what the estimator says"
BY_DEADLINES, LATE_DECODES = "deadline_attainment", "decodes_in_time_after_late_first"
AHEAD = ("qoserve", "sjf")  # what was ahead of SlideBatching in gain on other seeds, where anything was by much
WITHIN_1_PERCENT = Range(low=-1.0)
METRICS = {"TDG ratio": "tdg_ratio", "SLO attainment": "slo_attainment"}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    recipe = slo_recipe(setting.device, setting.family)
    slo = f"{recipe},{ASSIGNED[name]}" if (name := recipe.partition(":")[0]) in ASSIGNED else recipe
    # Where a third of the requests has seconds and the others half an hour, it takes longer until queues matter.
    requests = size.requests_of(setting) * (3 if setting.family in TTLT_FAMILIES else 1)
    for load in LOADS.values():
        for seed in with_selection(size):
            for scheduler in scheduler_names():
                yield Cell(*setting, scheduler, load, seed, requests, slo=slo)
    for load in HIGH:
        for seed in size.seeds:
            for variant in (EXCLUDE, STATIC):
                yield Cell(*setting, variant, load, seed, requests, slo=slo)
            for scheduler in (WHOLE, *AHEAD):
                yield Cell(*setting, scheduler, load, seed, requests, slo=slo, buffered=False)
                yield Cell(*setting, scheduler, load, seed, requests, slo=slo, exact_estimator=True)


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the cells that only examine."""
    return rows[rows["buffered"] & ~rows["exact_estimator"] & ~rows["scheduler"].isin((EXCLUDE, STATIC))]


def ranked(judging: pd.DataFrame) -> list[str]:
    """The schedulers, highest mean TDG ratio at loads 1 and 1.4 first: families count alike."""
    crowded = judging[judging["load"].isin(HIGH)]
    means = crowded.groupby("scheduler")["tdg_ratio"].mean()  # every family has as many runs
    return list(means.sort_values(ascending=False, kind="stable").index)


def picture(rows: pd.DataFrame, path: Path) -> None:
    judging, _ = split(plain(rows))
    schedulers, families = ranked(judging), list(judging["family"].unique())
    width = 1.7 + 0.28 * len(families) * (len(LOADS) + heat_map.GAP)
    figure = Figure(figsize=(width, 0.36 * len(schedulers) + 1.4), layout="constrained")
    for axes, (metric, column) in zip(figure.subplots(len(METRICS), 1), METRICS.items(), strict=True):
        means = judging.pivot_table(column, ["family", "scheduler"], "load", "mean")
        shares = {family: means.loc[family].reindex(schedulers).to_numpy() for family in families}
        heat_map.draw(axes, shares, schedulers, [f"{load:g}" for load in means.columns], f"{metric}, %; load:")
    figure.savefig(path, dpi=DOTS_PER_INCH)


def appendix(rows: pd.DataFrame, folder: Path) -> str:
    """The best scheduler of each setting, a table for each family, and all of it as CSV."""
    judging, _ = split(plain(rows))
    by_family = dict(list(judging.groupby("family", sort=False)))
    tables = {family: league(of_family, WHOLE) for family, of_family in by_family.items()}
    whole = pd.concat(tables, names=["family"]).reset_index("family")
    whole.to_csv(folder / f"{ID}.csv", index=False, float_format="%.4g")
    lines = [
        "**The best of each family and load**, by the mean of these seeds, and SlideBatching's place.\n",
        *header("", "metric", *(f"load {load:g}" for load in LOADS.values())),
        *(
            row(family, metric, *(place(of_family, column, load) for load in LOADS.values()))
            for family, of_family in by_family.items()
            for metric, column in METRICS.items()
        ),
        f"\nAll figures with intervals, and differences to SlideBatching paired by seed: [CSV](../{TABLES}/{ID}.csv). "
        "In the tables of families **bold** is better than SlideBatching and *italic* worse, by more than the "
        "interval of that difference.\n",
    ]
    for family, table in tables.items():
        shown = markdown(table, ranked(judging), LOADS["high"])
        lines.append(f"<details><summary>{family}</summary>\n\n{shown}\n\n</details>\n")
    return "\n".join(lines)


def place(rows: pd.DataFrame, column: str, load: float) -> str:
    """The best scheduler, and the place of SlideBatching."""
    means = rows[rows["load"] == load].groupby("scheduler")[column].mean()
    ahead = int((means > means[WHOLE]).sum())
    if not ahead:
        return f"**SlideBatching** {means[WHOLE]:.3f}"
    return f"{means.idxmax()} {means.max():.3f}; SlideBatching {means[WHOLE]:.3f}, place {ahead + 1}"


def examined_checks(rows: pd.DataFrame, others: list[str]) -> list[Check]:
    """Why another is ahead: hopeless requests, the length of batches, how it is judged, what the estimator says."""
    judging, choosing = split(plain(rows))
    with_variants, _ = split(rows[rows["buffered"] & ~rows["exact_estimator"]])
    checks = []
    for examines, variant in {EXCLUDED: EXCLUDE, SHORT: STATIC}.items():
        for metric, column in METRICS.items():
            for load in HIGH:
                ahead = lead(with_variants, column, load, variant, best(choosing, column, load, others))
                checks.append(Check(f"{metric}: lead over the best other, load {load:g}", ahead, ABOVE_0, examines))
    for load in HIGH:
        fewer = lead(with_variants, LATE_DECODES, load, EXCLUDE, WHOLE)
        name = f"decodes in time of requests whose first token was late, less those by default, load {load:g}"
        checks.append(Check(name, fewer, BELOW_0, EXCLUDED))
        ahead = lead(judging, BY_DEADLINES, load, WHOLE, best(choosing, BY_DEADLINES, load, others))
        checks.append(Check(f"attainment: lead over the best other, load {load:g}", ahead, ABOVE_0, LAST_DEADLINE))
    for examines, among in {EARLY: rows[~rows["buffered"]], EXACT: rows[rows["exact_estimator"]]}.items():
        for metric, column in METRICS.items():
            for other in AHEAD:
                both = np.mean([lead(among, column, load, WHOLE, other) for load in HIGH], axis=0)
                checks.append(Check(f"{metric}: SlideBatching - {other}, loads 1 and 1.4", both, ABOVE_0, examines))
    return checks


@claim(
    ID,
    cells=cells,
    measure=serve_by_first_token,
    picture=picture,
    appendix=appendix,
    families=(*FAMILIES, *TTLT_FAMILIES, "semantic"),
    devices=DEVICES[:1],
)
def judge(rows: pd.DataFrame) -> list[Check]:
    judging, choosing = split(plain(rows))
    others = [name for name in choosing["scheduler"].unique() if name != WHOLE]
    checks = []
    for metric, column in METRICS.items():
        for load in LOADS.values():
            other = best(choosing, column, load, others)
            if load in LOW:
                ahead = relative_lead(judging, column, load, WHOLE, other)
                checks.append(Check(f"{metric}: % over the best other, load {load:g}", ahead, WITHIN_1_PERCENT))
            else:
                ahead = lead(judging, column, load, WHOLE, other)
                checks.append(Check(f"{metric}: lead over the best other, load {load:g}", ahead, ABOVE_0))
    return checks + examined_checks(rows, others)
