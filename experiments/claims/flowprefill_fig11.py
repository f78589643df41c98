"""FlowPrefill, Figure 11: SLO-aware batching under several token budgets, and none."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim, drawing, grid, over_loads
from experiments.claims.harness.first_tokens import ONE_AND_ONE, run_to_the_end

BUDGETS = {f"{size}K": f"flow-prefill:batch_token_budget={1024 * size}" for size in (2, 4, 8)}
NONE = "flow-prefill:batch_token_budget=0"
SHORT = "flow-prefill:longest_batched_tokens=2048"
CODE = "flow-prefill:margin=0.1,longest_batched_tokens=2048,misfit=stop"
LOADS = (0.6, 0.9, 1.2, 1.5, 1.8)
HIGH = LOADS[-2:]
REQUESTS = 4000  # of a run in full size
WITHIN_2_PERCENT = Range(-2.0, 2.0)


def measure(cell: Cell) -> dict[str, Any]:
    requests = max(40, REQUESTS * cell.requests // 1000)
    run, measured = run_to_the_end(cell, cell.load, requests)
    engine = run.arrays.engines[0]
    return {
        **measured,
        "prefill_tokens_per_busy_s": float(engine.scheduled_tokens / engine.busy_s),
        "batches_per_request": float(engine.iterations / requests),
    }


def picture(rows: pd.DataFrame, path: Path) -> None:
    titles = ["first tokens in time, share", "first tokens per second, % over no batching"]
    figure, (left, right) = drawing.panels(titles, "load", "", (3.6, 2.6), share_y=False)
    schedulers = {"no batching": NONE, **{f"G = {name}": text for name, text in BUDGETS.items()}}
    unbatched = over_loads(rows, "first_tokens_per_s", LOADS, scheduler=NONE)
    for style, (name, scheduler) in enumerate(schedulers.items()):
        drawing.load_curve(left, rows, "attainment", LOADS, name, style, scheduler=scheduler)
        served = over_loads(rows, "first_tokens_per_s", LOADS, scheduler=scheduler)
        drawing.curve(right, LOADS, 100 * (served / unbatched - 1), name, style)
    drawing.save(figure, [left, right], path)


@claim(
    "flowprefill-fig11",
    cells=grid((*BUDGETS.values(), NONE, SHORT, CODE), LOADS, engines=ONE_AND_ONE),
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, scheduler: str) -> np.ndarray:
        return over_loads(rows, column, HIGH, scheduler=scheduler).mean(axis=0)

    in_time, served = "attainment", "first_tokens_per_s"
    checks = [Check(f"attainment, {name} - none", of(in_time, text) - of(in_time, NONE), ABOVE_0)
              for name, text in BUDGETS.items()]  # fmt: skip
    checks += [Check(f"throughput, {name} over none", of(served, text) / of(served, NONE), Range(low=1.0))
               for name, text in BUDGETS.items()]  # fmt: skip
    two, four, eight = (of(served, text) for text in BUDGETS.values())
    printed, short = BUDGETS["4K"], "batches of requests of at most 2048 tokens"
    examines = "the public code's batching (margin 0.1, at most 2048 tokens, stop)"
    return [
        *checks,
        Check("throughput, 8K over 4K, %", 100 * (eight / four - 1), WITHIN_2_PERCENT),
        Check("throughput, what 4K adds to 2K less what 8K adds to 4K", (four - two) - (eight - four), ABOVE_0),
        Check("attainment, 2K - 8K", of(in_time, BUDGETS["2K"]) - of(in_time, BUDGETS["8K"]), ABOVE_0),
        Check("attainment, short ones - as printed", of(in_time, SHORT) - of(in_time, printed), ABOVE_0, short),
        Check("attainment, short ones - none", of(in_time, SHORT) - of(in_time, NONE), ABOVE_0, short),
        Check("attainment, code - none", of(in_time, CODE) - of(in_time, NONE), ABOVE_0, examines),
        Check("throughput, code over none", of(served, CODE) / of(served, NONE), Range(low=1.0), examines),
    ]
