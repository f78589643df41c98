"""A learned router for many fleets: trained upon lost-gain on some, judged on others.

    python -m experiments.fleets results/fleets docs/results/learned-fleets.md

Trains the seeds that the folder does not have yet, takes the policy that is best in validation, judges it beside every
router that ships, on fresh requests, and writes the page. Hypotheses and words: fleets.md.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lost_gain import FLEETS, SEEDS, carried, judged, measured, places_table
from experiments.lost_gain import OURS as BASE
from experiments.prose import sections
from experiments.session_fleet import Outcomes, all_routers, routers
from servegym.baselines.artifact.files import load_artifact
from servegym.evaluation.markdown import table
from servegym.tuners import evolution
from servegym.tuners.config import load_config

CONFIG, OURS = "cma-fleets", "learned:fleets"  # OURS: of the training that was best in validation
TRAINING_SEEDS = (0,)  # the scenarios of a training have the seeds from its own on
FIRST_SEED = 9_990_000


def trainings(folder: Path) -> list[dict[str, Any]]:
    """Train what is not there yet, and read the summary of each seed, with its policy's path."""
    found = []
    for seed in TRAINING_SEEDS:
        run = folder / str(seed)
        if not (run / "summary.json").is_file():
            evolution.train(dataclasses.replace(load_config(CONFIG), seed=seed), run)
        rows = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
        best = max(rows, key=lambda row: row["score"])
        minutes = json.loads((run / "summary.json").read_text())["cpu_minutes"]
        said = {"name": f"learned:{CONFIG}-{seed}", "seed": seed, "path": run / "policy.json", "cpu_minutes": minutes}
        found.append(best | said)
    return found


def trainings_table(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(one["seed"]), f"{one['steps']:,}", f"{one['cpu_minutes']:.1f}",
            f"{one['difference']:+.4f} ± {one['half_width']:.4f}", f"{one['attainment_difference']:+.4f}",
            f"{one['wait_difference_s']:+.2f}",
        )
        for one in found
    ]  # fmt: skip
    names = ("TDG less the base's", "attainment", "p99 TTFT, s")
    return table(("seed", "best after scenarios", "minutes of processors", *names), rows)


def page(
    found: Sequence[Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Outcomes]],
    fleets: Sequence[tuple[str, ...]],
) -> str:
    """found: of `trainings`. results: of `measured`. fleets: what these carry under OURS and under BASE."""
    chosen = max(found, key=lambda one: one["score"])["seed"]
    words, names = sections(Path(__file__).with_suffix(".md")), [one["name"] for one in found]
    panels = {preset: next(iter(places.values())) for preset, places in results.items()}
    verdicts = {place: judged(OURS, one) for places in results.values() for place, one in places.items()}
    failed = "; ".join(f"{place} ({one})" for place, one in verdicts.items() if one != "holds") or "none"
    held = f"{sum(one == 'holds' for one in verdicts.values())} of {len(verdicts)} places; not at: {failed}"
    parts = "\n".join(
        f"""### {preset}

{places_table(OURS, places)}
All routers at the first of these places:

{all_routers({name: one for name, one in panels[preset].items() if name not in names})}"""
        for preset, places in results.items()
    )
    return f"""# A learned router for many fleets

<!-- written by python -m experiments.fleets -->

    python -m experiments.fleets results/fleets docs/results/learned-fleets.md
    servegym train {CONFIG} --seed {chosen}

**Hypotheses.** {words["Hypotheses"]}

**Found.** (1) and (2) hold together at {held}. {words["Found"]}

## How

{words["How"]}

{trainings_table(found)}
## What fleets carry

{words["Carry"]}

{table(("fleet", "SLOs", f"`{OURS}`", f"`{BASE}`"), fleets)}
## Places

{words["Places"]}

{parts}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    found = trainings(options.folder)
    policies = {one["name"]: load_artifact(one["path"]).policy("router") for one in found}
    best = max(found, key=lambda one: one["score"])
    results = measured(routers() | policies | {OURS: policies[best["name"]]}, SEEDS, FIRST_SEED, OURS)
    fleets = [carried(fleet, (f"learned:{best['path']}", BASE)) for fleet in FLEETS]
    options.page.write_text(page(found, results, fleets), encoding="utf-8")


if __name__ == "__main__":
    main()
