"""ProServe, Figure 15: what each part of SlideBatching is worth."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Setting, Size, claim, drawing
from experiments.claims.harness.measures import serve
from experiments.claims.harness.rows import mean_where, over_loads

WHOLE = "slide-batching"
ABLATIONS = ("only-deadline", "only-density", "no-latency")
LOADS = (0.3, 0.5, 0.7, 1.0, 1.4)
LOW, HIGH = (0.3, 0.5, 0.7), (1.0, 1.4)
STATIC = f"{WHOLE}:ablation=no-latency"  # 512 tokens
EXACT = "the device takes what the estimator says"
# What the whole may have lost by: the size of the static budget, the shortest batches, the order of the public code.
OTHERS = {
    "no-latency with other token budgets": {
        f"whole - no-latency of {tokens} tokens": (WHOLE, f"{STATIC},max_num_batched_tokens={tokens}")
        for tokens in (256, 1024, 2048)
    },
    "least latency budget eta (default 0.9 of the TPOT SLO)": {
        f"whole with eta of {1e3 * eta:g} ms - no-latency": (f"{WHOLE}:eta={eta:g}", STATIC) for eta in (0.05, 0.1)
    },
    "hopeless requests set no budget": {"hopeless=exclude - hopeless=include": (f"{WHOLE}:hopeless=exclude", WHOLE)},
    "the public code": {
        "variant=xllm - variant=paper": (f"{WHOLE}:variant=xllm", WHOLE),
        "variant=xllm, starved requests not first - variant=paper": (
            f"{WHOLE}:variant=xllm,starve_threshold=1000",
            WHOLE,
        ),
    },
    EXACT: {"whole - no-latency": (WHOLE, STATIC)},
}
IN_CONTROL = 0.95  # TDG ratio up to which only-deadline has the load in hand
METRICS = {
    "": "tdg_ratio",
    "SLO attainment instead of the TDG ratio": "slo_attainment",
    "attainment by the deadlines of the first and last token": "deadline_attainment",
}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    ablated = [f"{WHOLE}:ablation={ablation}" for ablation in ABLATIONS]
    for load in LOADS:
        for seed in size.seeds:
            for scheduler in (WHOLE, *ablated):
                yield Cell(*setting, scheduler, load, seed, size.requests_of(setting))
            for examines, pairs in OTHERS.items():
                for scheduler in (one for pair in pairs.values() for one in pair):
                    yield Cell(
                        *setting, scheduler, load, seed, size.requests_of(setting), exact_estimator=examines == EXACT
                    )


def measured_at(rows: pd.DataFrame, column: str, scheduler: str, exact_estimator: bool = False) -> np.ndarray:
    """float64[loads, seeds]."""
    return over_loads(rows, column, LOADS, scheduler=scheduler, exact_estimator=exact_estimator)


CURVES = {"SlideBatching": WHOLE, **{ablation: f"{WHOLE}:ablation={ablation}" for ablation in ABLATIONS}}
PICTURE = drawing.by_family({"tdg_ratio": "TDG ratio, share of the ideal gain"}, CURVES, LOADS, exact_estimator=False)


@claim("proserve-fig15", cells=cells, measure=serve, picture=PICTURE)
def judge(rows: pd.DataFrame) -> list[Check]:
    low, high = ([LOADS.index(load) for load in loads] for loads in (LOW, HIGH))
    checks = []
    for examines, column in METRICS.items():
        whole = measured_at(rows, column, WHOLE)
        ablated = {name: measured_at(rows, column, f"{WHOLE}:ablation={name}") for name in ABLATIONS}
        order = ablated["only-deadline"] - ablated["only-density"]
        checks += [
            *(
                Check(f"whole - {ablation}", (whole - measured).mean(axis=0), ABOVE_0, examines)
                for ablation, measured in ablated.items()
            ),
            Check("only-deadline - only-density, low loads", order[low].mean(axis=0), ABOVE_0, examines),
            Check("only-deadline - only-density, high loads", order[high].mean(axis=0), BELOW_0, examines),
        ]
        if not examines:
            in_control = ablated["only-deadline"].mean(axis=1) >= IN_CONTROL
            checks.append(
                Check(
                    "only-deadline - only-density",
                    mean_where(order, in_control),
                    ABOVE_0,
                    "another load axis: all loads at which only-deadline gains 95 %",
                )
            )
            for name, loads in (("low", low), ("high", high)):
                checks += [
                    Check(f"whole - {ablation}", (whole - measured)[loads].mean(axis=0), ABOVE_0, f"{name} loads alone")
                    for ablation, measured in ablated.items()
                ]
    for examines, pairs in OTHERS.items():
        for name, pair in pairs.items():
            one, other = (measured_at(rows, "tdg_ratio", scheduler, examines == EXACT) for scheduler in pair)
            checks.append(Check(name, (one - other).mean(axis=0), ABOVE_0, examines))
    return checks
