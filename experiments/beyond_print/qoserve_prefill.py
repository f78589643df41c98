"""QoServe's prefill engines with PolyServe's decode tiers, against PolyServe on both.

    python -m experiments.beyond_print.qoserve_prefill docs/results/qoserve-prefill.md

Hypotheses: qoserve_prefill.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments import arguments
from experiments.beyond_print.study import VIOLATIONS, more_than, scenario, served, write
from experiments.claims.harness.checks import BELOW_0, Range

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
ENGINES = 20
SHARES = (0.8, 1.1)
CHUNK = "dynamic_chunking=off,max_num_batched_tokens=8192,max_num_seqs=1024"
POLYSERVE, QOSERVE, BY_DEADLINE = "PolyServe", "QoServe's prefill", "QoServe's prefill, alpha 0"
VARIANTS = {
    POLYSERVE: "polyserve",
    QOSERVE: f"qoserve:{CHUNK}",
    BY_DEADLINE: f"qoserve:alpha_s_per_token=0,{CHUNK}",
}
NO_MORE = Range(high=0.01)


def serve(family: str, scheduler: str, share: float, seed: int) -> dict[str, float]:
    policies = {"scheduler": scheduler, "decode_scheduler": "polyserve"}
    return served([scenario(family, ENGINES, True, share, seed, **policies)])


def answers(rows: pd.DataFrame) -> list[str]:
    lines = []
    for number, share, expected in ((1, SHARES[1], BELOW_0), (2, SHARES[0], NO_MORE)):
        for name in (QOSERVE, BY_DEADLINE):
            more = more_than(rows, name, POLYSERVE, VIOLATIONS, share)
            lines.append(f"- {number}. {name} less PolyServe, violations at {share:g}: {more.text('+.4f')}: "
                         f"{expected.verdict(more)}.")  # fmt: skip
    return lines


def main() -> None:
    asked = arguments.parse(__doc__, seeds=3)
    how = ("Measured by `python -m experiments.beyond_print.qoserve_prefill docs/results/qoserve-prefill.md`: "
           f"{ENGINES} engines, split as the optimal goodput has it.")  # fmt: skip
    write(asked.page, "QoServe's prefill with PolyServe's decode tiers", WORDS, how, VARIANTS, SHARES, asked.seeds,
          serve, answers)  # fmt: skip


if __name__ == "__main__":
    main()
