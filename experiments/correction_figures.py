"""ProServe's Figures 11 to 18 with and without online correction, by the checks of their claims.

    python -m experiments.correction_figures docs/results/online-correction-figures.md

Hypotheses: correction_figures.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims import proserve_fig11, proserve_fig12
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import FAILS, HOLDS, UNDECIDED, Check, Range
from experiments.claims.harness.claim import find_claims
from experiments.claims.harness.clusters import CLIENTS, GOROUTING, HIGH, MIN_LOAD, Grid, serve_first_tokens
from experiments.claims.harness.outcome import measured
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import Setting, Size, slo_recipe
from servegym.evaluation.markdown import header, row

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("correction_figures_reading.md")  # written after the run
SETTING = Setting("azure-conv", "ascend910b-qwen3-8b")
CLAIMS = ("proserve-fig13", "proserve-fig15", "proserve-fig16-17", "proserve-fig18")
# On the device of those claims that rests on Ascend.
OF_ROUTERS = Setting("azure-conv", "ascend910b-qwen3-32b-tp4")
ROUTERS: dict[str, Grid] = {"Figure 11": proserve_fig11.GRID, "Figure 12": proserve_fig12.GRID}
FIRST_SEED = 20_170
LITTLE = Range(-0.02, 0.02)


class Pair(NamedTuple):
    """A check without and with correction."""

    claim: str
    without: Check
    corrected: Check

    @property
    def turned(self) -> bool:
        return {self.without.verdict, self.corrected.verdict} == {HOLDS, FAILS}

    @property
    def changed(self) -> bool:
        return self.without.verdict != self.corrected.verdict


def pairs_of(claim_id: str, size: Size) -> list[Pair]:
    """The checks of a claim that count in its verdict, each without and with correction."""
    import pandas as pd

    claim = find_claims([claim_id])[0]
    cells = list(dict.fromkeys(claim.cells(SETTING, size)))
    judged: list[list[Check]] = []
    for corrected in (False, True):
        served = [cell._replace(corrected=corrected) for cell in cells]
        rows = [
            {**cell._asdict(), **claim.measure(cell)} for cell in track(served, claim_id, console=Console(stderr=True))
        ]
        judged.append([check for check in claim.judge(pd.DataFrame(rows)) if not check.examines])
    return [Pair(claim_id, *both) for both in zip(*judged, strict=True)]


def router_rows(grid: Grid, size: Size) -> pd.DataFrame:
    """GoRouting and Min-Load in front of SlideBatching, without and with correction."""
    import pandas as pd

    slo = f"{slo_recipe(OF_ROUTERS.device)},{CLIENTS}"
    cells = [
        Cell(
            *OF_ROUTERS, grid.slide, load, seed, size.requests_of(OF_ROUTERS, 3), slo=slo,
            engines=grid.engines(OF_ROUTERS), router=grid.router(router, grid.slide), corrected=corrected,
        )
        for load in HIGH for seed in size.seeds for router in (MIN_LOAD, GOROUTING) for corrected in (False, True)
    ]  # fmt: skip
    return pd.DataFrame([{**cell._asdict(), **serve_first_tokens(cell)} for cell in cells])


def router_checks(grid: Grid, rows: pd.DataFrame) -> list[Check]:
    """By load: GoRouting's lead over Min-Load without correction, with it, and the change of it."""
    checks = []
    for load in HIGH:
        leads = [
            np.subtract(
                *(
                    values(rows, grid.column, load=load, router=grid.router(router, grid.slide), corrected=corrected)
                    for router in (GOROUTING, MIN_LOAD)
                )
            )
            for corrected in (False, True)
        ]
        checks += [
            Check(f"lead without, load {load:g}", leads[0], Range()),
            Check(f"lead with, load {load:g}", leads[1], Range()),
            Check(f"change, load {load:g}", leads[1] - leads[0], LITTLE),
        ]
    return checks


def claims_table(pairs: list[Pair]) -> list[str]:
    lines = header("claim", "hold / undecided / fail without", "with", "verdicts that differ", "of them turned round")
    for claim in dict.fromkeys(pair.claim for pair in pairs):
        here = [pair for pair in pairs if pair.claim == claim]
        counts = [
            " / ".join(str([check.verdict for check in checks].count(verdict)) for verdict in (HOLDS, UNDECIDED, FAILS))
            for checks in ([pair.without for pair in here], [pair.corrected for pair in here])
        ]
        differ, turned = sum(pair.changed for pair in here), sum(pair.turned for pair in here)
        lines.append(row(f"[{claim}]({claim}.md)", *counts, str(differ), str(turned)))
    return lines


def changes_table(pairs: list[Pair]) -> list[str]:
    lines = header("claim", "check", "expected", "without", "with")
    for pair in pairs:
        if pair.changed:
            numbers = [f"{measured(check)}: {check.verdict}" for check in (pair.without, pair.corrected)]
            lines.append(row(pair.claim, pair.without.name, str(pair.without.expected), *numbers))
    return lines


def page(pairs: list[Pair], routers: dict[str, list[Check]], size: Size) -> str:
    lines = [
        "# Online correction in Figures 11 to 18\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.correction_figures docs/results/online-correction-figures.md`: "
        f"{SETTING.name}, {size.requests_of(SETTING)} requests a run, seeds {size.seeds[0]} to {size.seeds[-1]}; "
        f"Figures 11 and 12: {OF_ROUTERS.name}, {size.requests_of(OF_ROUTERS, 3)} requests. Intervals are 95 %, over "
        "seeds, paired by seed.\n",
        "## The claims' checks\n",
        *claims_table(pairs),
        "\n## Checks whose verdict differs\n",
        *changes_table(pairs),
        "\n## What GoRouting adds to SlideBatching\n",
        "Lead over Min-Load, in first-token TDG ratio (Figure 11) and TDG ratio (Figure 12).\n",
        *header("figure", *(check.name for check in next(iter(routers.values()))), "change within 0.02"),
    ]
    for figure, checks in routers.items():
        verdicts = "; ".join(check.verdict for check in checks if check.name.startswith("change"))
        lines.append(row(figure, *(check.interval.text("+.4f") for check in checks), verdicts))
    lines += ["\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=5, requests=1000)
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + asked.seeds))
    size = Size("correction", (SETTING.family,), (SETTING.device,), seeds, asked.requests)
    pairs = [pair for claim in CLAIMS for pair in pairs_of(claim, size)]
    routers = {figure: router_checks(grid, router_rows(grid, size)) for figure, grid in ROUTERS.items()}
    asked.page.write_text(page(pairs, routers, size), encoding="utf-8")


if __name__ == "__main__":
    main()
