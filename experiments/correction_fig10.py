"""ProServe's Figure 10 with and without online correction, on all traces and loads of the claim.

    python -m experiments.correction_fig10 docs/results/online-correction-fig10.md

Hypotheses: correction_fig10.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import ABOVE_0, FAILS, HOLDS, UNDECIDED, Check
from experiments.claims.harness.measures import serve
from experiments.claims.harness.outcome import measured
from experiments.claims.harness.selection import best, lead, split
from experiments.claims.harness.settings import FAMILIES, LONGER, Setting, Size
from experiments.claims.proserve_fig10 import (
    BASELINES,
    HIGH,
    METRICS,
    WHOLE,
    cells,
    deadline_first_checks,
    largest_gain,
    lead_checks,
    plain,
)
from experiments.correction_figures import Pair
from servegym.evaluation.markdown import header, row

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("correction_fig10_reading.md")  # written after the run
DEVICE = "ascend910b-qwen3-8b"
FIRST_SEED = 20_180
CONV = "azure-conv"


def cells_of(family: str, size: Size) -> list[Cell]:
    """What the claim itself serves, without what it only examines."""
    served = (WHOLE, *BASELINES)
    of_claim = [cell for cell in cells(Setting(family, DEVICE), size) if cell.scheduler in served]
    return [cell for cell in dict.fromkeys(of_claim) if cell.buffered and not cell.exact_estimator and is_plain(cell)]


def is_plain(cell: Cell) -> bool:
    import pandas as pd

    return len(plain(pd.DataFrame([cell._asdict()]))) == 1


def as_printed(cell: Cell) -> Cell:
    """Batches of SlideBatching as the paper forms them, which knows no steps of a device."""
    return cell._replace(scheduler="slide-batching:steps=ignore") if cell.scheduler == "slide-batching" else cell


def rows_of(family: str, size: Size, corrected: bool) -> pd.DataFrame:
    import pandas as pd

    title = f"{family}, {'corrected' if corrected else 'as it is'}"
    served = [cell._replace(corrected=corrected) for cell in cells_of(family, size)]
    return pd.DataFrame([
        {**cell._asdict(), **serve(as_printed(cell))} for cell in track(served, title, console=Console(stderr=True))
    ])  # fmt: skip


def checks_of(rows: pd.DataFrame) -> list[Check]:
    """The checks that count in the claim's verdict."""
    judging, choosing = split(rows)
    checks = lead_checks(judging, choosing)
    for name, column in METRICS.items():
        gain = largest_gain(rows, column).measured
        checks.append(Check(f"{name}: largest gain over the best baseline, %", gain, ABOVE_0))
    return checks + deadline_first_checks(judging, HIGH, "")


def change(without: pd.DataFrame, corrected: pd.DataFrame) -> Check:
    """What correction adds to the lead in TDG ratio at load 1, over the baseline that is best there either way."""
    leads = []
    for rows in (without, corrected):
        judging, choosing = split(rows)
        other = best(choosing, "tdg_ratio", 1.0, BASELINES)
        leads.append(lead(judging, "tdg_ratio", 1.0, WHOLE, other))
    return Check(f"change of the lead in TDG ratio, load 1, {CONV}", leads[1] - leads[0], ABOVE_0)


def counts(checks: list[Check]) -> str:
    return " / ".join(str([check.verdict for check in checks].count(one)) for one in (HOLDS, UNDECIDED, FAILS))


def tables(pairs: dict[str, list[Pair]]) -> list[str]:
    """Of each trace the verdicts without and with correction, and the checks whose verdict differs."""
    lines = header("trace", "hold / undecided / fail without", "with", "verdicts that differ", "of them turned round")
    for family, of_family in pairs.items():
        both = [counts([pair.without for pair in of_family]), counts([pair.corrected for pair in of_family])]
        differ = sum(pair.changed for pair in of_family)
        lines.append(row(family, *both, str(differ), str(sum(pair.turned for pair in of_family))))
    lines += ["", *header("trace", "check", "expected", "without", "with")]
    for family, of_family in pairs.items():
        for pair in of_family:
            both = [f"{measured(check)}: {check.verdict}" for check in (pair.without, pair.corrected)]
            text = (
                both
                if pair.changed
                else [measured(pair.without), f"{measured(pair.corrected)}: {pair.corrected.verdict}"]
            )
            lines.append(row(family, pair.without.name, str(pair.without.expected), *text))
    return lines


def main() -> None:
    asked = arguments.parse(__doc__, families=FAMILIES, seeds=5, requests=3000)
    size = Size(
        "correction", FAMILIES, (DEVICE,), tuple(range(FIRST_SEED, FIRST_SEED + asked.seeds)),
        asked.requests // LONGER, LONGER,
    )  # fmt: skip
    pairs: dict[str, list[Pair]] = {}
    changed = ""
    for family in asked.families:
        without, corrected = (rows_of(family, size, how) for how in (False, True))
        pairs[family] = [Pair(family, *both) for both in zip(checks_of(without), checks_of(corrected), strict=True)]
        if family == CONV:
            found = change(without, corrected)
            changed = f"- 2. {found.name}: {found.interval.text('+.4f')}: {found.verdict}."
    turned = sum(pair.turned for of_family in pairs.values() for pair in of_family)
    lines = [
        "# Online correction in Figure 10\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.correction_fig10 docs/results/online-correction-fig10.md`: "
        f"{DEVICE}, {asked.requests // LONGER * LONGER} requests a run (a third of mooncake-conversation), seeds "
        f"{size.seeds[0]} to {size.seeds[-1]}; as many more choose the baselines. Intervals are 95 %, over seeds.\n",
        f"- 1. Checks that turn round: {turned}: {FAILS if turned else HOLDS}.", changed,
        "", *tables(pairs),
        "\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip(),
    ]  # fmt: skip
    asked.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
