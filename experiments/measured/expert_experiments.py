"""Which term is wrong of simulated closed loops of models with experts: a part of the page."""

import pandas as pd

from experiments.measured.wrong_closed_terms import paragraph
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import HEADLINE

SKEWED, WHOLE = "skew 1.01", "experts whole"
MANY = 512  # clients

ROUTING = """**How tokens choose experts.** When 16 to 64 tokens choose evenly, nearly all experts are read; by a
power law fewer are, and in long prefills the busiest one decides. Median error of TPOT and TTFT, %, by
routing; points of InferenceX with fewer than 512 clients:
"""
PREFILLS = """**Prefills of models with experts are slower than their tables**, by a share that is about the same for
all numbers of clients and grows in milliseconds with the prompt: it is time of the GPUs, not of a
client's side, which would be so many milliseconds. Median TTFT by prompt, fewer than 512 clients:
"""
KERNELS = """gpt-oss-120b ran with Marlin's kernels (VLLM_MXFP4_USE_MARLIN, in the scripts), which widen 4 bits to 16
in each product; the tables have Triton's. MiniMax-M2.5 on eight GPUs has experts by the data sheet, of a
width that block quantisation does not divide; with experts spread whole, by the table: TPOT {cut:.0f} %
off without it, {whole:.0f} % with it (median absolute error of the headline, and of *experts whole*,
same points).
"""
LIMITED = """**512 clients** (gpt-oss-120b on H100, vLLM 0.11.2): the measured TPOT is that of far fewer
clients, and TTFT is a long wait. So the engine took far fewer requests at a time than the scripts' max_num_seqs,
the number of clients, lets it. How many is not known, so the setting stays as stated; ms:
"""
STEADY = """**NVIDIA's Qwen3-235B**: the measured TPOT hardly depends on clients and lengths ({low:.0f} to {high:.0f}
ms on two GPUs, 4 to 20 clients, prompts of 1000 to 8000 tokens), as where a constant part decides. No
term of a batch is like that, but the CPU's, and 0.9 ms is what it has here. None of the cases above
brings these points nearer by as much as a point.
"""


def section(errors: pd.DataFrame) -> str:
    """The part of the page."""
    experts = errors[errors["experts"]]
    head = experts[experts["case"] == HEADLINE]
    steady = head[head["model"].str.contains("Qwen3-235B") & (head["tp"] == 2)]["tpot_s"]
    parts = [
        paragraph(ROUTING), routing(experts), paragraph(PREFILLS), prefills(head),
        paragraph(KERNELS, **cut_or_whole(experts)), paragraph(LIMITED), limited(head),
    ]  # fmt: skip
    if len(steady):
        parts.append(paragraph(STEADY, low=1e3 * steady.min(), high=1e3 * steady.max()))
    return "\n".join(parts)


def routing(experts: pd.DataFrame) -> str:
    """Median signed errors by number of clients, even and skewed."""
    rows = []
    part = experts[(experts["source"] == "InferenceX") & (experts["clients"] < MANY)]
    for clients, group in part.groupby("clients"):
        cells = [
            f"{group[group['case'] == case][f'{metric}_error'].median():+.0f}"
            for metric in ("tpot", "ttft")
            for case in (HEADLINE, SKEWED)
        ]
        rows.append([str(clients), str(int((group["case"] == HEADLINE).sum())), *cells])
    return table(("clients", "points", "TPOT even", f"TPOT {SKEWED}", "TTFT even", f"TTFT {SKEWED}"), rows)


def prefills(head: pd.DataFrame) -> str:
    """Median TTFT, measured and simulated, by model and prompt."""
    rows = []
    for (model, isl), group in head[head["clients"] < MANY].groupby(["model", "isl"]):
        medians = group[["ttft_s", "simulated_ttft_s", "ttft_error"]].median()
        rows.append([
            model.split("/")[-1], str(isl), str(len(group)), f"{1e3 * medians['ttft_s']:.0f}",
            f"{1e3 * medians['simulated_ttft_s']:.0f}", f"{medians['ttft_error']:+.0f}",
        ])  # fmt: skip
    return table(("model", "isl", "points", "TTFT, ms", "simulated", "error, %"), rows)


def cut_or_whole(experts: pd.DataFrame) -> dict[str, float]:
    """Median absolute error of TPOT of MiniMax-M2.5 on eight GPUs, percent: as its source says, and spread whole."""
    part = experts[experts["model"].str.contains("MiniMax") & (experts["tp"] == 8)]
    return {
        name: float(part[part["case"] == case]["tpot_error"].abs().median())
        for name, case in (("cut", HEADLINE), ("whole", WHOLE))
    }


def limited(head: pd.DataFrame) -> str:
    """Points of so many clients, and with how many others of the same configuration and lengths have this TPOT."""
    rows = []
    for row in head[head["clients"] == MANY].to_dict("records"):
        same = (head[["configuration", "isl", "osl"]] == [row["configuration"], row["isl"], row["osl"]]).all(axis=1)
        others = head[same & (head["clients"] < MANY)]
        near = others.loc[(others["tpot_s"] - row["tpot_s"]).abs().idxmin()]
        rows.append([
            f"{row['configuration']}, {row['isl']} / {row['osl']}", f"{1e3 * row['tpot_s']:.1f}",
            f"{1e3 * near['tpot_s']:.1f} with {near['clients']} clients", f"{1e3 * row['ttft_s']:,.0f}",
        ])  # fmt: skip
    return table(("point", "TPOT of 512", "nearest", "TTFT"), rows)
