"""ProServe, Figure 7: the best token budget differs by policy and by load."""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Check, Range, claim, drawing, values
from experiments.claims.harness.grids import grid, longer
from experiments.claims.harness.measures import serve

BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)
POLICIES = {"EDF": "edf", "SJF": "sjf", "FCFS": "sarathi-fcfs"}
LOADS = {"medium": 0.7, "high": 1.0}
FALL = Range(low=0.02)  # of attainment, below the best budget: 2 points
FLAT = Range(high=0.02)
LOW_LOAD = 0.4  # for the examination: attainment is not near 0 there in any setting
METRICS = {"": "slo_attainment", "TDG ratio instead of SLO attainment": "tdg_ratio"}


def over_budgets(rows: pd.DataFrame, column: str, policy: str, load: float) -> np.ndarray:
    """float64[budgets, seeds]."""
    return np.array(
        [
            values(rows, column, load=load, scheduler=f"{POLICIES[policy]}:max_num_batched_tokens={budget}")
            for budget in BUDGETS
        ]
    )


def best_of(measured: np.ndarray) -> int:
    """Index of the budget with the best mean; of equals the smallest."""
    return int(np.argmax(measured.mean(axis=1)))


def loss(measured: np.ndarray, budget: int) -> np.ndarray:
    """float64[seeds]: how far a budget is below the best one."""
    return measured[best_of(measured)] - measured[budget]


def shape_checks(rows: pd.DataFrame, column: str, examines: str, loads: dict[str, float]) -> list[Check]:
    """Losses at the smallest and the largest budget: rising then flat, or rising then falling."""
    checks = []
    for load_name, load in loads.items():
        edf, sjf, fcfs = (over_budgets(rows, column, policy, load) for policy in POLICIES)
        at = f"load {load:g}"
        checks += [
            Check(f"EDF rises: loss at 64 tokens, {at}", loss(edf, 0), FALL, examines),
            Check(f"EDF is flat then: loss at 4096 tokens, {at}", loss(edf, -1), FLAT, examines),
            Check(f"SJF rises: loss at 64 tokens, {at}", loss(sjf, 0), FALL, examines),
            Check(f"SJF falls then: loss at 4096 tokens, {at}", loss(sjf, -1), FALL, examines),
            Check(f"FCFS rises: loss at 64 tokens, {at}", loss(fcfs, 0), FALL, examines),
            Check(
                f"FCFS {'is flat' if load_name == 'high' else 'falls'} then: loss at 4096 tokens, {at}",
                loss(fcfs, -1),
                FLAT if load_name == "high" else FALL,
                examines,
            ),
        ]
    return checks


def one_budget_loss(rows: pd.DataFrame, column: str) -> np.ndarray:
    """float64[seeds]: what the best single budget loses, mean over policies and loads, to a best one for each."""
    measured = np.array(
        [over_budgets(rows, column, policy, load) for policy in POLICIES for load in LOADS.values()]
    )  # [curves, budgets, seeds]
    own = np.array([curve[best_of(curve)] for curve in measured])
    shared = measured[:, best_of(measured.mean(axis=0))]
    return (own - shared).mean(axis=0)


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    loads = (LOW_LOAD, *LOADS.values())
    titles = [f"load {load:g}" for load in loads]
    figure, row = drawing.panels(titles, "token budget of a batch, tokens", "SLO attainment, share of requests")
    for axes, load in zip(row, loads, strict=True):
        for style, policy in enumerate(POLICIES):
            drawing.curve(axes, BUDGETS, over_budgets(here, "slo_attainment", policy, load), policy, style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(BUDGETS[::2], [str(budget) for budget in BUDGETS[::2]])
        axes.set_ylim(0, 1.02)
    drawing.save(figure, row, path)


BUDGETED = [f"{policy}:max_num_batched_tokens={budget}" for policy in POLICIES.values() for budget in BUDGETS]


@claim("proserve-fig7", cells=grid(BUDGETED, (LOW_LOAD, *LOADS.values()), longer), measure=serve, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = [Check("loss of one budget for all", one_budget_loss(rows, "slo_attainment"), ABOVE_0)]
    for examines, column in METRICS.items():
        checks += shape_checks(rows, column, examines, LOADS)
    return checks + shape_checks(rows, "slo_attainment", "a lower load, 0.4", {"medium": LOW_LOAD})
