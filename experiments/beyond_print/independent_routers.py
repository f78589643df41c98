"""PolyServe's router over one fleet, or several routers that each have a part of the engines and of the requests.

    python -m experiments.beyond_print.independent_routers docs/results/independent-routers.md

Hypotheses: independent_routers.md.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import arguments
from experiments.beyond_print.study import COST, VIOLATIONS, Study, more_than, scenario, served, write
from experiments.claims.harness.checks import ABOVE_0, Range
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
ENGINES = 32
SHARES = (0.5, 0.7)
VARIANTS = {"1 fleet": 1, "2 fleets": 2, "4 fleets": 4, "8 fleets": 8}
ONE, TWO, FOUR, EIGHT = VARIANTS
MUCH, NO_MORE = Range(low=0.05), Range(high=0.01)


def parts(whole: Scenario, fleets: int) -> list[Scenario]:
    """The scenario of each fleet: its share of the engines, and every `fleets`-th request."""
    deployment, workload = whole.deployment, whole.workload
    assert isinstance(deployment, Deployment)
    return [
        dataclasses.replace(
            whole,
            workload=dataclasses.replace(workload, table=workload.table[first::fleets]),
            deployment=dataclasses.replace(deployment, engines=deployment.engines // fleets),
        )
        for first in range(fleets)
    ]


def serve(family: str, fleets: int, share: float, seed: int) -> dict[str, float]:
    return served(parts(scenario(family, ENGINES, share, seed), fleets))


def answers(rows: pd.DataFrame) -> list[str]:
    more = more_than(rows, FOUR, ONE, COST, SHARES[0], relative=True)
    lines = [f"- 1. {FOUR} over {ONE} less 1, engine-seconds a request at {SHARES[0]:g}: {more.text('+.3f')}: "
             f"{MUCH.verdict(more)}."]  # fmt: skip
    for name, expected in ((TWO, NO_MORE), (EIGHT, ABOVE_0)):
        more = more_than(rows, name, ONE, VIOLATIONS, SHARES[1])
        lines.append(f"- 2. {name} less {ONE}, violations at {SHARES[1]:g}: {more.text('+.4f')}: "
                     f"{expected.verdict(more)}.")  # fmt: skip
    return lines


STUDY = Study(
    "Several routers, each with a fleet of its own",
    WORDS,
    "Measured by `python -m experiments.beyond_print.independent_routers docs/results/independent-routers.md`: "
    f"{ENGINES} co-located engines.",
    VARIANTS,
    SHARES,
    serve,
    answers,
)


def main() -> None:
    asked = arguments.parse(__doc__, seeds=3)
    write(asked.page, STUDY, asked.seeds)


if __name__ == "__main__":
    main()
