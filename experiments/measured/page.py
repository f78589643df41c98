"""Write docs/results/measured.md and its picture, from the measured runs under $SERVEGYM_DATA:

python -m experiments.measured.page docs/results/measured.md
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured import client_side, ttft_parts, wrong_terms
from experiments.measured.known_terms import ASYNCHRONOUS, FRONT_END_SOURCE, SYNCHRONOUS
from experiments.measured.public_runs import folder_of_runs, read_runs
from experiments.measured.study import CASES, GOALS, Case, errors_of, study
from servegym.errors import ServegymError
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import HEADLINE, METRICS, by_request, headline
from servegym.evaluation.measured.plot import plot
from servegym.evaluation.measured.runs import Run

Served = tuple[Run, Case, pd.DataFrame]
LAYERED_GOALS = {"itl": 2.0, "ttft": 5.0}  # of runs with tables of their own layers
SIDE = "those over HTTP with the client's side fitted to other models"
# Cases that say nothing of what is not known of a run.
KNOWN = ("roofline", "no caching", "CPU by request", "ranks apart")
NOT_INDEPENDENT = " (over HTTP; constants not independent)"

HEAD = """# Measured on GPUs: real engines and the simulator

Written by `SERVEGYM_DATA=DATA python -m experiments.measured.page docs/results/measured.md`; do not edit.
`python -m experiments validate` gives the same tables, `servegym validate` those of [your own](../validation.md).

{runs} runs of vLLM on {gpus} kinds of GPU whose requests are public are served again by the simulator: the requests as
they came, prompts that begin alike, limits and KV blocks as recorded, scheduler `vllm-v1`. Batch times come from tables
of kernels, or of single layers, measured on the same kind of GPU. **Nothing is fitted to these runs**, but in
[one part](#the-clients-side-fitted-to-other-models) that says so, **and none is left out.** Errors are signed,
simulated less measured, in percent of the measured.
"""
TERMS = """## What is assumed

- **Batch times**: `isim` runs: [`profile from-config`](../device_reference.md#of-any-model) by aiconfigurator's tables
  of the H100 (vLLM 0.24, kernel by kernel). `lss` runs: LLMServingSim's tables of the layers of that model on that GPU
  (vLLM 0.19).
- **The engine** (headline): {asynchronous}. Taken from the version, before anything was simulated here; that a first
  try on ten runs of this collection had found a wait of about 1.3 steps (README of the data) was known by then.
- **Data-parallel ranks** over which experts are spread
  [wait for each other](../clusters.md#ranks-that-wait-for-each-other) in every step (one run).
- **Not known, and varied**:
  - whether scheduling was asynchronous (recorded for the RTX 4090 only). *Synchronous*: {synchronous};
  - the client's side. *Front end*: {front_end};
  - of two RTX PRO 6000, how long an all-reduce of 8 MiB and more takes: NCCL's own table (headline) or vLLM's, a factor
    of two apart.
- **Left out**: clients that give up (their requests are served to the end here), copies of KV to host memory, warm-up
  of a cold engine.
- Times count from the arrival. `lss` runs are published from when the engine took note; here from the client's clock.
"""
PEERS = """## Beside other simulators

Median absolute errors of means, % (E2E / ITL / TTFT), on exactly the same runs: theirs as published, ITL with the true
output lengths. They were not told that nearly every prompt is found in the engine's cache, so in TTFT this is no fair
comparison. BLIS is fitted to other runs of this collection.
"""
HYPOTHESES = """## Stated before

1. Median absolute error of means over all runs at most 6 / 6 / 15 % (E2E / ITL / TTFT).
2. Runs with tables of their own layers: mean ITL within 2 %, mean TTFT within 5 %.
3. With one number, seconds between a client and the queue of an HTTP server, fitted to the runs of all other models
   (leave one model out), all runs come within the limits of 1. Stated before this number alone was fitted; that
   [three terms](measured-fitted.md) fitted so had found 6 to 8 ms for it, and missed, was known.
"""
FITTED = """
**Three terms fitted to other runs** (batch times, CPU time of a step, the client's side), of other models, of the same
model, and of the run itself: [fitted](measured-fitted.md).
"""


def signed(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:+.1f}"


def of_means(errors: pd.DataFrame, case: str) -> pd.DataFrame:
    """Errors of means: index (run, stage), a column a metric."""
    rows = errors[(errors["case"] == case) & errors["metric"].isin([f"{metric}_mean" for metric in METRICS])]
    wide = rows.pivot_table(index=["run", "stage"], columns="metric", values="error_percent", sort=False)
    return wide.rename(columns=lambda name: name.removesuffix("_mean"))[list(METRICS)]


def with_side(errors: pd.DataFrame, judged: Sequence[client_side.Judged]) -> pd.DataFrame:
    """The headline's absolute errors of means over all runs, where those over HTTP have the client's side of others."""
    found = of_means(errors, HEADLINE).xs("all", level="stage").copy()
    for one in judged:
        found.loc[one.run.name] = [one.after[metric] for metric in found.columns]
    return found.abs()


def figures_in(found: Mapping[str, float]) -> str:
    return " / ".join(f"{found[metric]:.1f}" for metric in METRICS)


def judged_row(name: str, found: Mapping[str, float]) -> list[str]:
    met = all(found[metric] <= GOALS[metric] for metric in METRICS)
    return [name, figures_in(found), "6 / 6 / 15", "met" if met else "missed"]


def verdicts(errors: pd.DataFrame, judged: Sequence[client_side.Judged] = ()) -> str:
    """The hypotheses' outcomes."""
    rows = []
    for name, remark in ((HEADLINE, ""), ("front end", NOT_INDEPENDENT)):
        of_case = errors[errors["case"] == name]
        rows.append(judged_row(f"1, {name}, {of_case['run'].nunique()} runs{remark}", headline(of_case)))
    if judged:
        beside = with_side(errors, judged)
        rows.append(judged_row(f"3, {len(beside)} runs, {SIDE}", beside.median().to_dict()))
    layered = of_means(errors, HEADLINE)
    for name, stage in [index for index in layered.index if index[0].startswith("lss-")]:
        found = layered.loc[(name, stage)].to_dict()
        met = all(abs(found[metric]) <= goal for metric, goal in LAYERED_GOALS.items())
        value = f"{signed(found['itl'])} / {signed(found['ttft'])}"
        rows.append([f"2, {name}", value, "ITL 2 / TTFT 5", "met" if met else "missed"])
    return table(("hypothesis", "found, %", "goal, %", ""), rows)


def asynchronous_or_not(errors: pd.DataFrame) -> str:
    """In how many runs each metric is nearer with asynchronous scheduling than without, where it is not recorded."""
    new, old = (of_means(errors, case).xs("all", level="stage").abs() for case in (HEADLINE, "synchronous"))
    nearer = (new.loc[old.index] < old).sum()
    rows = [[metric.upper(), f"{nearer[metric]} of {len(old)}"] for metric in METRICS]
    return table(("mean", "nearer with asynchronous scheduling, runs"), rows)


def by_run(errors: pd.DataFrame, overloaded: bool) -> str:
    """The headline's errors by run and stage; in brackets the range over what is not known of the run."""
    wide = {case.name: of_means(errors, case.name) for case in CASES if case.name not in KNOWN}
    p99 = errors[errors["case"] == HEADLINE].set_index(["run", "stage", "metric"])["error_percent"]
    chosen = errors[errors["overloaded"] == overloaded]
    rows = []
    for index in dict.fromkeys(zip(chosen["run"], chosen["stage"], strict=True)):
        cells = []
        for metric in METRICS:
            values = [part.loc[index, metric] for part in wide.values() if index in part.index]
            cells.append(
                f"{signed(wide[HEADLINE].loc[index, metric])} ({signed(min(values))} to {signed(max(values))})"
            )
            cells.append(signed(p99[(*index, f"{metric}_p99")]))
        name, stage = index
        rows.append([name, str(stage), *cells, signed(p99[(name, stage, "output_tokens_per_s")])])
    heads = [f"{metric.upper()} {part}" for metric in METRICS for part in ("mean (range)", "p99")]
    return table(("run", "stage", *heads, "tokens/s"), rows)


def by_kind(errors: pd.DataFrame, column: str) -> str:
    """Median absolute errors of the runs' means, by GPU or model."""
    rows = []
    part = errors[(errors["case"] == HEADLINE) & (errors["stage"] == "all")]
    for name, group in part.groupby(column, sort=False):
        found = headline(group)
        rows.append([str(name), str(group["run"].nunique()), *(f"{found[metric]:.1f}" for metric in METRICS)])
    return table((column, "runs", *(metric.upper() for metric in METRICS)), rows)


def peers(table: pd.DataFrame) -> pd.DataFrame:
    """run, stage, simulator, metric and error_percent of means, of peers.csv; ITL with the true output lengths.

    Where a simulator has several versions for a run, the first counts.
    """
    table = table[table["metric"].isin([f"{metric}_mean" for metric in METRICS])]
    error = table["itl_error_pct_corrected"].fillna(table["error_pct"])
    table = table.assign(error_percent=error).rename(columns={"run_id": "run"})
    table = table.drop_duplicates(["run", "stage", "simulator", "metric"])
    return table[["run", "stage", "simulator", "metric", "error_percent"]]


def beside_peers(errors: pd.DataFrame, published: pd.DataFrame) -> str:
    """Median absolute errors of means, stage `all`, of each simulator and of ours on exactly the same runs."""
    rows = []
    published = published[published["stage"] == "all"]
    ours = {case: of_means(errors, case).xs("all", level="stage") for case in (HEADLINE, "front end")}
    for name, theirs in published.groupby("simulator"):
        wide = theirs.pivot_table(index="run", columns="metric", values="error_percent")
        wide = wide.rename(columns=lambda metric: metric.removesuffix("_mean")).reindex(columns=list(METRICS))
        runs = [run for run in ours[HEADLINE].index if run in wide.index]
        if not runs:
            continue
        cells = [str(name), str(len(runs))]
        for errors_there in (wide.loc[runs], ours[HEADLINE].loc[runs], ours["front end"].reindex(runs)):
            medians = errors_there.abs().median()
            cells.append(
                " / ".join("-" if np.isnan(medians[metric]) else f"{medians[metric]:.1f}" for metric in METRICS)
            )
        rows.append(cells)
    return table(("simulator", "runs", "theirs", "ours", "ours with front end"), rows)


def by_case(errors: pd.DataFrame) -> str:
    """Each assumption changed alone."""
    rows = []
    for case in CASES:
        part = errors[errors["case"] == case.name]
        if len(part):
            rows.append([case.name, case.what, str(part["run"].nunique()), figures_in(headline(part))])
    return table(("case", "what", "runs", "E2E / ITL / TTFT"), rows)


def of_requests(served: Iterable[Served]) -> str:
    """Median over requests of the absolute error."""
    rows = []
    for run, case, requests in served:
        if case.name == HEADLINE:
            found = by_request(run, requests)
            rows.append([run.name, f"{len(run.requests):,}", *(f"{found[metric]:.1f}" for metric in METRICS)])
    return table(("run", "requests", *(metric.upper() for metric in METRICS)), rows)


def page(served: Sequence[Served], folder: Path, picture: str) -> str:
    """The page. folder: of the measured runs. picture: its address."""
    published = peers(pd.read_csv(folder / "peers.csv"))
    errors = errors_of(served)
    runs = {run.name: run for run, _, _ in served}
    headlined = [(run, requests) for run, case, requests in served if case.name == HEADLINE]
    terms = TERMS.format(asynchronous=ASYNCHRONOUS.source, synchronous=SYNCHRONOUS.source, front_end=FRONT_END_SOURCE)
    judged = client_side.study(headlined)
    parts = [
        HEAD.format(runs=len(runs), gpus=len({run.gpu for run in runs.values()})),
        HYPOTHESES, verdicts(errors, judged), terms,
        f"![Measured against simulated]({picture})\n",
        "## By run\n\nStages follow each other in one run. Range: over what is not known of the run.\n",
        by_run(errors, False), "Runs in which clients gave up on requests, of those that finished:\n",
        by_run(errors, True),
        "## By GPU and by model\n\nMedian absolute errors of the runs' means, %.\n",
        by_kind(errors, "gpu"), by_kind(errors, "model"),
        PEERS,
        beside_peers(errors, published),
        "## Each assumption changed alone\n\nMedian absolute errors of means over runs, %.\n",
        by_case(errors), asynchronous_or_not(errors), wrong_terms.section(headlined, folder),
        client_side.section(judged), FITTED,
        ttft_parts.section([run for run, _ in headlined], judged, folder),
        "## Request by request\n\nMedian over a run's requests of the absolute error of one, headline, %.\n",
        of_requests(served),
    ]  # fmt: skip
    return "\n".join(parts)


def main(target: Path) -> None:
    folder = folder_of_runs()
    served = list(study(read_runs(folder), folder))
    picture = target.parents[1] / "images" / "measured.png"
    errors = errors_of(served)
    plot(errors[errors["case"] == HEADLINE], picture)
    target.write_text(page(served, folder, f"../images/{picture.name}"), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ServegymError as error:
        sys.exit(f"error: {error}")
