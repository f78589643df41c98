"""Which term of a simulated closed loop is wrong: experiments on the errors, as a part of the page."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured.closed_loops import Loop
from experiments.measured.closed_study import model_of_loop
from experiments.measured.ranking import apart, columns_of, configurations
from experiments.profiles.shapes import token_flop
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import HEADLINE
from servegym.latency_models.building.gpus import gpu

SHARE_SHOWN = 0.4

INTRODUCTION = """**The CPU's time of a step grows with the batch** (NVIDIA's Qwen3-32B, synchronous). By how much the
measured time between tokens is longer than the simulated one, ms; prompts of 1024 tokens, answers of 1024
and more:
"""
KEYS = """**Keys and values of InferenceX's H100s seem to have 16 bits, not 8** as the scripts say. Three points wait
for KV memory in the measurement, and in the simulation only with 16 bits. On H200 8 bits are right: with 16
the model on one GPU would wait (TTFT, s; points where the precision matters most). Median absolute error of
TPOT on H100: {eight:.1f} % with 8 bits, {sixteen:.1f} % with 16.
"""
PROMPTS = """**NVIDIA's Llama-3.1-8B: the prompts seem not all to have been computed**, or fewer clients ran than
stated.
Share of the GPUs' 8-bit peak that the measured times stand for, if every prompt is computed; points above
{least:.1f}. Products alone, without attention, norms and all-reduces, reach 0.53 in the tables
(building/data_sheet.py). With 100 prompts in turn, found in the cache, the median error of TPOT is
{after:.0f} % instead of {before:.0f} %. Qwen3-32B would be further off then ({qwen:.0f} % instead of
{qwen_before:.0f} %), so its prompts seem to have differed. Nothing is stated of either.
"""
STEP = """**Clients in step** (NVIDIA's, fixed lengths). Clients whose answers are equally long end together and send
together, and their prompts wait for each other. Qwen3-32B on two GPUs, up to 32 clients, median error of
TTFT: prompts of 1024 tokens {even:+.0f} %, and {uneven:+.0f} % with uneven lengths; of 4096 tokens
{even_long:+.0f} and {uneven_long:+.0f} %. How far the measured clients were in step is not known; it moves
TTFT by more than the 30 % that these points miss. That prompts of 4096 tokens take longer than
simulated either way is not explained.
"""
TTFT = """**The order by TTFT**, which the number of GPUs alone gives better, is wrong mostly where two configurations
are nearly equal: of the {wrong} pairs in the wrong order {near} differ by less than 10 % in the
measurement. Most are H100 against H200 with as many GPUs: the measured H100s answer sooner, which no table
of kernels says. Nothing is known of their hosts.
"""


def paragraph(template: str, **values: float) -> str:
    """Filled in, and its lines broken anew."""
    return textwrap.fill(" ".join(template.format(**values).split()), 120, break_on_hyphens=False) + "\n"


def residuals(errors: pd.DataFrame) -> str:
    """Measured less simulated TPOT, ms, by configuration and clients, where steps are nearly all decodes."""
    part = errors[(errors["case"] == HEADLINE) & (errors["isl"] == 1024) & (errors["osl"] >= 1024)]
    part = part.assign(later=1e3 * (part["tpot_s"] - part["simulated_tpot_s"]))
    wide = part.pivot_table(index=["model", "configuration", "osl"], columns="clients", values="later", sort=True)
    rows = [
        [f"{model.split('/')[-1]}, {configuration}, {osl}", *("" if np.isnan(one) else f"{one:+.2f}" for one in line)]
        for (model, configuration, osl), line in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    return table(("configuration, osl", *(f"{clients} clients" for clients in wide.columns)), rows)


def keys(errors: pd.DataFrame) -> str:
    """Points of InferenceX whose clients' contexts are about as long as the KV memory: TTFT, by precision of keys."""
    wide = errors[errors["source"] == "InferenceX"].pivot_table(
        index="point", columns="case", values="simulated_ttft_s"
    )
    headlined = errors[(errors["case"] == HEADLINE) & errors["point"].isin(wide.index)].set_index("point")
    other = wide["16-bit keys"] / wide[HEADLINE]
    rows = []
    for point in headlined.index[(other[headlined.index] > 1.5).to_numpy()]:
        row = headlined.loc[point]
        what = f"{row['configuration']}, {row['isl']} / {row['osl']}, {row['clients']} clients"
        times = (row["ttft_s"], wide[HEADLINE][point], wide["16-bit keys"][point])
        rows.append([what, *(f"{one:.1f}" for one in times)])
    return table(("point", "measured", "8 bits", "16 bits"), rows)


def compute_share(loop: Loop, folder: Path) -> float:
    """Of the GPUs' peak, what the measured times say is computed, if every prompt is."""
    shape = model_of_loop(loop, folder).shape
    round_s = loop.ttft_s + (loop.osl - 1) * loop.tpot_s
    flop_per_s = loop.clients * (loop.isl + loop.osl) / round_s * token_flop(shape)
    return flop_per_s / (loop.tensor_parallel * gpu(loop.gpu).flop_per_s(shape.number_bytes))


def shares(loops: Sequence[Loop], folder: Path) -> str:
    rows = [
        [f"{loop.model.split('/')[-1]}, {loop.configuration}, {loop.isl} / {loop.osl}, {loop.clients} clients",
         f"{compute_share(loop, folder):.2f}"]
        for loop in loops
        if loop.precision == "fp8" and compute_share(loop, folder) > SHARE_SHOWN
    ]  # fmt: skip
    return table(("point", "share of the peak"), rows)


def _median(errors: pd.DataFrame, case: str, metric: str, query: str, absolute: bool = False) -> float:
    found = errors[errors["case"] == case].query(query)[f"{metric}_error"]
    return float((found.abs() if absolute else found).median())


def wrong_pairs(errors: pd.DataFrame, metric: str = "ttft", near: float = 0.1) -> tuple[int, int]:
    """Pairs of configurations in the wrong order, and those of them whose measured values are so near."""
    count = close = 0
    for _, group in configurations(errors[errors["case"] == HEADLINE]):
        measured, simulated = (group[column].to_numpy() for column in columns_of(metric))
        wrong = apart(measured) * apart(simulated) < 0
        first, second = np.triu_indices(len(group), 1)
        share = np.abs(apart(measured)) / np.minimum(measured[first], measured[second])
        count, close = count + int(wrong.sum()), close + int((wrong & (share < near)).sum())
    return count, close


def section(errors: pd.DataFrame, loops: Sequence[Loop], folder: Path, cpu: str = "") -> str:
    """The part of the page about dense models. errors: theirs. cpu: of `cpu_study`."""
    two = "model == 'Qwen/Qwen3-32B' and tp == 2 and isl == {} and clients <= 32"
    eight = "model == 'nvidia/Llama-3.1-8B-Instruct-FP8'"
    wrong, near = wrong_pairs(errors)
    step = {
        f"{name}{suffix}": _median(errors, case, "ttft", two.format(isl))
        for name, case in (("even", HEADLINE), ("uneven", "uneven lengths"))
        for suffix, isl in (("", 1024), ("_long", 4096))
    }
    qwen, h100 = "model == 'Qwen/Qwen3-32B'", "source == 'InferenceX' and gpu == 'h100'"
    tpot = {
        name: _median(errors, case, "tpot", query, True)
        for name, case, query in (
            ("before", HEADLINE, eight), ("after", "100 prompts", eight),
            ("qwen_before", HEADLINE, qwen), ("qwen", "100 prompts", qwen),
            ("eight", HEADLINE, h100), ("sixteen", "16-bit keys", h100),
        )
    }  # fmt: skip
    return "\n".join([
        "## Which term is wrong\n",
        paragraph(INTRODUCTION), residuals(errors), cpu,
        paragraph(KEYS, **tpot), keys(errors), paragraph(PROMPTS, least=SHARE_SHOWN, **tpot), shares(loops, folder),
        paragraph(STEP, **step), paragraph(TTFT, wrong=wrong, near=near),
    ])  # fmt: skip
