"""How fast do schedulers lose when the device, the estimator or the lengths are not what they believe?

    python -m experiments.degradation docs/results/degradation.md

Hypotheses: degradation.md. Runs are kept in --ledger, from which the same command goes on.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from experiments.degradation.conditions import FIRST_SEED, POLICIES, Cell, measured, run_of, runs_of
from experiments.degradation.page import draw, page
from experiments.kept_runs import Kept, served
from servegym.baselines.registry import scheduler

WORDS = Path(__file__).with_name("degradation.md")
PICTURE = "degradation.png"
TRACES = ("azure-code", "mooncake-conversation", "servegen-m-small", "servegen-deepseek-r1")
DEVICES = ("a100-llama3-8b", "ascend910b-qwen3-8b")
LOADS = (0.7, 1.4)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path, help="where the page is written; its picture: ../images")
    parser.add_argument("--requests", type=int, default=400, help="of a run")
    parser.add_argument("--seeds", type=int, default=3, help="of a cell")
    parser.add_argument("--ledger", type=Path, default=Path("results/degradation.jsonl"))
    parser.add_argument("--trace", nargs="+", default=TRACES, help="instead of those of the page")
    parser.add_argument("--device", nargs="+", default=DEVICES, help="instead of those of the page")
    asked = parser.parse_args(arguments)
    cells = [Cell(*values) for values in itertools.product(asked.trace, asked.device, LOADS)]
    deployment = served(cells[0], FIRST_SEED, asked.requests)[0].build(FIRST_SEED).deployment
    study = {"what": "degradation", "requests": asked.requests}
    kept = Kept(asked.ledger, study, list(map(scheduler, POLICIES.values())), deployment)
    rows = kept.rows(runs_of(cells, asked.seeds), run_of, lambda run: measured(run, asked.requests), "runs")
    measured_by = (
        f"`python -m experiments.degradation docs/results/degradation.md`: {', '.join(asked.trace)} on "
        f"{' and '.join(asked.device)}, loads {' and '.join(map(str, LOADS))}, {asked.seeds} seeds of each cell from "
        f"{FIRST_SEED:,} on, {asked.requests} requests a run, SLOs of ProServe."
    )
    by_run = {run_of(row): row for row in rows}
    draw(by_run, asked.page.parent.parent / "images" / PICTURE)
    text = page(by_run, WORDS.read_text(encoding="utf-8"), measured_by, f"../images/{PICTURE}")
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    asked.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
