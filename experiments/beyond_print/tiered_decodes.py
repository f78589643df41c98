"""QoServe's prefill in front of PolyServe's decode tiers.

    python -m experiments.beyond_print.tiered_decodes docs/results/tiered-decodes.md

Hypotheses: tiered_decodes.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import arguments
from experiments.beyond_print.study import COST, TDG, VIOLATIONS, WITH_WAITS, Study, more_than, scenario, served, write
from experiments.beyond_print.study import PANELS as STUDY_PANELS
from experiments.claims.harness.checks import ABOVE_0, BELOW_0, Range
from experiments.claims.harness.fleets import DEVICE, LINK_GB_PER_S, optimum
from experiments.claims.harness.settings import Setting

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("tiered_decodes_reading.md")
ENGINES, TIERS = 20, 4  # TPOT SLOs of PolyServe's recipe, each a tier of decode engines
PANELS = (STUDY_PANELS[0], STUDY_PANELS[1]._replace(first_seed=1_071_100))  # whose others a first run has seen
SHARES = (0.5, 0.7, 0.9)
LIGHT, FULL, OVERLOAD = SHARES
QOSERVE_PREFILL = "qoserve:dynamic_chunking=off,max_num_batched_tokens={},steps=ignore"
POLYSERVE, PRINTED_CHUNK, QOSERVE, BY_DEADLINE, FCFS, TOGETHER = (
    "PolyServe", "QoServe, 8192", "QoServe, 1024", "QoServe, by deadline", "FCFS, 1024", "QoServe co-located",
)  # fmt: skip
# Schedulers of the prefill engines; None: no engine prefills only.
VARIANTS = {
    POLYSERVE: "polyserve",
    PRINTED_CHUNK: QOSERVE_PREFILL.format(8192),
    QOSERVE: QOSERVE_PREFILL.format(1024),
    BY_DEADLINE: QOSERVE_PREFILL.format(1024) + ",alpha_s_per_token=0",
    FCFS: "sarathi-fcfs:max_num_batched_tokens=1024",
    TOGETHER: None,
}
ALIKE, CHEAPER = Range(-0.01, 0.01), Range(high=-0.1)


def serve(family: str, prefills: str | None, share: float, seed: int) -> dict[str, float]:
    """Figures of a run. prefills: the scheduler of the prefill engines; None: QoServe on engines that do both."""
    other: dict[str, Any]
    if prefills is None:
        other = {"scheduler": "qoserve:steps=ignore", "router": "round-robin", "scaler": None}
    else:
        best = optimum(Setting(family, DEVICE), ENGINES, True).prefill_engines
        assert best is not None
        first = min(best, ENGINES - TIERS)
        other = {
            "prefill": first, "decode": ENGINES - first, "link_gb_per_s": LINK_GB_PER_S, "scheduler": prefills,
            "decode_scheduler": "polyserve",
        }  # fmt: skip
    return served([scenario(family, ENGINES, share, seed, **other)])


def answers(rows: pd.DataFrame) -> list[str]:
    asked = (
        (1, PRINTED_CHUNK, POLYSERVE, VIOLATIONS, FULL, ABOVE_0),
        (2, QOSERVE, POLYSERVE, VIOLATIONS, FULL, ALIKE),
        (3, QOSERVE, FCFS, VIOLATIONS, OVERLOAD, BELOW_0),
        (4, QOSERVE, POLYSERVE, TDG, OVERLOAD, ABOVE_0),
        (5, QOSERVE, TOGETHER, COST, LIGHT, CHEAPER),
        (6, BY_DEADLINE, QOSERVE, VIOLATIONS, FULL, BELOW_0),
        (7, BY_DEADLINE, POLYSERVE, VIOLATIONS, FULL, ABOVE_0),
    )
    titles = {column: title for title, column in WITH_WAITS.items()}
    lines = []
    for number, name, base, column, share, expected in asked:
        relative = column == COST
        more = more_than(rows, name, base, column, share, relative)
        less = f"{name} over {base} less 1" if relative else f"{name} less {base}"
        lines.append(
            f"- {number}. {less}, {titles[column]} at {share:g}: {more.text('+.4f')}: {expected.verdict(more)}."
        )
    return lines


STUDY = Study(
    "QoServe's prefill in front of PolyServe's decode tiers",
    WORDS,
    "Measured by `python -m experiments.beyond_print.tiered_decodes docs/results/tiered-decodes.md`:",
    VARIANTS,
    SHARES,
    serve,
    answers,
    WITH_WAITS,
    READING,
    PANELS,
)


def main() -> None:
    asked = arguments.parse(__doc__, seeds=3)
    write(asked.page, STUDY, asked.seeds)


if __name__ == "__main__":
    main()
