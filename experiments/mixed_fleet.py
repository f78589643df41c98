"""The learned router for fleets of unequal engines beside every router that ships, and other trainings of its recipe.

    python -m experiments.mixed_fleet results/mixed-fleet docs/results/learned-mixed-fleet.md

Trains what the folder does not have yet (half an hour on two cores), judges all (a quarter of an hour), and writes the
page and its picture. Hypotheses and words: mixed_fleet.md.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.lost_gain import FLEETS, MIXED, MIXED_PLACES, carried, judged, places_table
from experiments.lost_gain import OURS as BASE
from experiments.prose import sections
from experiments.session_fleet import ATTAINMENT, TDG, Outcomes, all_routers, by_router, routers, scenarios_of
from servegym.baselines.artifact.files import load_artifact
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.values import Pool
from servegym.simulator.policies.policy import Policy
from servegym.tuners.config import load_config
from servegym.tuners.evolution import train

OURS, CONFIG = "learned:mixed-fleet", "cma-fleets"
TRAININGS, FIRST_SEED, SEEDS = 5, 13_000_000, 16
CARRYING = (OURS, BASE)
DOTS_PER_INCH = 150
Curve = Sequence[Mapping[str, Any]]  # validations of a training, oldest first


def trained(folder: Path, trainings: int) -> dict[str, Path]:
    """Train from each seed what the folder does not have, and return the policies' files by name."""
    found = {}
    for seed in range(trainings):
        run = folder / f"{CONFIG}-{seed}"
        if not (run / "summary.json").is_file():
            train(dataclasses.replace(load_config(CONFIG), seed=seed), run)
            print(f"{run.name}: trained", flush=True)
        found[f"learned:{run.name}"] = run / "policy.json"
    return found


def curves_of(files: Mapping[str, Path]) -> dict[str, Curve]:
    return {
        name: [json.loads(line) for line in (path.parent / "curve.jsonl").read_text("utf-8").splitlines()]
        for name, path in files.items()
    }


def unequal(changes: Mapping[str, Any]) -> bool:
    """Return whether the engines of a place are of several devices, as those of the preset. changes: to the preset."""
    pools: Sequence[Pool] = changes.get("pools", ())
    return not pools or len({pool.device for pool in pools}) > 1


def beside_base(places: Mapping[str, Outcomes]) -> str:
    """Make a table with a row a place: what the router has more than its base, by attainment and TDG."""
    rows = []
    for place, outcomes in places.items():
        more = (outcomes[OURS] - outcomes[BASE])[:, (ATTAINMENT, TDG)]
        rows.append((place, *(student_interval(column).text("+.3f") for column in more.T)))
    return table(("where", "attainment", "TDG"), rows)


def trainings_table(curves: Mapping[str, Curve], places: Mapping[str, Outcomes]) -> str:
    """Make a table with a row a training: what it has more than its base, in its best validation and on fresh requests.

    These at the first place, and at the one where its attainment is the furthest behind.
    """
    first, rows = next(iter(places)), []
    for name, curve in curves.items():
        more = {place: (one[name] - one[BASE])[:, (ATTAINMENT, TDG)] for place, one in places.items()}
        worst = min(more, key=lambda place: more[place][:, 0].mean())
        cells = [student_interval(column).text("+.3f") for column in (*more[first].T, more[worst][:, 0])]
        best = max(curve, key=lambda row: row["score"])
        validated = (f"{best['attainment_difference']:+.3f}", f"{best['difference']:+.4f}")
        rows.append((f"`{name}`", *validated, *cells, worst))
    names = (
        "attainment in validation",
        "TDG",
        f"attainment, {first}",
        "TDG",
        "attainment, at its worst place",
        "which is",
    )
    return table(("training", *names), rows)


def draw(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw attainment and TDG less the base's in validation against scenarios served: each training, and their mean."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    titles = {"attainment_difference": "SLO attainment", "difference": "TDG ratio"}
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        values = np.array([[row[name] for row in curve] for curve in curves.values()])
        thousands = [row["steps"] / 1000 for row in next(iter(curves.values()))]
        axes.plot(thousands, values.T, color="#1b5e9b", linewidth=0.8, alpha=0.5)
        axes.plot(thousands, values.mean(axis=0), color="#1b5e9b", marker="o", markersize=3, linewidth=1.8)
        axes.set_xlabel("thousand scenarios")
        axes.set_ylabel(f"{title} less {BASE}'s")
        axes.grid(color="0.92", linewidth=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def page(
    curves: Mapping[str, Curve],
    places: Mapping[str, Outcomes],
    carries: Sequence[tuple[str, ...]],
    picture: Path,
    seeds: int,
) -> str:
    words, first = sections(Path(__file__).with_suffix(".md")), next(iter(places))
    verdicts = {place: judged(OURS, one) for place, one in places.items()}
    ahead = sum(one == "holds" for one in verdicts.values())
    behind = "; ".join(place for place, one in verdicts.items() if one == "behind") or "none"
    of_unequal = {place: one for place, one in places.items() if unequal(MIXED_PLACES[place])}
    of_others = {place: one for place, one in places.items() if place not in of_unequal}
    return f"""# A learned router for unequal engines

<!-- written by python -m experiments.mixed_fleet -->

    servegym compare --spec mixed-fleet --scheduler vllm-v1 --load 1.5 --requests 400 --router {BASE} --router {OURS}
    servegym train {CONFIG}

**Hypotheses.** {words["Hypotheses"]}

**Found.** Ahead of every heuristic and behind none at {ahead} of {len(places)} places; behind one at: {behind}.

{words["Found"]}

## How

{words["How"].replace("SEEDS", str(seeds))}

## Fleets of unequal engines

{places_table(OURS, of_unequal)}
All routers at the first of these places:

{all_routers({name: one for name, one in places[first].items() if name not in curves})}
## Other fleets and workloads

{words["Other"]}

{places_table(OURS, of_others)}
## Beside its base

What it has more than `{BASE}`:

{beside_base(places)}
## What fleets carry

{words["Carry"]}

{table(("fleet", "SLOs", *(f"`{name}`" for name in CARRYING)), carries)}
## Trainings

{words["Trainings"]}

![SLO attainment and TDG ratio in validation, less the base's, against scenarios]({picture})

{trainings_table(curves, of_unequal)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the trainings")
    parser.add_argument("page", type=Path)
    parser.add_argument("--trainings", type=int, default=TRAININGS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="scenarios of each place")
    options = parser.parse_args()
    files = trained(options.folder, options.trainings)
    policies: dict[str, Policy] = dict(routers())
    policies |= {name: load_artifact(path).policy("router") for name, path in files.items()}
    places = {}
    for place, changes in MIXED_PLACES.items():
        places[place] = by_router(policies, scenarios_of(changes, options.seeds, MIXED, FIRST_SEED))
        print(f"{place}: {judged(OURS, places[place])}", flush=True)
    picture, curves = Path("images") / f"{options.page.stem}.png", curves_of(files)
    draw(curves, options.page.parent.parent / picture)
    options.page.write_text(
        page(curves, places, [carried(fleet, CARRYING) for fleet in FLEETS], Path("..") / picture, options.seeds),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
