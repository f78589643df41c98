"""FlowPrefill, section 6.4: how often the scheduler is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from servegym.experiments.claims.harness import first_tokens, goodput
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import BELOW_0, Check, Range
from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.first_tokens import ONE_AND_ONE, run_to_the_end
from servegym.experiments.claims.harness.rows import values
from servegym.experiments.claims.harness.settings import Setting, Size

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (first_tokens, goodput)
LOADS = (0.4, 0.8, 1.2)
SCHEDULERS = {"batching": "flow-prefill", "no batching": "flow-prefill:batch_token_budget=0"}
REQUESTS = 4000  # of a run in full size
A_LITTLE_UNDER_2 = Range(1.8, 2.0)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for scheduler in SCHEDULERS.values():
            for load in LOADS:
                yield Cell(*setting, scheduler, load, seed, size.requests, engines=ONE_AND_ONE)


def measure(cell: Cell) -> dict[str, Any]:
    """events: arrivals and ends of batches, each of which starts a round in the paper; rounds: times it was asked."""
    requests = max(40, REQUESTS * cell.requests // 1000)
    run, _ = run_to_the_end(cell, cell.load, requests)
    engine = run.arrays.engines[0]
    return {
        "events_per_request": float((requests + engine.iterations) / requests),
        "rounds_per_request": float(engine.rounds / requests),
        "preemptions_per_request": float(engine.preemptions / requests),
    }


@claim(
    "flowprefill-rounds",
    figure="Section 6.4",
    paper="Each request makes at most two events, its arrival and its completion, and each starts a scheduling round: "
    "rounds are about twice the requests, slightly fewer with batching.",
    hypothesis="Llama3-8B, 4000 requests: at loads 0.4, 0.8 and 1.2 arrivals and ends of batches are 1.8 to 2 a "
    "request, and fewer than without batching. The scheduler is asked less often than that: not when nothing is left "
    "to be decided, nor while it waits for a task to stop; its rounds a request are between 1 and 2.",
    refuted_by="An interval wholly outside its range.",
    cells=cells,
    measure=measure,
    reading="Events are 1.98 a request at load 0.4 and 1.86 at 1.2, where more requests share a batch; without "
    "batching they are 2. Rounds in which there is something to be decided are 1.41 to 1.85 a request.",
    in_short="Events are 1.98 a request at load 0.4 and 1.86 at 1.2, and 2 without batching; rounds are 1.41 to 1.85.",
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
