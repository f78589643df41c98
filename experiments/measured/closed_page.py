"""Write docs/results/measured-closed-loops.md and its picture, from the measured closed loops under $SERVEGYM_DATA:

python -m experiments.measured.closed_page docs/results/measured-closed-loops.md
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured import cpu_study, expert_experiments, few_points, ranking, wrong_closed_terms
from experiments.measured.closed_loops import Loop, read_loops
from experiments.measured.closed_settings import NVIDIA, OF_INFERENCEX
from experiments.measured.closed_study import AFTERWARDS, CASES, GOALS, METRICS, TAU_GOAL, medians, study
from experiments.measured.expert_experiments import SKEWED
from experiments.measured.known_terms import SYNCHRONOUS
from experiments.measured.loops_plot import plot_loops
from experiments.measured.page import signed
from experiments.measured.public_runs import folder_of_runs
from servegym.errors import ServegymError
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import HEADLINE

PAGE = "docs/results/measured-closed-loops.md"
POINTS_ASKED = 200
HEAD = """# Closed loops measured on GPUs, and choosing by simulation

Written by `SERVEGYM_DATA=DATA python -m experiments.measured.closed_page {page}`;
do not edit. `python -m experiments validate --closed-loops` prints the medians. Runs request by request:
[measured](measured.md).

{points} points of vLLM on H100 and H200, {dense} of dense models and {experts} of models with experts, collected by
aiconfigurator (`silicon_sample.csv`, Apache-2.0; results of InferenceX, and some of NVIDIA's own): how long the first
token and each further one take with so many clients, each of which sends its next request when it has its answer. Each
is simulated: as many clients, scheduler `vllm-v1`, batch times by
[`profile from-config`](../device_reference.md#of-any-model) from tables of kernels. **Nothing is fitted to these
points**, but in [one part](#which-term-is-wrong) that says so, **and none of those selected is left out.** Errors are
signed, simulated less measured, in percent of the measured.

## Stated before

Goals, selection, assumptions and cases were committed before any point was simulated (the first commit of
`closed_study.py`). The measured columns had been looked at by then; no setting comes from them.
That Qwen3-32B is too slow for 8 bits, where its precision is not stated, was known from the README of the data.
Models with experts came later, with the dense points' errors known; what is assumed of them, their cases and hypotheses
3 to 5 were committed before any of them was simulated (the first commit of `closed_settings.py`), and no measured time
of theirs had been looked at.

1. Median absolute error over at least {asked} points: TPOT at most 12 %, TTFT at most 30 %.
2. Kendall's tau between measured and simulated order at least 0.9: mean over groups of three and more configurations of
   one model, with the same lengths and number of clients; by TPOT, by TTFT, and by throughput a GPU.
3. Models with experts alone keep to the limits of 1.
4. Their TPOT is nearer with tokens that choose experts by a power law (skew 1.01) than evenly.
5. CPU time of a step for each request, fitted to the synchronous points of other models, brings TPOT nearer.
"""
SELECTION = """## Which points

The rule is `CLAUSES` in `experiments/measured/closed_loops.py`. The goal asks for {asked} dense points; there are
{dense}, all of which are taken, and models with experts besides.
"""
TERMS = (
    "**Batch times**: aiconfigurator's tables (vLLM 0.24, kernel by kernel) of that GPU, model, tensor parallelism and "
    "precision.",
    *(f"**InferenceX, {model.split('/')[-1]}**: {settings.words}." for model, settings in OF_INFERENCEX.items()),
    f"**NVIDIA**: {NVIDIA.words}.",
    "**Experts**: tables of the fused experts of one layer, with tokens routed evenly; a power law is varied. Where no "
    "table has them cut so (MiniMax-M2.5 on eight GPUs: 192 of 1536 a GPU), by the data sheet.",
    "**KV blocks**: 0.9 of the memory less weights and 2.5 GiB a GPU.",
    "**CPU**: with asynchronous scheduling (InferenceX, by its scripts or the version) its time is hidden, and a "
    f"request that comes waits one step more. Else synchronous, {SYNCHRONOUS.source}.",
    "An engine begins empty and warm. A warm-up that ends before the measured requests begin changes nothing in that.",
    "**Mean or median**, and how many requests were sent, is not stated (README of the data): means of all requests.",
    "Each of the cases below changes one assumption; all but the data sheet belong to the ranges. "
    f"{', '.join(f'*{name}*' for name in AFTERWARDS)} were added when the errors of the headline were known, to find "
    "their cause. The headline stayed as it was.",
)
CHOOSING = """## Choosing

**Among configurations** (GPU, tensor parallelism) with the same model, lengths and clients. Throughput a GPU: clients /
(TTFT + (osl - 1) TPOT) / GPUs. Tau: mean over groups of three and more; pairs in the right order and regret (what was
measured of the simulated best, in percent worse than the measured best) over groups of two and more. *GPUs alone*: a
control that knows nothing but their number; times fall with its square root.
"""
LIMITS = """**The number of clients under a limit** of TPOT (15, 20, 30, 50 ms; where some keep it and some do not): the
most throughput a GPU that by simulation keeps it. In one series, or over all configurations of a model and its lengths.
Regret: where the chosen keeps the limit in the measurement too.
"""


def verdicts(errors: pd.DataFrame, cpu: cpu_study.Outcome) -> str:
    """The hypotheses' outcomes."""
    headlined, rows = errors[errors["case"] == HEADLINE], []
    parts = [("", headlined), (", dense", headlined[~headlined["experts"]])]
    parts += [(f", {source}", group) for source, group in headlined.groupby("source")]
    for name, part in parts:
        found = medians(part)
        for metric in METRICS:
            met = "met" if found[metric] <= GOALS[metric] else "missed"
            what = f"1, {metric.upper()}, {len(part)} points{name}"
            rows.append([what, f"{found[metric]:.1f} %", f"{GOALS[metric]:.0f} %", met])
    enough = "met" if len(headlined) >= POINTS_ASKED else "missed: there are no more"
    rows.append(["1, points", str(len(headlined)), str(POINTS_ASKED), enough])
    dense = int((~headlined["experts"]).sum())
    rows.append(["1, dense points", str(dense), str(POINTS_ASKED), "missed: there are no more"])
    for name, part in (("", headlined), (", dense", headlined[~headlined["experts"]])):
        for metric, tau in taus(part).items():
            rows.append([f"2, tau by {NAMES[metric]}{name}", f"{tau:.3f}", str(TAU_GOAL), _met(tau >= TAU_GOAL)])
    for metric in METRICS:
        error = medians(headlined[headlined["experts"]])[metric]
        goal = f"{GOALS[metric]:.0f} %"
        what = f"3, {metric.upper()}, models with experts"
        rows.append([what, f"{error:.1f} %", goal, _met(error <= GOALS[metric])])
    even, skewed = (errors[(errors["case"] == case) & errors["experts"]] for case in (HEADLINE, SKEWED))
    before, after = medians(even)["tpot"], medians(skewed)["tpot"]
    rows.append(["4, TPOT, experts, skew 1.01", f"{after:.1f} %", f"below {before:.1f} %", _met(after < before)])
    of_models = [one for one in cpu.judged if one.by == "model"]
    before, after = (cpu_study.medians(of_models, when, "tpot") for when in ("before", "after"))
    what = f"5, TPOT, {len(of_models)} synchronous points, CPU time a request of other models"
    rows.append([what, f"{after:.1f} %", f"below {before:.1f} %", _met(after < before)])
    return table(("hypothesis", "found", "goal", ""), rows)


def _met(holds: bool) -> str:
    return "met" if holds else "missed"


NAMES = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput a GPU"}


def taus(points: pd.DataFrame) -> dict[str, float]:
    """Mean tau of each metric over groups of LEAST_ORDERED configurations and more."""
    orders = ranking.orders(points)
    large = orders[orders["size"] >= ranking.LEAST_ORDERED]
    return {metric: float(large[large["metric"] == metric]["tau"].mean()) for metric in ranking.ORDERED_BY}


def medians_of(part: pd.DataFrame) -> list[str]:
    """Median absolute and signed errors, TPOT and TTFT."""
    absolute = medians(part)
    return [
        cell for metric in METRICS for cell in (f"{absolute[metric]:.1f}", signed(part[f"{metric}_error"].median()))
    ]


def by_case(errors: pd.DataFrame) -> str:
    """Each assumption changed alone, and beside it the headline on the same points."""
    rows = []
    for case in CASES:
        part = errors[errors["case"] == case.name]
        same = errors[(errors["case"] == HEADLINE) & errors["point"].isin(set(part["point"]))]
        beside = " / ".join(f"{medians(same)[metric]:.1f}" for metric in METRICS)
        rows.append([case.name, case.what, str(len(part)), *medians_of(part), beside])
    return table(("case", "what", "points", *MEDIANS, "headline there, abs"), rows)


MEDIANS = tuple(f"{metric.upper()} {what}" for metric in METRICS for what in ("abs", "signed"))


def by_kind(errors: pd.DataFrame) -> str:
    """The headline by what points are; of three and more."""
    rows, headlined = [], errors[errors["case"] == HEADLINE]
    for columns in (["source"], ["model", "configuration"], ["isl"], ["osl"], ["clients"]):
        for key, part in headlined.groupby(columns):
            if len(part) > 2:
                name = " ".join([*columns[:1] * (len(columns) == 1), *(str(one).split("/")[-1] for one in key)])
                rows.append([name, str(len(part)), *medians_of(part)])
    return table(("of", "points", *MEDIANS), rows)


def choosing(errors: pd.DataFrame) -> str:
    """Order and regret among configurations, by simulation, by data sheet, and by the number of GPUs."""
    headlined, rows = errors[errors["case"] == HEADLINE], []
    alone = headlined["tp"] ** -0.5
    control = headlined.assign(simulated_tpot_s=alone, simulated_ttft_s=alone)
    sheets = errors[errors["case"] == "roofline"]
    dense = headlined["experts"].to_numpy() == 0
    parts = ((HEADLINE, headlined), ("dense", headlined[dense]), ("with experts", headlined[~dense]))
    for name, points in (*parts, ("roofline", sheets), ("GPUs alone", control)):
        tau, orders = taus(points), ranking.orders(points)
        for metric in ranking.ORDERED_BY:
            part = orders[orders["metric"] == metric]
            large = part[part["size"] >= ranking.LEAST_ORDERED]
            rows.append([
                f"{name}, {NAMES[metric]}", f"{tau[metric]:.2f}", f"{large['tau'].min():.2f}", str(len(large)),
                f"{part['right'].sum()} of {part['pairs'].sum()}", f"{(part['regret'] == 0).sum()} of {len(part)}",
                f"{part['regret'].mean():.1f}", f"{part['regret'].max():.1f}",
            ])  # fmt: skip
    columns = ("order", "tau", "least", "groups", "pairs right", "best chosen", "mean regret, %", "largest, %")
    return table(columns, rows)


def _median_and_largest(values: list[float]) -> str:
    return f"{np.median(values):.1f} / {max(values):.1f}" if values else "-"


def under_limits(errors: pd.DataFrame) -> str:
    """How good the number of clients is that the simulation chooses under a limit."""
    headlined, rows = errors[errors["case"] == HEADLINE], []
    for name, by in (("of a series", ["series"]), ("and configuration", ["model", "isl", "osl"])):
        found = ranking.choices(headlined, by)
        over = [choice.over for choice in found if choice.over > 0]
        rows.append([
            f"clients {name}", str(len(found)), str(sum(choice.right for choice in found)),
            _median_and_largest([choice.regret for choice in found if np.isfinite(choice.regret)]),
            str(len(over)), _median_and_largest(over), str(sum(choice.none for choice in found)),
        ])  # fmt: skip
    columns = ("choice", "asked", "best", "regret, % (median / largest)", "over the limit",
               "by, % (median / largest)", "none found")  # fmt: skip
    return table(columns, rows)


def all_points(errors: pd.DataFrame) -> str:
    """Every point, with the range over what is not known of it."""
    unknown = {case.name for case in CASES if case.unknown}
    ranges = errors[errors["case"].isin(unknown)].groupby("point")
    low, high = ranges[[f"{m}_error" for m in METRICS]].min(), ranges[[f"{m}_error" for m in METRICS]].max()
    rows = []
    for row in errors[errors["case"] == HEADLINE].to_dict("records"):
        cells = []
        for metric in METRICS:
            name, point = f"{metric}_error", row["point"]
            cells += [f"{1e3 * row[f'{metric}_s']:.1f}", f"{1e3 * row[f'simulated_{metric}_s']:.1f}"]
            cells.append(f"{signed(row[name])} ({signed(low[name][point])} to {signed(high[name][point])})")
        what = f"{row['model'].split('/')[-1]}, {row['configuration']}"
        rows.append([what, f"{row['isl']} / {row['osl']}", str(row["clients"]), *cells])
    heads = [f"{metric.upper()}{what}" for metric in METRICS for what in (", ms", " simulated", " error (range), %")]
    return table(("point", "isl / osl", "clients", *heads), rows)


def selected(counts: Sequence[tuple[str, int, int]]) -> str:
    return table(("clause", "leaves out", "stay"), [[what, f"{out:,}", f"{stay:,}"] for what, out, stay in counts])


def page(
    errors: pd.DataFrame, cpu: cpu_study.Outcome, loops: Sequence[Loop], counts: Sequence[tuple[str, int, int]],
    folder: Path, picture: str,
) -> str:  # fmt: skip
    """The page. errors: of `study`. folder: of the measured runs. picture: its address."""
    terms = "\n".join(textwrap.fill(f"- {term}", 120, subsequent_indent="  ", break_on_hyphens=False) for term in TERMS)
    dense = sum(not loop.experts for loop in loops)
    parts = [
        HEAD.format(points=len(loops), dense=dense, experts=len(loops) - dense, asked=POINTS_ASKED, page=PAGE),
        verdicts(errors, cpu), SELECTION.format(asked=POINTS_ASKED, dense=dense), selected(counts),
        f"## What is assumed\n\n{terms}\n",
        f"![Measured against simulated]({picture})\n",
        "## Each assumption changed alone\n\nMedian errors over points, %.\n", by_case(errors),
        "## By source, configuration, lengths and clients\n\nHeadline, median errors, %; of three points and more.\n",
        by_kind(errors), CHOOSING, choosing(errors), LIMITS, under_limits(errors),
        wrong_closed_terms.section(errors[~errors["experts"]], loops, folder, cpu_study.section(cpu)),
        expert_experiments.section(errors), few_points.section(errors),
        "## Every point\n\nRange: over what is not known of the point.\n", all_points(errors),
    ]  # fmt: skip
    return "\n".join(parts)


def main(target: Path) -> None:
    folder = folder_of_runs()
    loops, counts = read_loops(folder)
    errors = study(loops, folder)
    picture = target.parents[1] / "images" / f"{target.stem}.png"
    plot_loops(errors[errors["case"] == HEADLINE], picture)
    cpu = cpu_study.study(cpu_study.Points(loops, folder))
    target.write_text(page(errors, cpu, loops, counts, folder, f"../images/{picture.name}"), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ServegymError as error:
        sys.exit(f"error: {error}")
