"""Write docs/results/measured-latent-attention.md, from the measured closed loops under $SERVEGYM_DATA:

python -m experiments.measured.library_page docs/results/measured-latent-attention.md
python -m experiments.measured.library_page docs/results/measured-blackwell.md --blackwell
python -m experiments.measured.library_page docs/results/measured-engines.md --engines
"""

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured import ranking
from experiments.measured.known_terms import FRONT_END
from experiments.measured.library_study import (
    BLACKWELL_CLAUSES,
    CLAUSES,
    ORDERS,
    OTHER_ENGINES_CLAUSES,
    PREFILLS_FIRST,
    Clauses,
    select,
    study,
)
from experiments.measured.page import signed
from experiments.measured.public_runs import folder_of_runs
from servegym.errors import ServegymError
from servegym.evaluation.markdown import table
from servegym.latency_models.step_models.library import PACKAGE, library_version

GOALS = {"tpot": 15.0, "ttft": 25.0}  # median absolute error, percent
DENSE_TPOT_GOAL = 10.0
TAU_GOALS = {"tpot": 0.93, "throughput": 0.93, "ttft": 0.85}
METRICS = tuple(GOALS)
FEW_CLIENTS, MANY_CLIENTS = 4, 64
HTTP_S = FRONT_END.before_s + FRONT_END.after_s
OF_CLIENTS = f"""Medians. *Error with HTTP* adds {1e3 * HTTP_S:.1f} ms to each simulated time:
what a front end takes before the queue and after the engine, as others have fitted it to runs over HTTP on H100 hosts,
none of which is a point here (`FRONT_END` of `known_terms.py`). The goals above are judged without it: it was added
when they had been missed.
"""
OF_PARTS = """Medians, ms, so the parts do not add up to the whole. *Client*: nothing of it is simulated.
*Admission*: until the first step starts that was formed after the request had come. *Queue*: from then until the
request is first in a step, since there was no room. *Prefill*: from then to its first token. Of the measured time only
the sum is known. Runs of more than five million output tokens are left out, as their timelines are too long.
"""
OF_ORDERS = f"""SGLang's points in both orders, with the same step times: prefills alone and first, and decodes where
there are none (`{PREFILLS_FIRST}`, as SGLang does by default), or both in one batch (`vllm-v1`).
"""
BY = {"simulated": "simulated", "own": "the library"}
HEAD = """# Closed loops of models with latent and linear attention

Written by `SERVEGYM_DATA=DATA python -m experiments.measured.library_page docs/results/measured-latent-attention.md`,
with {package} {version}; do not edit.

{points} points of DeepSeek-R1 and -V3, Kimi-K2.5, GLM-5 and Qwen3.5-397B-A17B under vLLM, SGLang and TensorRT-LLM on
H200, from the collection of [the other closed loops](measured-closed-loops.md). Each is simulated as those are, with
[`SYSTEM:MODEL`](../device_reference.md#any-model-and-gpu-by-name) as the device, beside what the library that gave the
step times predicts of the same point by itself (`run_agg`, one prompt a step). Nothing is fitted to these points;
the library says in its source that its wait for prefills and its launch times of vLLM were fitted to measured points of
this kind. Errors are simulated less measured, in percent of the measured: medians of absolute, and of signed ones.

- **The engine**: `vllm-v1` with 8,192 tokens a step and asynchronous scheduling under all three; SGLang and
  TensorRT-LLM form other batches, and nothing of that is modelled. No CPU time, no HTTP.
- **Precisions**: weights as stated, keys and values in 16 bits as the config says; whether a point had them in 8, or
  drafted tokens (MTP), is not stated.
- **Versions**: the library's newest tables of an engine, not the version that was measured.
- **Lengths** from 80 % of the stated ones up (InferenceX), 10 requests a client, means.

Goals: TPOT at most {tpot:g} %, TTFT at most {ttft:g} %. A look at 21 points of all GPUs, B200 and B300 among them, came
first (TPOT 20 % off in the median, TTFT 55 %); after it nothing was changed but that the points are those of H100 and
H200, as in the other page, since making the profiles of all took too long. That 20 points are listed as of R1 and of V3
was seen by their equal errors; they are taken once.
"""
BLACKWELL_HEAD = """# Closed loops on B200 and B300

Written by
`SERVEGYM_DATA=DATA python -m experiments.measured.library_page docs/results/measured-blackwell.md --blackwell`,
with {package} {version}; do not edit.

{points} points of vLLM on B200 and B300, of dense models and models with experts or latent attention, from the
collection of [the other closed loops](measured-closed-loops.md). Each is simulated as [those of latent
attention](measured-latent-attention.md) are, with
[`SYSTEM:MODEL`](../device_reference.md#any-model-and-gpu-by-name) as the device, beside what the library that gave the
step times predicts of the same point by itself. Nothing is fitted to these points. Errors are simulated less measured,
in percent of the measured: medians of absolute, and of signed ones.

What is assumed is what that page says: 8,192 tokens a step, asynchronous scheduling, weights as stated (`fp4`: NVFP4,
or the checkpoint's MXFP4), keys and values in 16 bits, no drafts, no CPU time. Rule and goals were committed before any
point of this page was simulated, but for those of the 21 that the other page's first look was at. One point of four
came first (66, TPOT 13.9 % off in the median, TTFT 32.3 %); since then nothing has changed but that all are taken.
Goals: TPOT at most {tpot:g} %, TTFT at most {ttft:g} %.

The time to the first token is too short: with up to 64 clients by some [tens of
milliseconds](#the-time-to-the-first-token-by-the-number-of-clients). A server also works outside of batches, and
nothing of that is simulated; the time for HTTP in other runs is a part of what lacks. What the rest is no point says.
With more than 64 clients points are off to both sides.
"""
ENGINES_HEAD = """# Closed loops of SGLang and TensorRT-LLM

Written by
`SERVEGYM_DATA=DATA python -m experiments.measured.library_page docs/results/measured-engines.md --engines`,
with {package} {version}; do not edit.

{points} points of SGLang and TensorRT-LLM on H100, H200, B200, B300 and GB200, of dense models and models with experts
or latent or linear attention: all of the collection of [the other closed loops](measured-closed-loops.md) that the rule
below takes, but for those on [the page of latent attention](measured-latent-attention.md). Each is simulated as [those
on Blackwell](measured-blackwell.md) are, beside what the library that gave the step times predicts of the same point by
itself. Nothing is fitted to these points. Errors are simulated less measured, in percent of the measured: medians of
absolute, and of signed ones.

- **SGLang** runs prefills alone and before decodes (`get_next_batch_to_run` in its scheduler), up to 8,192 tokens:
  simulated as `vllm-fcfs`. What `vllm-v1` gives instead is [below](#the-order-of-sglang).
- **TensorRT-LLM** batches prefills and decodes together: simulated as `vllm-v1`, 8,192 tokens.
- **Both** prepare a step while one runs (overlap scheduling, on by default): as asynchronous scheduling.
- **Else** as on those pages: weights as stated (`fp4`: NVFP4, or the checkpoint's MXFP4), keys and values in 16 bits,
  no drafts, no CPU time, no HTTP, the library's newest tables of an engine.

Rule, assumptions and goals were committed before any point of this page was simulated, but for those of the 21 that the
latent page's first look was at. A first run ended at a point of which the KV memory is estimated to hold less than a
request; no result of it was seen, and such points are left out since. Goals: TPOT at most {tpot:g} % (dense:
{dense:g} %), TTFT at most {ttft:g} %.
"""


@dataclass(frozen=True)
class Page:
    """One of the pages: its text, which points, and whose order their engines have."""

    head: str
    clauses: Clauses
    orders: Mapping[str, str] = field(default_factory=dict)


PAGES = {
    "": Page(HEAD, CLAUSES),
    "--blackwell": Page(BLACKWELL_HEAD, BLACKWELL_CLAUSES),
    "--engines": Page(ENGINES_HEAD, OTHER_ENGINES_CLAUSES, ORDERS),
}


def percent(points: pd.DataFrame, by: str, metric: str) -> pd.Series:
    return 100 * (points[f"{by}_{metric}"] / points[metric] - 1)


def errors(points: pd.DataFrame) -> list[str]:
    """Median absolute and signed error of each metric, simulated and the library's."""
    cells = []
    for metric in METRICS:
        for by in BY:
            error = percent(points, by, metric)
            cells.append(f"{error.abs().median():.1f} ({signed(error.median())})")
    return cells


def by_kind(points: pd.DataFrame) -> str:
    columns = ["model, engine, weights, GPUs", "points", *(f"{m.upper()}, {BY[by]}" for m in METRICS for by in BY)]
    rows = [["all", str(len(points)), *errors(points)]]
    for key, group in points.groupby(["model", "engine", "precision", "gpus"]):
        name = f"{str(key[0]).split('/')[-1]}, {', '.join(map(str, key[1:]))}"
        rows.append([name, str(len(group)), *errors(group)])
    return table(columns, rows)


def by_clients(points: pd.DataFrame) -> str:
    """The time to the first token by the number of clients: what the simulated one lacks, in ms and in percent, without
    and with the constants of HTTP."""
    columns = ["clients", "points", "measured", "simulated less measured", "error", "signed", "error with HTTP"]
    rows = []
    for low, high in ((1, 4), (5, 16), (17, 64), (65, 256), (257, 2**31), (1, 2**31)):
        some = points[points["clients"].between(low, high)]
        if some.empty:
            continue
        error, lacks_ms = percent(some, "simulated", "ttft"), 1e3 * (some["simulated_ttft"] - some["ttft"])
        with_http = percent(some.assign(simulated_ttft=some["simulated_ttft"] + HTTP_S), "simulated", "ttft")
        name = "all" if high - low > 2**30 and low == 1 else f"{low} and more" if high > 2**30 else f"{low} to {high}"
        rows.append([
            name, str(len(some)), f"{1e3 * some['ttft'].median():,.0f} ms", f"{lacks_ms.median():+,.0f} ms",
            f"{error.abs().median():.1f} %", f"{signed(error.median())} %", f"{with_http.abs().median():.1f} %",
        ])  # fmt: skip
    return table(columns, rows)


def by_parts(points: pd.DataFrame) -> str:
    """What the simulated time to the first token is made of, by engine and number of clients."""
    columns = ("engine", "clients", "points", "client", "admission", "queue", "prefill", "simulated", "measured")
    rows, known = [], points[points["prefill"].notna()]
    for engine, of_engine in known.groupby("engine"):
        for low, high in ((1, 4), (5, 16), (17, 64), (65, 2**31)):
            some = of_engine[of_engine["clients"].between(low, high)]
            if some.empty:
                continue
            parts = ("admission", "queue", "prefill", "simulated_ttft", "ttft")
            cells = [f"{1e3 * some[part].median():,.0f}" for part in parts]
            clients = f"{low} to {high}" if high < 2**31 else f"{low} and more"
            rows.append([str(engine), clients, str(len(some)), "0", *cells])
    return table(columns, rows, words=2)


def why(points: pd.DataFrame) -> str:
    """Which of the parts the error of the time to the first token can be in."""
    known = points[points["prefill"].notna()]
    few, many = known[known["clients"] <= FEW_CLIENTS], known[known["clients"] > MANY_CLIENTS]
    if few.empty:
        return ""
    parts = ("admission", "queue", "prefill", "ttft")
    admission, queue, prefill, measured = (1e3 * few[part].median() for part in parts)
    lacks = 1e3 * (few["ttft"] - few["simulated_ttft"])
    by_engine = ", ".join(f"{lacks[few['engine'] == e].median():,.0f} under {e}" for e in sorted(set(few["engine"])))
    error = percent(few, "simulated", "ttft").abs().median()
    text = (
        f"With up to {FEW_CLIENTS} clients hardly anything waits, and the error is {error:.1f} % already: of "
        f"{len(few)} points admission takes {admission:,.0f} ms, queue {queue:,.0f} and prefill {prefill:,.0f}, and "
        f"{measured:,.0f} ms are measured. What lacks is {lacks.median():,.0f} ms in the median ({by_engine}), of "
        f"which a client and HTTP take {1e3 * HTTP_S:.1f} ms as fitted elsewhere. The rest can only be prefill that is "
        "predicted too short, or time of the server outside of batches; no point tells these two apart."
    )
    if not many.empty:
        share, off = (100 * many["queue"] / many["simulated_ttft"]).median(), percent(many, "simulated", "ttft")
        text += (
            f" With more than {MANY_CLIENTS} clients queue is {share:.0f} % of the simulated time, and points are off "
            f"to both sides: {(off > 0).sum()} of {len(many)} are too long."
        )
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)) + "\n"


def by_order(points: pd.DataFrame, orders: Mapping[str, str]) -> str:
    """Errors of SGLang's points in the order of the page and in the other."""
    some = points[points["engine"].isin(list(ORDERS))]
    named = {"simulated": PREFILLS_FIRST, "other": "vllm-v1"}
    if not orders:
        named = {"other": PREFILLS_FIRST, "simulated": "vllm-v1"}
    rows = []
    for by, name in named.items():
        errors = (percent(some, by, metric) for metric in METRICS)
        rows.append([f"`{name}`", *(f"{e.abs().median():.1f} ({signed(e.median())})" for e in errors)])
    return table(("order", *(metric.upper() for metric in METRICS)), rows)


def verdicts(points: pd.DataFrame) -> str:
    rows = []
    for metric, goal in GOALS.items():
        found = percent(points, "simulated", metric).abs().median()
        rows.append([f"{metric.upper()}, median", f"{found:.1f} %", f"{goal:g} %", met(found <= goal)])
    if points["dense"].any():
        for name, goal, some in (
            ("dense", DENSE_TPOT_GOAL, points[points["dense"]]),
            ("others", GOALS["tpot"], points[~points["dense"]]),
        ):
            found = percent(some, "simulated", "tpot").abs().median()
            rows.append([f"TPOT, median, {name}", f"{found:.1f} %", f"{goal:g} %", met(found <= goal)])
    for metric, goal in TAU_GOALS.items():
        ordered = order(points, metric)
        rows.append([f"Kendall's tau by {metric}", f"{ordered:.3f}", f"{goal:g}", met(ordered >= goal)])
    return table(("", "found", "goal", ""), rows)


def met(keeps: bool) -> str:
    return "met" if keeps else "missed"


def order(points: pd.DataFrame, metric: str) -> float:
    """Mean of tau over models and lengths: of all their points, whatever the engine and the number of clients."""
    named = points.rename(columns={"gpus": "tp"} | {m: f"{m}_s" for m in METRICS})
    named = ranking.with_throughput(named.rename(columns={f"simulated_{m}": f"simulated_{m}_s" for m in METRICS}))
    measured, simulated = ranking.columns_of(metric)
    groups = [g for _, g in named.groupby(["model", "isl", "osl"]) if len(g) >= ranking.LEAST_ORDERED]
    return float(np.mean([ranking.tau(group[measured], group[simulated]) for group in groups]))


def page(
    points: pd.DataFrame,
    counts: list[tuple[str, int, int]],
    without: dict[str, str],
    version: str,
    of: Page = PAGES[""],
) -> str:
    clauses = table(("clause", "leaves out", "stay"), [[what, f"{out:,}", f"{stay:,}"] for what, out, stay in counts])
    parts = [
        of.head.format(package=PACKAGE, version=version, points=len(points), dense=DENSE_TPOT_GOAL, **GOALS),
        verdicts(points),
        "Tau: mean over models with the same lengths, of all their points; most of it is the number of clients.\n",
        "## By model and engine\n", by_kind(points),
        "## The time to the first token by the number of clients\n", OF_CLIENTS, by_clients(points),
        "## What the simulated time to the first token is made of\n", OF_PARTS, by_parts(points), why(points),
    ]  # fmt: skip
    if points["engine"].isin(list(ORDERS)).any():
        parts += ["## The order of SGLang\n", OF_ORDERS, by_order(points, of.orders)]
    parts += ["## Which points\n", clauses]
    if without:
        left = counts[-1][-1] - len(points)
        reasons = {name: said.removeprefix(f"device '{name}': ").split(" at /")[0] for name, said in without.items()}
        lines = [f"- `{name}`: {said}" for name, said in reasons.items()]  # without the path of a file
        parts.append(f"Not simulated, {left} points:\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main(target: Path, of: Page) -> None:
    chosen, counts = select(folder_of_runs(), of.clauses)
    points, without = study(chosen.to_dict("records"), of.orders)
    target.write_text(page(points, counts, without, library_version(), of), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), PAGES["".join(sys.argv[2:])])
    except ServegymError as error:
        sys.exit(f"error: {error}")
