"""FlowPrefill, section 6.4: how often the scheduler is asked."""

from typing import Any

import pandas as pd

from experiments.claims.harness import BELOW_0, Cell, Check, Range, claim, grid, values
from experiments.claims.harness.first_tokens import ONE_AND_ONE, run_to_the_end

LOADS = (0.4, 0.8, 1.2)
SCHEDULERS = {"batching": "flow-prefill", "no batching": "flow-prefill:batch_token_budget=0"}
REQUESTS = 4000  # of a run in full size
A_LITTLE_UNDER_2 = Range(1.8, 2.0)


def measure(cell: Cell) -> dict[str, Any]:
    """events: arrivals and ends of batches, each of which starts a round in the paper; rounds: times it was asked."""
    requests = max(40, REQUESTS * cell.requests // 1000)
    run, _ = run_to_the_end(cell, cell.load, requests)
    engine = run.arrays.engines[0]
    return {
        "events_per_request": float((requests + engine.iterations) / requests),
        "rounds_per_request": float(engine.rounds / requests),
        "preemptions_per_request": float(engine.totals.suspensions / requests),
    }


@claim(
    "flowprefill-rounds",
    cells=grid(SCHEDULERS.values(), LOADS, engines=ONE_AND_ONE),
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = []
    for load in LOADS:
        events, unbatched = (
            values(rows, "events_per_request", scheduler=scheduler, load=load) for scheduler in SCHEDULERS.values()
        )
        rounds = values(rows, "rounds_per_request", scheduler=SCHEDULERS["batching"], load=load)
        checks += [
            Check(f"events a request, load {load:g}", events, A_LITTLE_UNDER_2),
            Check(f"events a request, less those without batching, load {load:g}", events - unbatched, BELOW_0),
            Check(f"rounds a request, load {load:g}", rounds, Range(1.0, 2.0)),
        ]
    return checks
