"""Families whose lengths a paper describes by a few figures without publishing the trace."""

from __future__ import annotations

import numpy as np

from servegym.traces import distributions
from servegym.traces.distributions import InverseCdf
from servegym.traces.families import FAMILIES, Family
from servegym.traces.generators import quantile_table

# Share, and prompts by mean and standard deviation (FlowPrefill, Table 1). The shape is our choice: lognormal or Gamma,
# whichever is closer to the 99 % point in the table (3040, 2764, 16635 and 22390).
FLOWPREFILL_TYPES: dict[str, tuple[float, InverseCdf]] = {
    "text": (0.68, distributions.lognormal_by_moments(590, 652)),
    "image": (0.08, distributions.lognormal_by_moments(532, 510)),
    "search": (0.20, distributions.gamma_by_moments(5976, 3456)),
    "file": (0.04, distributions.gamma_by_moments(6833, 5186)),
}
OUTPUTS_OF = "azure-conv"  # FlowPrefill prints no output lengths


def _independent(prompt: InverseCdf, output: InverseCdf, source: str) -> Family:
    return Family(
        2,
        lambda level: {"prompt_tokens": prompt(level[:, 0]), "output_tokens": output(level[:, 1])},
        {"source": source},
    )


def _flowprefill(level: np.ndarray) -> dict[str, np.ndarray]:
    """A request draws its type, its prompt, and two numbers for an output of OUTPUTS_OF."""
    ends = np.cumsum([share for share, _ in FLOWPREFILL_TYPES.values()])
    kind = np.searchsorted(ends[:-1], level[:, 0], "right").astype("i4")
    prompts = [prompt(level[:, 1]) for _, prompt in FLOWPREFILL_TYPES.values()]
    return {
        "prompt_tokens": np.choose(kind, prompts),
        "output_tokens": quantile_table(OUTPUTS_OF).lengths(level[:, 2:])["output_tokens"],
        "application": kind,
    }


FAMILIES.register("flowprefill")(
    Family(
        4,
        _flowprefill,
        {"source": f"FlowPrefill, Table 1 (mean and standard deviation of prompts by type); outputs of {OUTPUTS_OF}"},
        labels={"application": tuple(FLOWPREFILL_TYPES)},
    )
)

for _mean_prompt, _mean_output in ((4096, 1024), (512, 512)):
    FAMILIES.register(f"uniform-{_mean_prompt}-{_mean_output}")(
        _independent(
            distributions.uniform(1, 2 * _mean_prompt), distributions.uniform(1, 2 * _mean_output), "PolyServe, Table 1"
        )
    )

# PolyServe, Table 1: prompts and outputs at POLYSERVE_LEVELS. Log-uniform between two quantiles and from 1 to the
# first; cut at the last, as the table does not describe the longest hundredth. Independence of the two is our choice.
POLYSERVE_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
POLYSERVE_TRACES = {
    "mooncake-conversation": ((2320, 6923, 15400, 27571, 39583, 85401), (159, 350, 472, 597, 698, 1136)),
    "mooncake-synthetic": ((277, 11587, 23286, 38737, 49009, 66458), (10, 68, 250, 390, 522, 768)),
    "mooncake-toolagent": ((3228, 6346, 7468, 16818, 26175, 61824), (12, 30, 355, 506, 600, 890)),
    "lmsys": ((12, 28, 82, 301, 430, 750), (39, 140, 338, 512, 519, 853)),
    "sharegpt": ((16, 36, 158, 818, 1613, 3421), (131, 280, 445, 682, 846, 1001)),
    "splitwise": ((396, 1019, 1186, 2735, 4083, 4142), (85, 130, 395, 425, 451, 601)),
}
for _name, (_prompts, _outputs) in POLYSERVE_TRACES.items():
    FAMILIES.register(f"polyserve-{_name}")(
        _independent(
            distributions.by_quantiles(POLYSERVE_LEVELS, _prompts),
            distributions.by_quantiles(POLYSERVE_LEVELS, _outputs),
            f"PolyServe, Table 1, {_name} (quantiles; interpolation and independence are ours)",
        )
    )

for _name, _prompt, _output, _source in (
    ("qoserve-conv", distributions.lognormal_by_quantiles(928, 3830), distributions.lognormal_by_quantiles(41, 342),
     "QoServe, Table 2, Az-Conv (median and 90 % quantile; lognormal is ours)"),
    ("qoserve-code", distributions.lognormal_by_quantiles(1930, 6251), distributions.lognormal_by_quantiles(8, 43),
     "QoServe, Table 2, Az-Code (median and 90 % quantile; lognormal is ours)"),
    ("qoserve-long", distributions.uniform(10_000, 10_000), distributions.uniform(500, 500),
     "QoServe, section 4.5.1 (10K prompt and 500 output tokens in every request)"),
    ("semantic", distributions.uniform(1, 499), distributions.uniform(1, 499),
     "semantic scheduling, section 4.1; Wenyueh/latency_optimization_with_priority_constraints (simulation)"),
):  # fmt: skip
    FAMILIES.register(_name)(_independent(_prompt, _output, _source))
