"""Routers where requests name LoRA adapters: `lora-affinity` beside routers that go by load alone.

    python -m experiments.lora_affinity docs/results/lora-affinity.md

Runs all (a minute on two cores) and writes the page. Hypotheses and words: lora_affinity.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0, Range
from experiments.outcomes import cells_of, outcomes_of
from experiments.prose import sections
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.demand import Demand
from servegym.scenarios.parts import Fleet, Policies
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

FIRST_SEED = 9_300_000
FEW, SOME, MANY = 4, 16, 64
RATES_PER_S = (6.0, 8.0)
BASE, ONE, THREE = "min-load", "lora-affinity", "lora-affinity:affinity_weight=3"
ROUTERS = ("round-robin", BASE, ONE, THREE)
FIGURES = {
    "TDG ratio": ".3f", "SLO attainment": ".3f", "p99 TTFT, s": ".2f", "starved": ".3f", "loads": ".0f",
    "activations": ".0f",
}  # fmt: skip
SPEC = ServingSpec(
    Demand(trace="azure-conv", requests=1000, slo="proserve"),
    Fleet(
        device="a100-llama3-8b", engines=4, max_loras=4, max_cpu_loras=16, lora_load_s=0.5, lora_activate_s=0.02
    ),
    Policies(scheduler="vllm-v1", router=BASE),
)  # fmt: skip
LEVEL = Range(low=-0.01, high=0.01)


class Cell(NamedTuple):
    adapters: int
    rate_per_s: float

    @property
    def title(self) -> str:
        return f"{self.adapters} adapters, {self.rate_per_s:g} requests/s"


CELLS = tuple(Cell(*values) for values in itertools.product((FEW, SOME, MANY), RATES_PER_S))
Outcomes = Mapping[str, np.ndarray]  # of a router, float64[seeds, figures]


def figures_of(cell: Cell, router: str, seed: int) -> tuple[float, ...]:
    """`FIGURES` of a run."""
    result = Simulation(SPEC.replaced(**cell._asdict(), router=router).build(seed)).run()
    summary, engines = result.summary, result.engines
    return (
        summary["tdg_ratio"], summary["slo_attainment"], float(np.nanquantile(result.columns["ttft_s"], 0.99)),
        summary["starved"], float(engines["adapter_loads"].sum()), float(engines["adapter_activations"].sum()),
    )  # fmt: skip


def by_cell_and_router(seeds: range) -> dict[Cell, Outcomes]:
    found = outcomes_of(figures_of, list(itertools.product(CELLS, ROUTERS)), seeds)
    by_cell = found.reshape(len(CELLS), len(ROUTERS), *found.shape[1:])
    return {cell: dict(zip(ROUTERS, values, strict=True)) for cell, values in zip(CELLS, by_cell, strict=True)}


def ahead(outcomes: Outcomes, router: str, other: str = BASE) -> Interval:
    """TDG ratio of a router less another's."""
    return student_interval(outcomes[router][:, 0] - outcomes[other][:, 0])


def answers(cells: Mapping[Cell, Outcomes]) -> str:
    """What became of each hypothesis."""
    lines = []
    for cell, outcomes in cells.items():
        asked = {
            SOME: ((1, ONE, BASE, ABOVE_0), (1, THREE, ONE, ABOVE_0)),
            FEW: ((2, ONE, BASE, LEVEL), (2, THREE, BASE, LEVEL)),
            MANY: ((3, THREE, BASE, ABOVE_0),),
        }
        for number, router, other, expected in asked[cell.adapters]:
            less = ahead(outcomes, router, other)
            verdict = expected.verdict(less)
            lines.append(f"- {number}. {cell.title}: `{router}` less `{other}` {less.text('+.3f')}: {verdict}.")
    return "\n".join(sorted(lines))


def rows_of(outcomes: Outcomes) -> str:
    rows = []
    for router, found in outcomes.items():
        rows.append(
            (
                f"`{router}`",
                *cells_of(found, FIGURES.values()),
                "" if router == BASE else ahead(outcomes, router).text("+.3f"),
            )
        )
    return table(("router", *FIGURES, f"TDG less `{BASE}`"), rows)


def page(cells: Mapping[Cell, Outcomes], seeds: int) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    tables = "\n".join(f"### {cell.title}\n\n{rows_of(outcomes)}" for cell, outcomes in cells.items())
    return f"""# Routing to where the LoRA adapter is

<!-- written by python -m experiments.lora_affinity -->

    servegym compare --adapters 16 --max-loras 4 --max-cpu-loras 16 --lora-load 0.5 --lora-activate 0.02 \\
      --engines 4 --rate 8 --scheduler vllm-v1 --router min-load --router {THREE}

{words["Question"]}

{words["Hypotheses"]}

{words["How"]} Here {seeds} seeds.

## What holds

{answers(cells)}

{words["Reading"]}

## Results

{tables}"""


def main() -> None:
    options = arguments.parse(__doc__, seeds=8)
    cells = by_cell_and_router(range(FIRST_SEED, FIRST_SEED + options.seeds))
    for cell, outcomes in cells.items():
        print(f"{cell.title}\n{rows_of(outcomes)}", flush=True)
    print(answers(cells))
    options.page.write_text(page(cells, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
